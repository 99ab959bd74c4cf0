"""`Pen`: one model's hand in a transcript. It writes by a request over the text so far, of which the engine finds all
but the end in its prefix cache: only what others wrote since it last wrote is computed."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from paceline.core.operations import Extend, Submit
from paceline.core.request import Request
from paceline.reason.runner import Stage


@dataclass(slots=True)
class HandOver:
    """One request of one model: where it took up, and what that cost."""

    model: str
    why: str
    at: int
    """Tokens of the text, prompt included, that were given when it took up."""
    known: int
    """Given tokens that this model has read or written before, so that a hand-over need not compute them. Its cache
    keeps whole blocks, so up to one block of them is computed again."""
    cached: int
    """Given tokens that the engine had in its prefix cache."""
    wrote: int
    passes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PenPart:
    """What a pen wrote, in its own tokens."""

    tokens: list[int]
    text: str
    ended: bool
    """Did one of the tokens end the answer?"""
    cut: bool
    """Did the limit of tokens end the writing?"""


@dataclass(frozen=True, slots=True)
class ForeignPen:
    """Model with another tokenizer: it receives texts and returns texts."""

    prompt: list[int]
    """The prompt in tokens of this model's tokenizer."""
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    home: Callable[[str], list[int]]
    """A text in the transcript's tokens."""


Writing = Generator[None, None, PenPart]


@dataclass(eq=False)
class Pen:
    """Writer on one engine of the stage. `log`: shared by all pens of an answer."""

    stage: Stage
    name: str
    log: list[HandOver]
    drafter: str | None = None
    foreign: ForeignPen | None = None
    own: list[int] = field(default_factory=list)
    """The text so far in tokens of the model's own tokenizer, if that is not the transcript's."""
    last: list[int] = field(default_factory=list)
    """All tokens of the pen's last request."""

    @property
    def known(self) -> tuple[list[int], list[int]]:
        """Prompt and text so far, in its tokens."""
        text = self.stage.transcript
        return (text.prompt, text.tokens) if self.foreign is None else (self.foreign.prompt, self.own)

    def begin(self, most: int, stops: Sequence[str] = (), ahead: Sequence[int] = ()) -> Request:
        """A request that goes on from the text so far and `ahead` after it, for at most `most` tokens. The caller
        aborts it at the end."""
        engine, stage = self.stage.engines[self.name], self.stage
        prompt, known = self.known
        text = [*known, *ahead]
        wish = replace(
            stage.params, stop=(*stops, *stage.params.stops), include_stop=True, max_tokens=len(text) + most,
            min_tokens=min(stage.params.min_tokens, len(text) + most), seed=stage.transcript.request.seed,
            drafter=self.drafter, max_nodes=None, verifier=None,
        )  # fmt: skip
        request: Request = engine.apply(Submit(list(prompt), wish))[0]
        if text:
            engine.apply(Extend(request.id, text))
        return request

    def write(self, most: int, why: str, stops: Sequence[str] = (), ahead: Sequence[int] = ()) -> Writing:
        """Write up to `most` more tokens, until a stop; `most` >= 1."""
        begun, before = self.stage.clock(), len(self.known[1]) + len(ahead)
        request = self.begin(most, stops, ahead)
        try:
            yield from self.wait(request)
        finally:
            self.stage.engines[self.name].abort(request)
        return self.done(request, before, begun, why)

    def wait(self, request: Request) -> Generator[None, None, None]:
        """Until it has ended. Raises what the engine says of one that failed."""
        while request.finish is None:
            yield
        self.stage.check(request)

    def done(self, request: Request, before: int, begun: float, why: str) -> PenPart:
        """Log a request, which had `before` tokens of output when it was begun at `begun`."""
        tokens = request.output[before:]
        self.note(request, before, begun, why)
        ends = self.stage.engines[self.name].session.eos | set(request.params.stop_token_ids)
        ended = request.finish == "stop" and bool(tokens) and tokens[-1] in ends and not request.params.ignore_eos
        text = request.text if not before else self.say(tokens)
        return PenPart(tokens, text, ended, request.finish == "length")

    def note(self, request: Request, before: int, begun: float, why: str) -> None:
        stats, seconds = request.stats, self.stage.clock() - begun
        at, wrote = len(request.prompt) + before, len(request.output) - before
        tokens = [*request.prompt, *request.output]
        known, self.last = common(self.last, tokens[:at]), tokens
        self.log.append(HandOver(self.name, why, at, known, stats.cached, wrote, stats.passes, seconds))

    def encode(self, text: str) -> list[int]:
        """A text in its tokens, as it goes on behind another."""
        return list(self.stage.engines[self.name].session.tokenizer.encode(text, add_special_tokens=False))

    def say(self, tokens: Sequence[int]) -> str:
        """Tokens as text, without special ones."""
        return str(self.stage.engines[self.name].session.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def home(self, part: PenPart) -> list[int]:
        """A part in the transcript's tokens."""
        if self.foreign is None:
            return part.tokens
        ends = min(self.stage.transcript.request.eos, default=None) if part.ended else None
        return [*self.foreign.home(self.foreign.decode(part.tokens)), *([] if ends is None else [ends])]

    def heard(self, part: PenPart, author: "Pen") -> None:
        """A part has joined the text."""
        if self.foreign is None:
            return
        mine = author is self or author.foreign is self.foreign
        self.own += part.tokens if mine else self.foreign.encode(part.text)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that two texts begin with, both."""
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def counters(log: Sequence[HandOver]) -> dict[str, dict[str, Any]]:
    """By model: requests, tokens given, known before and found cached, tokens written, passes, seconds."""
    totals: dict[str, dict[str, Any]] = {}
    for each in log:
        names = ("requests", "prompt", "known", "cached", "written", "passes")
        mine = totals.setdefault(each.model, dict.fromkeys(names, 0))
        mine["requests"] += 1
        mine["prompt"] += each.at
        mine["known"] += each.known
        mine["cached"] += each.cached
        mine["written"] += each.wrote
        mine["passes"] += each.passes
        mine["seconds"] = mine.get("seconds", 0.0) + each.seconds
    return totals


def shown(log: Sequence[HandOver]) -> list[dict[str, Any]]:
    return [asdict(each) for each in log]
