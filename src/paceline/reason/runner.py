"""`Runner`: policies above tokens on an engine's thread, each a generator that is resumed after every step.

step of each engine ─▶ resume each policy ─▶ operations on engines, accepted tokens to its transcript ─▶ ...
"""

import logging
import secrets
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

from paceline.core.errors import InputError, PacelineError, RefusalError
from paceline.core.params import SamplingParams
from paceline.core.request import FinishReason, Request
from paceline.engine.loop import Engine
from paceline.engine.stop import Stopper
from paceline.engine.text import Text
from paceline.reason.level import Level
from paceline.reason.transcript import Transcript
from paceline.schedule import policies as schedules

log = logging.getLogger("paceline")
BASE, SMALL = "base", "small"
"""Names of the engine whose tokens a transcript has, and of that of a second, smaller model."""
NAP_S = 0.005
"""How long the thread waits for others' work when it has none."""
Script = Generator["Future[Any] | None", None, None]
"""What a policy does: it yields to be resumed after the next step, or a future to be resumed once that is done. Closed
early (a deadline, a client that left) it gives back in `finally` what it holds in engines."""


@dataclass(eq=False)
class Stage:
    """One answer while it is written: everything that a policy works with."""

    transcript: Transcript
    params: SamplingParams
    engines: Mapping[str, Engine]
    clock: Callable[[], float]

    def written(self, request: Request) -> Script:
        """Until a request of an engine has ended. Raises InputError for one that failed."""
        while request.finish is None:
            yield None
        self.check(request)

    @staticmethod
    def check(request: Request) -> None:
        """Raise InputError for a request that has no proper end."""
        if request.finish == "error":
            raise InputError(request.error or "No token could be drawn.")


class Policy(Protocol):
    """Policy that writes one answer. An object serves one answer only."""

    name: str
    """Key of the report in the answer: reasoning, parallel, retrieval."""
    report: dict[str, Any]
    """Report of the answer, apart from its text; complete once `ended` was called."""
    kind: str
    """Name of the policy in metrics: steps, mentor, ..."""
    level: Level
    """Counters of this answer."""

    @property
    def deadline_s(self) -> float | None:
        """Seconds from the start after which what stands is the answer."""

    def check(self, params: SamplingParams, engines: Mapping[str, Engine]) -> None:
        """Raise InputError or RefusalError for what cannot be served so, before anything is begun."""

    def script(self, stage: Stage) -> Script:
        """Write the answer: `stage.transcript.add`, and `end` where no token ends it."""

    def ended(self, stage: Stage) -> None:
        """However it ended: complete `report`. The transcript has its last word already, and nothing is held."""


@dataclass(eq=False)
class PolicyRun:
    """A policy at work."""

    policy: Policy
    stage: Stage
    script: Script
    until: float
    awaited: "Future[Any] | None" = None


