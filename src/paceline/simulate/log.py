"""The decision log: one JSON object a line, for each thing that decisions depend on and for each decision. Floats read
back equal, so a replay can ask for equality."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from paceline.cache.blocks import root_hash
from paceline.core.errors import InputError
from paceline.core.files import lines_of
from paceline.core.joined import Layout
from paceline.core.params import SamplingParams
from paceline.core.plan import MinChance, Note, Plan, Work
from paceline.core.request import Request
from paceline.core.result import Result
from paceline.engine.config import EngineConfig
from paceline.plan import DrafterFacts
from paceline.plan.cost import Drafting, Times

DECIDING = ("temperature", "max_nodes", "prompt_logprobs", "priority", "deadline_ms", "returns", "client")
"""The sampling parameters that decisions read. The others, and so seeds and stop strings, stay out of the log."""
_DEFAULT = SamplingParams()


def hidden(extra_key: str) -> str:
    """Digest in place of a key that may be a secret; equal for equal keys."""
    return root_hash(extra_key).hex() if extra_key else ""


@dataclass(frozen=True, slots=True)
class Setup:
    """The first line: an engine before its first request."""

    config: EngineConfig
    groups: tuple[str, ...]
    """K/V groups other than the target's."""
    entries: dict[str, DrafterFacts]
    times: dict[str, Any]
    """`StepTimes.dump`."""
    states: tuple[str, ...] = ()
    """Groups that keep a state of each text."""
    lagging: tuple[str, ...] = ()
    """Groups that a shared prefix may lack."""
    learned: dict[str, Any] | None = None
    """`LengthPolicy.state`: what was known of drafters before."""
    layers: int = 0
    """Layers of the target between which rows may wait; 0: none."""
    version: Literal[5] = 5
    event: Literal["setup"] = "setup"


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A drafter that a request named first."""

    drafter: str
    facts: DrafterFacts
    event: Literal["enrolled"] = "enrolled"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request is queued; those of one `group` are samples of one prompt."""

    now: float
    id: int
    group: int
    prompt: list[int]
    drafter: str
    arms: tuple[str, ...]
    verifier: str
    max_tokens: int
    judge_free: bool = False
    """May several of its tokens be drawn in one call?"""
    key: str = ""
    """Key between which the order `fair` shares."""
    params: dict[str, Any] = field(default_factory=dict)
    """Sampling parameters in `DECIDING` that are set."""
    output: list[int] = field(default_factory=list)
    """Output so far of a request that was forked or parked."""
    parent: int = -1
    """Request that waits for this branch; -1: not a branch."""
    common: int = 0
    """Tokens that a branch shares with its parent."""
    eos: tuple[int, ...] = ()
    """End-of-sequence tokens of a branch, which a join leaves out."""
    layout: Layout = ()
    """Where its tokens stand, if branches were joined in it."""
    extra_key: str = ""
    """Sharers of its K/V, hashed: it may be a secret."""
    imported: str = ""
    """Key of K/V that came from elsewhere, hashed."""
    layers: str = ""
    """Digest of layers of its own."""
    event: Literal["arrival"] = "arrival"

    @classmethod
    def of(cls, request: Request) -> "Arrival":
        r = request
        params = {name: value for name in DECIDING if (value := getattr(r.params, name)) != getattr(_DEFAULT, name)}
        if r.params.client:
            params["client"] = hidden(r.params.client)
        return cls(
            r.arrival,
            r.id,
            r.group,
            r.prompt,
            r.drafter,
            r.arms,
            r.verifier,
            r.max_tokens,
            r.judge_free,
            r.key,
            params,
            r.output[:],
            r.parent,
            r.common,
            tuple(sorted(r.eos)) if r.parent >= 0 else (),
            r.layout,
            hidden(r.extra_key),
            hidden(r.imported),
            r.layers,
        )

    def request(self) -> Request:
        return Request(
            self.id,
            list(self.prompt),
            SamplingParams(**self.params),
            seed=0,
            group=self.group,
            drafter=self.drafter,
            arms=self.arms,
            verifier=self.verifier,
            judge_free=self.judge_free,
            layers=self.layers,
            max_tokens=self.max_tokens,
            arrival=self.now,
            key=self.key,
            output=list(self.output),
            parent=self.parent,
            common=self.common,
            eos=frozenset(self.eos),
            layout=self.layout,
            extra_key=self.extra_key,
            imported=self.imported,
            authors=[None] * len(self.output),
        )


@dataclass(frozen=True, slots=True)
class Departure:
    """A request leaves between two steps: it was aborted, or parked."""

    id: int
    event: Literal["abort"] = "abort"


