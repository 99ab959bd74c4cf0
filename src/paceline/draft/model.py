"""`model`: a small causal language model of the same vocabulary drafts a chain.

It keeps K/V in its own group of the shared block table, batched over requests. Its frontier lags the text: a pass
begins with the tokens committed since the last one (also after a rejection), then draws one token at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.core.forest import Forest, Law
from paceline.core.plan import Worth
from paceline.core.registry import Offers
from paceline.core.rows import Chains, Rows, RowsBuilder
from paceline.core.verdict import Verdict
from paceline.draft import DRAFTERS, Ask, Host, View

GROUP = "draft"
WORTH = Worth(0.1)
"""A draft goes on while the chance that all of it is kept is at least this, unless the planner knows better."""
SHARP = 0.6
"""Temperature at which the draft's law says how often a greedy target takes each token: it is surer than the law."""
SHARE = 0.5
"""Chance counted for a sampled token. q(x) says little of it: with shared noise a token is kept far more often."""


@dataclass(slots=True)
class Growing:
    """A request's draft in the making. `reach`: rows of the text (then of the draft) whose K/V this group has."""

    ask: Ask
    reach: int
    tokens: list[int] = field(default_factory=list)
    q_rows: list[int] = field(default_factory=list)
    chance: float = 1.0
    """That all tokens so far are kept, by `_confidence`."""

    @property
    def known(self) -> int:
        """Tokens of the text whose slots this step has."""
        return self.ask.txn.base + self.ask.item.given

    @property
    def live(self) -> bool:
        return len(self.tokens) < self.ask.item.chain and self.chance >= (self.ask.item.worth or WORTH).node

    def run(self, chunk: int) -> list[int]:
        """The next tokens to compute: what is missing of the text, then the last drafted one."""
        text = self.ask.request.tokens[self.reach : self.known]
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
        needs=frozenset({"draft"}),
        group=GROUP,
        thrifty=True,
        runs=True,
    ),
)
class ModelDrafter:
    def __init__(self, host: Host) -> None:
        assert host.draft is not None
        self.model, self.sampler, self.chunk = host.draft, host.sampler, host.chunk
        self.chain = getattr(host.draft, "chain", None)

    def chains(self, asks: Sequence[Ask], view: View) -> Chains | None:
        growing = [Growing(ask, ask.txn.lease.frontier[GROUP]) for ask in asks]
        if sum(g.known - g.reach for g in growing) > self.chunk:
            return None
        for g in growing:
            view.slots[g.ask.request.id] = g
        most, worth = [ask.item.chain for ask in asks], [(ask.item.worth or WORTH).node for ask in asks]
        return Chains(self.model, lacking(growing), [ask.place for ask in asks], most, worth, SHARE, SHARP)

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        for ask in asks:
            view.slots.pop(ask.request.id, None)
        growing = [Growing(ask, ask.txn.lease.frontier[GROUP]) for ask in asks if ask.item.nodes or ask.behind(GROUP)]
        tables: list[Tensor] = []
        self._chains(growing)
        while active := [g for g in growing if g.live or g.lagging]:
            self._extend(active, tables)
        forest = Forest(q=torch.cat(tables) if tables else None)
        for g in growing:
            forest.add_chain(g.ask.place, g.tokens, g.ask.law, g.q_rows)
            view.slots[g.ask.request.id] = g
        return forest

    def _chains(self, growing: Sequence[Growing]) -> None:
        """Whole drafts in one native call, where temperature alone makes the law; the steps below are its twin."""
        left, warm = self.chunk, []
        for g in growing:
            t = self.sampler.temperature(g.ask.request)
            if g.live and g.ask.law is not Law.SAMPLED and t is not None and g.known - g.reach <= left:
                left -= g.known - g.reach
                warm.append((g, t))
        if self.chain is None or not warm:
            return
        rows = lacking([g for g, _ in warm])
        most = [g.ask.item.chain for g, _ in warm]
        keys = [[g.ask.key(depth + 1) for depth in range(n)] if t else [] for (g, t), n in zip(warm, most)]
        worth = [(g.ask.item.worth or WORTH).node for g, _ in warm]
        drawn = self.chain(rows, most, [t for _, t in warm], keys, worth, SHARE, SHARP)
        for (g, _), tokens in zip(warm, drawn):
            g.tokens, g.reach, g.chance = tokens, g.known + max(0, len(tokens) - 1), 0.0

    def _extend(self, active: list[Growing], tables: list[Tensor]) -> None:
        """One pass of the draft model: a run of each text, and the next token of each draft that has caught up."""
        builder, drawing = RowsBuilder(), []
        share = max(1, self.chunk // (sum(g.lagging for g in active) or 1))
        for g in active:
            tokens = g.run(share)
            start, g.reach = g.reach, g.reach + len(tokens)
            draws = g.live and not g.lagging
            slots = g.ask.txn.lease.slots(start, g.reach)
            builder.add(tokens, slots, g.ask.txn.table, start, want=None if draws else [])
            if draws:
                drawing.append(g)
        logits = self.model.forward(builder.build(self.model.device)).logits
        if drawing:
            self._draw(drawing, logits, tables)

    def _draw(self, drawing: list[Growing], logits: Tensor, tables: list[Tensor]) -> None:
        refs = [(g.ask.request, tuple(g.tokens)) for g in drawing]
        scores = self.sampler.scores(refs, logits)
        drawn = self.sampler.draw(refs, scores, [g.ask.key(len(g.tokens) + 1) for g in drawing])
        if any(g.ask.law is Law.SAMPLED for g in drawing):
            base = sum(t.shape[0] for t in tables)
            tables.append(self.sampler.probs(refs, scores))
            for i, g in enumerate(drawing):
                if g.ask.law is Law.SAMPLED:
                    g.q_rows.append(base + i)
        for g, token, chance in zip(drawing, drawn, self._confidence(drawing, scores)):
            if token < 0:  # every token was masked: nothing can be drafted here, and the request will fail here
                g.chance = 0.0
                continue
            g.tokens.append(token)
            g.chance *= chance

    @staticmethod
    def _confidence(drawing: Sequence[Growing], scores: Tensor) -> list[float]:
        """That each drawn token is kept: the draft model's own confidence where it is greedy, else SHARE."""
        chances = [SHARE] * len(drawing)
        greedy = [i for i, g in enumerate(drawing) if g.ask.request.params.greedy]
        if greedy:
            for i, q in zip(greedy, (scores[greedy] / SHARP).softmax(-1).amax(-1).tolist()):
                chances[i] = q
        return chances

    def learn(self, view: View, verdict: Verdict) -> None:
        """Keep the K/V of accepted drafts: the frontier follows the text as far as it was computed (the last drafted
        token was not) and as this chain was what was accepted."""
        for ask in view.asks:
            g = view.slots.pop(ask.request.id, None)
            if g is not None:
                accepted = ask.txn.lease.tokens[g.known :]
                kept = next((i for i, (a, b) in enumerate(zip(g.tokens, accepted)) if a != b), len(accepted))
                reach = view.reach.get(ask.place, min(g.reach, g.known + kept))
                view.advance(ask, GROUP, min(reach, ask.txn.lease.length))


def lacking(growing: Sequence[Growing]) -> Rows:
    """A pass over what is missing of these texts."""
    builder = RowsBuilder()
    for g in growing:
        text = g.ask.request.tokens[g.reach : g.known]
        builder.add(text, g.ask.txn.lease.slots(g.reach, g.known), g.ask.txn.table, g.reach)
    return builder.build()
