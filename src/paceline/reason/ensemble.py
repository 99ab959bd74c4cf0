"""`Ensemble`: two models over one text, in one process, on one thread, within one byte budget."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from paceline.core.errors import CapacityError, InputError, RefusalError
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.budget import parse_bytes, planner_of
from paceline.engine.build import build
from paceline.engine.llm import LLM
from paceline.engine.options import Options
from paceline.engine.outputs import Follower
from paceline.engine.pair import paths
from paceline.reason.judge import DraftJudge, ids
from paceline.reason.mentor import Mentor, MentorSettings
from paceline.reason.pen import ForeignPen
from paceline.reason.runner import BASE, SMALL, Policy, Runner
from paceline.reason.steps import StepSettings, StepwiseAnswer

if TYPE_CHECKING:
    from paceline.engine.text import Message, Text

PolicySettings = StepSettings | MentorSettings


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """What a policy wrote."""

    text: str
    token_ids: list[int]
    """In the base model's tokens."""
    finish_reason: str
    seed: int
    report: dict[str, Any]
    """Segments by author, scores, rollbacks, counters of each model, hand-overs: docs/reasoning.md."""


class Ensemble:
    """A base model and a small one that answer together.

    with Ensemble("path/of/base", small="path/of/small", memory="6G") as pair:
        answer = pair.chat([{"role": "user", "content": "..."}], StepSettings(tau=7))

    Keyword arguments are the fields of `Options`, of both models; `draft` and `drafter` are the base model's. Raises
    what `LLM` raises.
    """

    def __init__(self, model: str | Path | None = None, *, small: str | Path, **options: Any) -> None:
        base, other = split(Options(model, **options), small)
        self.llm = LLM(**{f.name: getattr(base, f.name) for f in fields(base)})
        try:
            self.runner = join(self.llm, other, stepped=False)
        except BaseException:
            self.llm.close()
            raise

    def close(self) -> None:
        """Abort unfinished requests and release the models. May be called again."""
        self.runner.close()
        self.runner.engines.clear()
        self.llm.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def chat(
        self,
        messages: "Sequence[Message]",
        settings: PolicySettings | None = None,
        params: SamplingParams | None = None,
    ) -> PolicyAnswer:
        """Answer a conversation, by steps unless another policy is given."""
        policy = self.policy(settings or StepSettings(), messages)
        return self._finish(self._begin(self.llm.text.chat(messages), policy, params), policy)

    def generate(
        self, prompt: str | Sequence[int], settings: PolicySettings | None = None, params: SamplingParams | None = None
    ) -> PolicyAnswer:
        """Answer a plain prompt (text, or token ids of the base model), as `chat` does a conversation."""
        policy = self.policy(settings or StepSettings(), None, prompt)
        return self._finish(self._begin(self.llm.ids(prompt), policy, params), policy)

    def stream(
        self,
        messages: "Sequence[Message]",
        settings: PolicySettings | None = None,
        params: SamplingParams | None = None,
    ) -> Iterator[tuple[str, str]]:
        """(text, author) of a conversation's answer as it is accepted; closing the iterator ends everything."""
        policy = self.policy(settings or StepSettings(), messages)
        request = self._begin(self.llm.text.chat(messages), policy, params)
        follower = Follower(request, 0)
        try:
            while True:
                chunk = follower.news()
                if chunk is not None:
                    yield from ((text, author or BASE) for text, author in chunk.pieces)
                if chunk is not None and chunk.done:
                    return
                self.runner.step()
        finally:
            self.runner.abort(request)

    def policy(
        self, settings: PolicySettings, messages: "Sequence[Message] | None", prompt: str | Sequence[int] = ""
    ) -> Policy:
        """The policy that writes one answer. RefusalError for one that these models cannot run."""
        return make(self.runner, self.llm.text, settings, messages, prompt)

    def _begin(self, prompt: list[int], policy: Policy, params: SamplingParams | None) -> Request:
        wish = (params or SamplingParams()).resolve(self.llm.text.defaults)
        return self.runner.submit(prompt, wish, policy)[0]

    def _finish(self, request: Request, policy: Policy) -> PolicyAnswer:
        try:
            while request.finish is None:
                self.runner.step()
        finally:
            self.runner.abort(request)
        if request.finish == "error":
            raise InputError(request.error or "The policy failed.")
        return PolicyAnswer(request.text, list(request.output), str(request.finish), request.seed, policy.report)


