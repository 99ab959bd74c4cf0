"""`model`: a small causal language model of the same vocabulary drafts a chain.

It keeps K/V in its own group of the shared block table, batched over requests. Its frontier lags the text: a pass
begins with the tokens committed since the last one (also after a rejection), then draws one token at a time.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from paceline.core.component import DRAFT, Model
from paceline.core.forest import Forest, Law
from paceline.core.plan import MinChance
from paceline.core.program import WHOLE, Program
from paceline.core.proposer import Draft, ProposerTable, Turn
from paceline.core.registry import Offers
from paceline.core.rows import Rows, RowsBuilder
from paceline.core.warp import Warp
from paceline.draft import DRAFTERS, NEED_DRAFT, Ask, Host, View
from paceline.draft.apart import Apart
from paceline.native.structs import CChains, addresses, integers_in, reals_in
from paceline.sample.sampler import Sampler

CHAIN_MIN_CHANCE = MinChance(0.1)
"""A draft goes on while the chance that all of it is kept is at least this, unless the planner knows better."""
SHARP = 0.6
"""Temperature at which the draft's distribution says how often a greedy target takes each token: it is surer than the
distribution."""
SAMPLED_CHANCE, SAMPLED_TRIES, SAMPLED_MEMORY = 0.7, 8.0, 0.99
"""Chance counted for a sampled token before any was judged, the tokens that this counts for, and the weight of the past
at each round. q(x) says little of it: with shared noise a token is kept far more often."""


class Chains(Protocol):
    """A draft model with the ability `chain`; `drafting` is the native library's alone."""

    def chain(
        self,
        rows: Rows,
        most: list[int],
        warp: list[Warp],
        keys: list[list[int]],
        worth: list[float],
        share: float,
        sharp: float,
    ) -> list[list[int]]:
        """A whole chain for each segment in one call."""

    def drafting(self, rows: Rows, further: int) -> tuple[Any, Any, Any]:
        """The model and a pass over `rows` as the library takes them, and what must outlive them. `further`: places
        that later rows will go beyond these."""


class SampledChances:
    """How often a sampled token is kept once the ones above it are, by temperature, over a tenant's requests."""

    def __init__(self) -> None:
        self.counts: dict[float, tuple[float, float]] = {}

    def learn(self, temperature: float, kept: int, drafted: int) -> None:
        """A round that kept the first `kept` of `drafted` tokens."""
        hits, tries = self.counts.get(round(temperature, 1), (0.0, 0.0))
        hits, tries = SAMPLED_MEMORY * hits + kept, SAMPLED_MEMORY * tries + min(kept + 1, drafted)
        self.counts[round(temperature, 1)] = hits, tries

    def of(self, temperatures: Sequence[float]) -> float:
        """The mean of those of some requests; greedy ones do not count."""
        known = [self.counts.get(round(t, 1), (0.0, 0.0)) for t in temperatures if t]
        chances = [(hits + SAMPLED_TRIES * SAMPLED_CHANCE) / (tries + SAMPLED_TRIES) for hits, tries in known]
        return sum(chances) / len(chances) if chances else SAMPLED_CHANCE


@dataclass(slots=True)
class Growing:
    """State of a request's draft while it grows. `reach`: rows of the text (then of the draft) whose K/V this group
    has."""

    ask: Ask
    reach: int
    tokens: list[int] = field(default_factory=list)
    q_rows: list[int] = field(default_factory=list)
    chance: float = 1.0
    """That all tokens so far are kept, by `confidence`."""
    in_run: bool = False
    """A run's proposer has followed what was accepted: `reach` is right."""
    said: Sequence[int] = ()
    """Tokens behind the text that count as part of it: an earlier draft's, which the target has not judged yet."""
    most: int | None = None
    """Tokens of the draft at most; None: as many as the ask says."""
    least: int = 0
    """Tokens that are drafted whatever their chance."""
    worth: float | None = None
    """The least chance of a whole draft; None: as the planner says, else CHAIN_MIN_CHANCE."""

    @property
    def known(self) -> int:
        return self.ask.known + len(self.said)

    @property
    def length(self) -> int:
        """Tokens of the draft at most."""
        return self.ask.item.chain if self.most is None else self.most

    @property
    def path(self) -> tuple[int, ...]:
        """Tokens from the root's child down to the latest drafted one."""
        return (*self.said, *self.tokens)

    def text(self, start: int, stop: int) -> list[int]:
        """Tokens start .. stop of the text."""
        return [*self.ask.request.tokens[: self.ask.known], *self.said][start:stop]

    def key(self, depth: int) -> int:
        """Noise row of the draft's token at this depth."""
        return self.ask.key(len(self.said) + depth)

    @property
    def live(self) -> bool:
        return self.goes_on

    @property
    def goes_on(self) -> bool:
        """Is there room for one more token, and is it likely enough to be kept?"""
        count = len(self.tokens)
        worth = (self.ask.item.min_chance or CHAIN_MIN_CHANCE).node if self.worth is None else self.worth
        return count < self.length and (count < self.least or self.chance >= worth)

    def run(self, chunk: int) -> list[int]:
        """The next tokens to compute: what is missing of the text, then the last drafted one."""
        text = self.text(self.reach, self.known)
        return text[:chunk] or self.tokens[-1:]

    @property
    def lagging(self) -> bool:
        """Must text be computed before (or, for a chunk of prompt, without) drawing?"""
        return self.reach < self.known


