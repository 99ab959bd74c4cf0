"""A request from admission to its last token. Serialisable without its lease: that is migration."""

from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from paceline.core import joined
from paceline.core.noise import AcceptNoise, DraftNoise, TargetNoise
from paceline.core.params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error", "parked"]


class Held(Protocol):
    """What a request shows of its lease."""

    @property
    def length(self) -> int: ...

    @property
    def layer(self) -> int: ...

    @property
    def reserved(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The drawn token's log-probability and the most probable tokens at its place, {token id: log-probability}."""

    token: int
    """The id that was drawn."""
    logprob: float
    """Its log-probability, natural, after every processor."""
    top: dict[int, float]
    """The most probable, {token id: log-probability}, as many as asked for."""


@dataclass(slots=True)
class SpecStats:
    """Speculation figures of one request: *offered* and *kept* per depth, and target passes.

    tau (mean committed tokens per target pass that committed any) = generated / passes.
    """

    passes: int = 0
    """Target passes that committed at least one generated token."""
    generated: int = 0
    """Tokens of the output."""
    offered: list[int] = field(default_factory=list)
    """Drafted tokens that were judged, at depth 1, 2, ..."""
    kept: list[int] = field(default_factory=list)
    """Drafted tokens that were accepted, at depth 1, 2, ..."""
    preempted: int = 0
    """How often the request lost its K/V to others and computed it again."""
    cached: int = 0
    """Prompt tokens found in the prefix cache."""

    def count(self, offered: list[int], kept: list[int]) -> None:
        """Add one pass: nodes offered and kept at depth 1, 2, ..."""
        for mine, new in ((self.offered, offered), (self.kept, kept)):
            mine.extend([0] * (len(new) - len(mine)))
            for depth, value in enumerate(new):
                mine[depth] += value

    @property
    def drafted(self) -> int:
        """Drafted tokens that were judged, all depths together."""
        return sum(self.offered)

    @property
    def accepted(self) -> int:
        """Drafted tokens that were accepted, all depths together."""
        return sum(self.kept)

    @property
    def tau(self) -> float:
        """Generated tokens per pass of the model."""
        return self.generated / self.passes if self.passes else 0.0

    @property
    def acceptance_rate(self) -> float:
        """accepted / drafted; 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(eq=False)
class Request:
    """One sequence. `tokens` is prompt + output; `lease.length` of them have K/V.

    While decoding exactly one token, the *root*, has none; while the prompt (or, after a pre-emption, the
    whole text) is being computed, more do.
    """

    id: int
    prompt: list[int]
    params: SamplingParams
    seed: int
    eos: frozenset[int] = frozenset()
    lineage: tuple[int, ...] = ()
    offset: int = 0
    group: int = -1
    """Id shared by the samples of one prompt (n > 1)."""
    drafter: str = "none"
    arms: tuple[str, ...] = ()
    """The drafters that the planner chooses from, step by step; empty: `drafter` it is."""
    verifier: str = "exact"
    judge_free: bool = False
    """Temperature, filters and such rules as the target can apply itself make its distribution from the target's
    logits, and nothing else of a pass is wanted: one call may draw several tokens."""
    layers: str = ""
    """Digest of the layers that it has in place of the model's; empty: the model's. One call draws several tokens for
    requests of the same layers alone."""
    max_tokens: int = 0
    """Resolved limit on the output."""
    arrival: float = 0.0
    """When it was submitted, by the engine's clock."""
    key: str = ""
    """Key between which the order `fair` shares: see `SamplingParams.user`."""
    adapter: str = ""
    """Digest of the adapter that it is computed with; empty: none."""
    adapter_slot: int = 0
    """Where this engine has that adapter."""
    extra_key: str = ""
    """Requests share K/V only under the same one: an adapter, or a salt for each tenant."""
    imported: str = ""
    """Names its K/V apart from that of all others, where a part of it came from elsewhere."""
    output: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    """One entry per prompt token, the first None; filled as the prompt is computed."""
    stats: SpecStats = field(default_factory=SpecStats)
    branches: int = 0
    """Forks of this request so far."""
    epochs: int = 0
    """Redraws of this request so far."""
    round: int = 0
    """Verification rounds so far: keys the streams that a redraw must not repeat."""
    layout: joined.Layout = ()
    """Where its tokens stand, if branches were joined in it."""
    parent: int = -1
    """The request that waits for this branch; -1: none does."""
    common: int = 0
    """Tokens that a branch shares with its parent."""
    closing: FinishReason | None = None
    """Finish reason of a branch while K/V of its last tokens is still to be computed."""
    lease: Held | None = None
    admitted: float | None = None
    """When it got its first lease, by the engine's clock."""
    finish: FinishReason | None = None
    error: str | None = None
    authors: list[str | None] = field(default_factory=list)
    """Per output token: the drafter that proposed it; None: the target drew it."""
    text: str = ""
    """Detokenised output that may be shown, cut at a stop string; written by the engine."""
    marks: list[int] = field(default_factory=list)
    """Per output token: length of the text that could be shown once it was known."""

    def __post_init__(self) -> None:
        self.tokens: list[int] = [*self.prompt, *self.output]
        self.target_noise = TargetNoise(self.seed, self.lineage)
        self.draft_noise = DraftNoise(self.seed, self.lineage)
        self.accept_noise = AcceptNoise(self.seed, self.lineage)

    @property
    def kv_key(self) -> str:
        """Under what its K/V is named: the root of its blocks' names."""
        return self.imported or self.extra_key

    @property
    def length(self) -> int:
        """Tokens whose target K/V is committed."""
        return self.lease.length if self.lease else 0

    @property
    def layer(self) -> int:
        """Layers that its next rows have run through in earlier steps: 0 unless they wait inside the model."""
        return self.lease.layer if self.lease else 0

    @property
    def held(self) -> int:
        """Rows that wait inside the model, before `layer`."""
        return self.lease.reserved if self.lease and self.lease.layer else 0

    @property
    def pending(self) -> int:
        """Tokens known but without K/V: the rows that must be given before a new token can be drawn."""
        return len(self.tokens) - self.length

    @property
    def ready(self) -> int:
        """Rows of them that one pass may take: up to the end of the stretch of `layout` that comes next."""
        if not self.layout:
            return self.pending
        return joined.end_of(self.layout, self.length, len(self.tokens)) - self.length

    @property
    def shift(self) -> int:
        """Tokens of the text less the position of the next one: 0 without joins."""
        return joined.shift_of(self.layout)

    @property
    def left(self) -> int:
        """Output tokens that may still be drawn. Of branches that were joined the longest counts."""
        return self.max_tokens - len(self.output) + self.shift

    def index(self, depth: int = 0) -> int:
        """Noise index of the token `depth` places after the next one (D2)."""
        return len(self.tokens) + depth + self.offset

    def fork(self, number: int) -> "Request":
        """A request of this id that goes on from the text so far, with noise of its own."""
        child = replace(
            self, id=number, prompt=list(self.prompt), output=list(self.output), lineage=(*self.lineage, self.branches),
            group=number, branches=0, epochs=0, logprobs=list(self.logprobs),
            prompt_logprobs=list(self.prompt_logprobs), stats=SpecStats(), lease=None,
            admitted=None, authors=list(self.authors), marks=list(self.marks), parent=-1, common=0,
        )  # fmt: skip
        self.branches += 1
        return child

    def branch(self, number: int, params: SamplingParams | None) -> "Request":
        """A fork that is to be joined, with parameters of its own: `max_tokens` counts what it adds."""
        child = self.fork(number)
        child.parent, child.common = self.id, len(self.tokens)
        if params is not None:
            child.params = params
            most = self.max_tokens if params.max_tokens is None else len(self.output) - self.shift + params.max_tokens
            child.max_tokens = min(self.max_tokens, most)
        return child

    def close(self, reason: FinishReason) -> None:
        """A branch has ended, and no token is drawn any more. A join takes its tokens without the end of sequence."""
        self.closing = reason
        if self.tokens[-1] in self.eos:
            del self.tokens[-1]

    def rewind(self, length: int, redraw: bool = False) -> None:
        """Forget the output from token `length` on; `redraw`: what comes in its place has noise of its own."""
        self.layout = joined.cut(self.layout, len(self.prompt) + length) or ()
        for part in (self.output, self.authors, self.marks, self.logprobs):
            del part[length:]
        if redraw:
            self.lineage, self.epochs = (*self.lineage, self.epochs), self.epochs + 1
        self.__post_init__()

    def replace_prompt(self, prompt: list[int]) -> None:
        """Another prompt under the same output; noise goes on as before."""
        self.offset += len(self.prompt) - len(prompt)
        self.layout = joined.moved(self.layout, len(prompt) - len(self.prompt))
        self.prompt, self.prompt_logprobs = list(prompt), []
        self.__post_init__()

    def append(self, token: int, author: str | None = None) -> None:
        self.output.append(token)
        self.tokens.append(token)
        self.authors.append(author)