def make(
    runner: Runner,
    text: "Text",
    settings: PolicySettings,
    messages: "Sequence[Message] | None",
    prompt: str | Sequence[int] = "",
) -> Policy:
    """A policy for one answer of these engines; `text`: the base model's. RefusalError for what they cannot do."""
    other = runner.texts.get(SMALL)
    same = other is None or vocabulary(text) == vocabulary(other)
    if isinstance(settings, MentorSettings):
        if not same:
            raise RefusalError("The small model has another tokenizer, and mentor hands over token ids; use steps.")
        return Mentor(settings)
    foreign = None
    if other is not None and not same:
        own = (
            other.chat(messages)
            if messages
            else other.encode(prompt if isinstance(prompt, str) else text.decode(prompt))
        )
        foreign = ForeignPen(own, lambda it: ids(other, it), lambda it: plain(other, it), lambda it: ids(text, it))
    return StepwiseAnswer(DraftJudge.of(text, messages, settings.score), settings, foreign)


def plain(text: "Text", tokens: Sequence[int]) -> str:
    return str(text.tokenizer.decode(list(tokens), skip_special_tokens=True))


def vocabulary(text: "Text") -> dict[str, int]:
    """{token: id}, kept with the tokenizer: it is large, and asked for with each answer."""
    known: dict[str, int] | None = text.__dict__.get("_all")
    if known is None:
        known = text.__dict__["_all"] = text.vocabulary(1 << 40)
    return known


def join(llm: LLM, other: Options, stepped: bool = True) -> Runner:
    """The runner of a loaded base model and a small one, which is loaded here. `stepped`: the caller steps the base's
    engine."""
    engine, text = build(other)
    runner = Runner({BASE: llm.engine, SMALL: engine}, frozenset({BASE} if stepped else ()))
    runner.texts.update({BASE: llm.text, SMALL: text})
    return runner


def load(small: str | Path | None = None, **options: Any) -> AsyncLLM:
    """An `AsyncLLM`, with a small model on its thread if one is named."""
    if small is None:
        return AsyncLLM(**options)
    base, other = split(Options(**options), small)
    llm = AsyncLLM(**{f.name: getattr(base, f.name) for f in fields(base)})
    try:
        llm.attach(lambda mine: join(mine, other))
    except BaseException:
        llm.close()
        raise
    return llm


def split(options: Options, small: str | Path) -> tuple[Options, Options]:
    """Options of each model. One budget of bytes is shared out so that both caches hold as many tokens: they hold the
    same text. CapacityError where it is too little for both."""
    from paceline.model.checkpoint import resolve

    if not options.prefix_cache:
        raise RefusalError("prefix_cache off and small cannot be combined: hand-overs find their text there.")
    other = replace(options, model=small, draft=None, drafter=None, verifier="exact", nodes=None, chat_template=None)
    if options.memory is None:
        return options, other
    model, draft = paths(options)
    files = [resolve(model, options.revision, options.token), resolve(small, options.revision, options.token)]
    mine = planner_of(options, files[0], None if draft is None else resolve(draft, None, options.token))
    theirs, total = planner_of(other, files[1]), parse_bytes(options.memory)
    low, high = mine.least(options.blocks), total - theirs.least(options.blocks)
    if low > high:
        raise CapacityError(
            f"A memory of {total:,} bytes is too little for both models; give at least {low + total - high:,} bytes."
        )
    rows = max(options.row_budget, options.max_requests)
    while high - low > 1 << 20:
        middle = (low + high) // 2
        ours, rest = (
            it.choose(bytes_, rows, options.max_requests, options.blocks).plan.slots
            for it, bytes_ in ((mine, middle), (theirs, total - middle))
        )
        enough = ours >= rest
        low, high = (low, middle) if enough else (middle, high)
    return replace(options, memory=high), replace(other, memory=total - high)