@DRAFTERS.register(
    "model",
    Offers(
        summary="a small model of the same vocabulary drafts a chain",
        laws=frozenset({Law.SHARED_NOISE, Law.SAMPLED}),
        shape="chain",
        nodes=8,
        needs=frozenset({NEED_DRAFT}),
        group=DRAFT,
        stops_early=True,
        runs=True,
        auto=("model",),
    ),
)
class ModelDrafter:
    taps: tuple[str, ...] = ()
    """Hidden states of the draft model that `chances` reads."""

    def __init__(self, host: Host) -> None:
        self.model, self.sampler, self.chunk = host.model(DRAFT), host.sampler, host.chunk
        self.chain = cast(Chains, self.model).chain if "chain" in self.model.abilities else None
        self.sampled = Apart(SampledChances)

    def begin(self, ask: Ask, reach: int) -> Growing:
        return Growing(ask, reach)

    def chances(
        self, drawing: Sequence[Growing], scores: Tensor, drawn: Sequence[int], hidden: Tensor | None
    ) -> list[float]:
        """What the chance of each draft is multiplied by at the token that was drawn, which is not in `tokens` yet.
        hidden [N, H]: states of the rows that the scores [N, V] are of, where there are taps."""
        return confidence(drawing, scores, self.sampled)

    def propose(self, asks: Sequence[Ask], view: View) -> "ChainProposer | None":
        growing = [Growing(ask, ask.txn.lease.frontier[DRAFT]) for ask in asks]
        if "run" not in self.model.abilities or sum(g.known - g.reach for g in growing) > self.chunk:
            return None
        for g in growing:
            view.slots[g.ask.request.id] = g
        return ChainProposer(self.model, self.sampler, growing, self.sampled)

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        for ask in asks:
            view.slots.pop(ask.request.id, None)
        growing = [
            self.begin(ask, ask.txn.lease.frontier[DRAFT]) for ask in asks if ask.item.nodes or ask.behind(DRAFT)
        ]
        tables = self.grow(growing)
        forest = Forest(q=torch.cat(tables) if tables else None)
        for g in growing:
            forest.add_chain(g.ask.place, g.tokens, g.ask.law, g.q_rows)
            view.slots[g.ask.request.id] = g
        return forest

    def grow(self, growing: Sequence[Growing]) -> list[Tensor]:
        """Draw the chains; the distributions that they were drawn from, where a rule will ask for them."""
        tables: list[Tensor] = []
        self._chains(growing)
        while active := [g for g in growing if g.live or g.lagging]:
            self._extend(active, tables)
        return tables

    def _chains(self, growing: Sequence[Growing]) -> None:
        """Whole drafts in one native call, where temperature, filters and rules alone make the distribution; the steps
        below are its twin."""
        left, warm = self.chunk, []
        for g in growing:
            if not g.live or g.ask.law is Law.SAMPLED or g.known - g.reach > left:
                continue
            warp = self.sampler.warp(g.ask.request, tuple(g.said))
            if warp is not None and (warp.rules is None or "rules" in self.model.abilities):
                left -= g.known - g.reach
                warm.append((g, warp))
        if self.chain is None or not warm:
            return
        rows = lacking([g for g, _ in warm], self.model.device)
        most = [g.length for g, _ in warm]
        keys = [[g.key(depth + 1) for depth in range(n)] if not warp.greedy else [] for (g, warp), n in zip(warm, most)]
        worth = [(g.ask.item.min_chance or CHAIN_MIN_CHANCE).node for g, _ in warm]
        warps = [warp for _, warp in warm]
        drawn = self.chain(
            rows,
            most,
            warps,
            keys,
            worth,
            self.sampled.of(*(g.ask.request for g, _ in warm)).of([warp.temperature for warp in warps]),
            SHARP,
        )
        for (g, _), tokens in zip(warm, drawn):
            g.tokens, g.reach, g.chance = tokens, g.known + max(0, len(tokens) - 1), 0.0

    def _extend(self, active: Sequence[Growing], tables: list[Tensor], program: Program = WHOLE) -> None:
        """One pass of the draft model: a run of each text, and the next token of each draft that has caught up."""
        builder, drawing, last = RowsBuilder(), [], list[int]()
        share = max(1, self.chunk // (sum(g.lagging for g in active) or 1))
        rows = 0
        for g in active:
            tokens = g.run(share)
            start, g.reach = g.reach, g.reach + len(tokens)
            draws = g.live and not g.lagging
            slots = g.ask.txn.lease.slots(start, g.reach)
            builder.add(
                tokens,
                slots,
                g.ask.txn.table,
                start,
                want=None if draws else [],
                shift=g.ask.shift(start),
                adapter=g.ask.request.adapter_slot,
            )
            rows += len(tokens)
            if draws:
                drawing.append(g)
                last.append(rows - 1)
        out = self.model.forward(builder.build(self.model.device, self.taps, program=program))
        if drawing:
            hidden = out.taps[self.taps[0]][last] if self.taps else None
            self._draw(drawing, out.logits, tables, hidden)

    def _draw(
        self, drawing: Sequence[Growing], logits: Tensor, tables: list[Tensor], hidden: Tensor | None = None
    ) -> None:
        refs = [(g.ask.request, g.path) for g in drawing]
        scores = self.sampler.scores(refs, logits)
        drawn = self.sampler.draw(refs, scores, [g.key(len(g.tokens) + 1) for g in drawing])
        if any(g.ask.law is Law.SAMPLED for g in drawing):
            base = sum(t.shape[0] for t in tables)
            tables.append(self.sampler.probs(refs, scores))
            for i, g in enumerate(drawing):
                if g.ask.law is Law.SAMPLED:
                    g.q_rows.append(base + i)
        for g, token, chance in zip(drawing, drawn, self.chances(drawing, scores, drawn, hidden)):
            if token < 0:  # every token that it may draft is masked: the draft ends here
                g.most = len(g.tokens)
                continue
            g.tokens.append(token)
            g.chance *= chance

    def hear(self, ask: Ask, view: View) -> None:
        """Count how many of a request's sampled tokens were kept."""
        if temperature := ask.request.params.temperature:
            for _, depth, each in view.results[ask.place].heard():
                if max(each.offered, default=0) == 1:  # nobody else drafted, too
                    self.sampled.of(ask.request).learn(temperature, depth, len(each.offered))

    def learn(self, view: View) -> None:
        """Keep the K/V of accepted drafts: the frontier follows the text as far as it was computed (the last drafted
        token was not)."""
        for ask in view.asks:
            g = view.slots.pop(ask.request.id, None)
            if g is not None:
                self.hear(ask, view)
                reach = g.reach if g.in_run else min(g.reach, g.ask.known + len(view.accepted(ask)))
                view.advance(ask, DRAFT, min(reach, ask.txn.lease.length))


@dataclass(slots=True)
class ChainProposer:
    """The draft model's chains between the passes of a run; native/propose_model.h does the same in C++."""

    model: Model
    sampler: Sampler
    growing: Sequence[Growing]
    """One for each text."""
    sampled: Apart[SampledChances] = field(default_factory=lambda: Apart(SampledChances))

    @property
    def texts(self) -> list[int]:
        return [g.ask.place for g in self.growing]

    @property
    def nodes(self) -> list[int]:
        return [g.ask.item.chain for g in self.growing]

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        live = []
        for turn in turns:
            g = self.growing[turn.place]
            g.tokens, g.chance = [], 1.0
            if turn.most > 0:
                live.append(turn)
        while live:
            self._extend(live)
            live = [t for t in live if self.growing[t.place].live and len(self.growing[t.place].tokens) < t.most]
        drafts = [self.growing[turn.place].tokens for turn in turns]
        return [(tokens, range(-1, len(tokens) - 1)) for tokens in drafts]

    def _extend(self, turns: list[Turn]) -> None:
        """One pass of the draft model, and the next token of each draft."""
        builder = RowsBuilder()
        for turn in turns:
            g = self.growing[turn.place]
            text = [*g.ask.request.tokens[: g.known], *turn.said, *g.tokens]
            slots = g.ask.txn.lease.slots(g.reach, len(text))
            builder.add(
                text[g.reach :],
                slots,
                g.ask.txn.table,
                g.reach,
                shift=g.ask.shift(g.reach),
                adapter=g.ask.request.adapter_slot,
            )
            g.reach = len(text)
        logits = self.model.forward(builder.build(self.model.device)).logits
        drawing = [self.growing[turn.place] for turn in turns]
        refs = [(g.ask.request, (*t.said, *g.tokens)) for t, g in zip(turns, drawing)]
        scores = self.sampler.scores(refs, logits)
        keys = [t.how.keys[len(t.said) + len(g.tokens)] if t.how.keys else 0 for t, g in zip(turns, drawing)]
        drawn = self.sampler.draw(refs, scores, keys)
        for g, token, chance in zip(drawing, drawn, confidence(drawing, scores, self.sampled)):
            if token < 0:
                g.chance = -1.0
                continue
            g.tokens.append(token)
            g.chance *= chance

    def kept(self, turns: Sequence[Turn], paths: Sequence[Sequence[int]]) -> None:
        for turn, path in zip(turns, paths):
            g = self.growing[turn.place]
            g.reach, g.in_run = min(g.reach, g.known + len(turn.said) + len(path)), True

    def native(self) -> ProposerTable | None:
        if "chain" not in self.model.abilities:
            return None
        rows = lacking(self.growing)
        room = max(g.ask.txn.rows for g in self.growing)
        model, behind, held = cast(Chains, self.model).drafting(rows, room)
        least = reals_in([(g.ask.item.min_chance or CHAIN_MIN_CHANCE).node for g in self.growing])
        nodes, reach = integers_in(self.nodes), integers_in([g.reach for g in self.growing])
        requests = [g.ask.request for g in self.growing]
        chance = self.sampled.of(*requests).of([request.params.temperature or 0.0 for request in requests])
        state = CChains(ctypes.pointer(model), ctypes.pointer(behind), *addresses(nodes, least, reach), chance, SHARP)

        def done() -> None:
            for g, rows in zip(self.growing, reach):
                g.reach, g.in_run = rows, True

        return ProposerTable("paceline_chains", state, (held, nodes, least, reach), done)


class Behind(Protocol):
    """A text of which the draft model has the rows before `reach`, of `known`."""

    @property
    def ask(self) -> Ask: ...

    @property
    def reach(self) -> int: ...

    @property
    def known(self) -> int: ...

    def text(self, start: int, stop: int) -> list[int]: ...


def lacking(growing: Sequence[Behind], device: "torch.device | str" = "cpu") -> Rows:
    """A pass over what is missing of these texts, for a draft model on `device`."""
    builder = RowsBuilder()
    for g in growing:
        text, slots = g.text(g.reach, g.known), g.ask.txn.lease.slots(g.reach, g.known)
        builder.add(
            text, slots, g.ask.txn.table, g.reach, shift=g.ask.shift(g.reach), adapter=g.ask.request.adapter_slot
        )
    return builder.build(device)


def confidence(drawing: Sequence[Growing], scores: Tensor, sampled: Apart[SampledChances]) -> list[float]:
    """The chance of each drawn token to be kept: the draft model's own confidence where the request is greedy, else how
    often sampled ones were."""
    requests = [g.ask.request for g in drawing]
    chances = [sampled.of(it).of([it.params.temperature or 0.0]) for it in requests]
    greedy = [i for i, g in enumerate(drawing) if g.ask.request.params.greedy]
    if greedy:
        for i, q in zip(greedy, (scores[greedy] / SHARP).softmax(-1).amax(-1).tolist()):
            chances[i] = q
    return chances