class Runner:
    """All policies over some engines of one thread, which owns it."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        stepped: frozenset[str] = frozenset(),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`engines`: by name, BASE among them. `stepped`: names of those that another owner steps."""
        self.engines, self.clock = dict(engines), clock
        self._mine = [engine for name, engine in engines.items() if name not in stepped]
        self.runs: dict[int, PolicyRun] = {}
        """By the id of the transcript's request."""
        self.texts: dict[str, Text] = {}
        """Engine name -> its `Text`, where known."""
        self.levels: dict[str, Level] = {}
        """What all answers that have ended come to, by the policy's own name."""
        self._next = -1

    # -- next to an engine -------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return bool(self.runs)

    def step(self) -> None:
        """Step each of its own engines that has work, then continue each policy."""
        for engine in self._mine:
            if engine.busy:
                engine.step()
        ready = [run for run in self.runs.values() if run.awaited is None or run.awaited.done()]
        for run in ready:
            self._resume(run)
        self._overdue()
        if not ready and self.runs and not any(engine.busy for engine in self.engines.values()):
            wait([run.awaited for run in self.runs.values() if run.awaited], NAP_S, "FIRST_COMPLETED")

    def abort(self, request: Request) -> None:
        """End an answer where it stands; nothing for a request that is not one of its transcripts."""
        run = self.runs.get(request.id)
        if run is not None and run.stage.transcript.request is request:
            self._end(run, "abort")

    def close(self) -> None:
        for run in list(self.runs.values()):
            self.abort(run.stage.transcript.request)

    # -- one answer ----------------------------------------------------------------------------------------------------

    def submit(self, prompt: list[int], params: SamplingParams, policy: Policy) -> list[Request]:
        """Begin an answer to a prompt (token ids of BASE): its transcript's request, which grows as the answer does.
        Raises InputError, RefusalError or CapacityError when it cannot be served; nothing is begun then."""
        check_params(params)
        base = self.engines[BASE]
        session = base.session
        policy.check(params, self.engines)
        schedules.check_wishes(params, base.config.order)
        base.drafters.arms(params.drafter or base.config.drafter, params.verifier or base.config.verifier)
        session.check_prompt(prompt)
        room = base.model.max_len - len(prompt)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        request = Request(
            self._next, list(prompt), params, seed, eos=session.eos, arrival=base.now(), key=params.user,
            max_tokens=min(room, params.max_tokens or room), drafter=policy.kind,
        )  # fmt: skip
        session.check_capacity(len(prompt), request.max_tokens)
        stopper = Stopper(request, session.detokenizer(request))
        stage = Stage(Transcript(request, stopper), params, self.engines, self.clock)
        until = float("inf") if policy.deadline_s is None else self.clock() + policy.deadline_s
        request.admitted = base.now()
        self.runs[request.id] = PolicyRun(policy, stage, policy.script(stage), until)
        self._next -= 1
        return [request]

    def _resume(self, run: PolicyRun) -> None:
        try:
            run.awaited = next(run.script)
            return
        except StopIteration:
            self._end(run, "stop")
        except PacelineError as error:
            self._fail(run, str(error))
        except Exception:
            log.exception("A policy failed.")
            self._fail(run, "The policy failed on this request; the server's log says why.")

    def _fail(self, run: PolicyRun, message: str) -> None:
        run.stage.transcript.request.error = message
        self._end(run, "error")

    def _overdue(self) -> None:
        now = self.clock()
        for run in [run for run in self.runs.values() if now >= run.until]:
            self._end(run, "length", "deadline")

    def _end(self, run: PolicyRun, finish: FinishReason, why: str = "") -> None:
        """The last word is said, the script gives back what it holds, and the report is made."""
        del self.runs[run.stage.transcript.request.id]
        run.stage.transcript.end(finish, why)
        try:
            run.script.close()
            run.policy.ended(run.stage)
            self.levels.setdefault(run.policy.kind, Level()).add(run.policy.level)
        except Exception:
            log.exception("A policy failed at its end.")


def need_small(engines: Mapping[str, Engine]) -> None:
    """RefusalError where there is no second model, or where it is the larger one."""
    if SMALL not in engines:
        raise RefusalError("A second, small model is needed and none is loaded; start with small (--small PATH).")
    check_sizes(engines)


def check_sizes(engines: Mapping[str, Engine]) -> None:
    """RefusalError where the model that is to verify is the smaller one, in bytes of weights and in layers and width:
    either alone may be due to quantization."""
    (base, ours), (small, theirs) = (size(engines[name]) for name in (BASE, SMALL))
    if small > base and theirs > ours:
        raise RefusalError(
            f"The small model has {small:,} bytes of weights and the base model {base:,}: a smaller model would "
            "correct a larger one; swap them."
        )


def size(engine: Engine) -> tuple[int, int]:
    """Bytes of weights, and layers times width squared; 0 where a model does not say."""
    model = engine.model
    spec = getattr(model, "spec", None)
    shape = 0 if spec is None else len(spec.layers) * spec.hidden**2
    return int(getattr(model, "weight_bytes", 0)), int(shape)


def check_params(params: SamplingParams) -> None:
    """Refuse what no policy can keep."""
    if params.n != 1:
        raise InputError(f"n is {params.n}, but a policy writes one answer; send the request {params.n} times.")
    for name in ("logprobs", "prompt_logprobs", "grammar"):
        if getattr(params, name) is not None:
            raise RefusalError(f"{name} cannot be combined with a policy above tokens; leave one of them out.")