@dataclass(frozen=True, slots=True)
class Changed:
    """A request's text is changed between two steps. `extend`: tokens that joined its output; `rewind`: the length that
    its output was cut to; `prompt`: what took its prompt's place."""

    id: int
    extend: list[int] | None = None
    rewind: int | None = None
    prompt: list[int] | None = None
    event: Literal["changed"] = "changed"


@dataclass(frozen=True, slots=True)
class Closed:
    """A branch ends between two steps where it stands."""

    id: int
    event: Literal["closed"] = "closed"


@dataclass(frozen=True, slots=True)
class Joined:
    """Branches that ended, and tokens behind them, join the text of their request."""

    id: int
    branches: list[int]
    tokens: list[int]
    max_tokens: int
    """Resolved limit from now on."""
    reading: list[str] = field(default_factory=list)
    """K/V groups that are made from hidden states."""
    event: Literal["joined"] = "joined"


@dataclass(frozen=True, slots=True)
class Adopted:
    """Rows whose K/V came from elsewhere enter the prefix cache, if there is room: as of `Desk.adopt`."""

    tokens: list[int]
    groups: list[str]
    layout: Layout = ()
    extra_key: str = ""
    known: bool = False
    event: Literal["adopted"] = "adopted"


@dataclass(frozen=True, slots=True)
class BlocksDropped:
    """K/V of a text leaves the prefix cache where no lease holds it."""

    tokens: list[int]
    extra_key: str = ""
    layout: Layout = ()
    event: Literal["dropped"] = "dropped"


@dataclass(frozen=True, slots=True)
class BlocksReserved:
    """Blocks are held for a text that is to come, as of `Desk.reserve`; `blocks` None: as of `Desk.reopen`."""

    number: int
    blocks: int | None
    groups: list[str]
    layout: Layout = ()
    extra_key: str = ""
    event: Literal["reserved"] = "reserved"


@dataclass(frozen=True, slots=True)
class BlocksSettled:
    """Held blocks are given back, or enter the prefix cache."""

    number: int
    tokens: list[int]
    event: Literal["settled"] = "settled"


@dataclass(frozen=True, slots=True)
class Given:
    """An item of a plan."""

    id: int
    given: int
    nodes: int
    drafter: str
    depth: int
    min_chance: MinChance | None
    further: int = 0
    """Rows for what is drafted while the pass runs."""
    first: int = 0
    last: int | None = None
    """Layers that its rows run through in this step, as of `Item`."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a step decides, by request ids."""

    admitted: list[int]
    preempted: list[int]
    items: list[Given]
    passes: int = 1
    why: tuple[str, ...] = ()
    """Reasons of the choice in words."""
    held: tuple[int, ...] = ()
    """Requests that waited for masks of their grammars: given to the decision, not made by it."""

    @classmethod
    def of(cls, admitted: Iterable[Request], plan: Plan) -> "Decision":
        items = [
            Given(i.request.id, i.given, i.nodes, i.drafter, i.depth, i.min_chance, i.further, i.first, i.last)
            for i in plan.items
        ]
        return cls([r.id for r in admitted], [r.id for r in plan.preempt], items, plan.passes, plan.why, plan.held)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a step: a result for each item; (request, group, complete rows) in order; measured times."""

    results: list[Result]
    advanced: list[tuple[int, str, int]]
    work: Work
    parts: list[Drafting]
    times: Times
    found: list[Note] = field(default_factory=list)
    """What merged drafters report about their parts."""


@dataclass(frozen=True, slots=True)
class Step:
    now: float
    decision: Decision
    failed: list[tuple[str, list[int]]] = field(default_factory=list)
    """Drafters that raised, and for whom they had drafted."""
    outcome: Outcome | None = None
    """None: the plan had no items, or the pass failed and its rows were dropped."""
    event: Literal["step"] = "step"


CacheEvent = Adopted | BlocksDropped | BlocksReserved | BlocksSettled
Event = Setup | Enrolled | Arrival | Departure | Changed | Closed | Joined | CacheEvent | Step
_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])


def dump(event: Event) -> bytes:
    """One line."""
    return _EVENT.dump_json(event) + b"\n"


def read(path: Path) -> Iterator[Event]:
    """The events of a log. InputError where a line is none."""
    for number, line in enumerate(lines_of(path, "The decision log"), 1):
        event = _parse(line, f"line {number} of {path}")
        if (number == 1) != isinstance(event, Setup):
            raise InputError(f"Line {number} of {path} is a {event.event}; a log has one setup, its first line.")
        yield event


def _parse(line: bytes, where: str) -> Event:
    try:
        return _EVENT.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{where} is not an event of a decision log of this version ({at}: {first['msg']}); "
            "record one with `paceline serve --decision-log FILE`."
        ) from None
