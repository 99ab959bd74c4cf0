"""`stand`: STAND, stochastic adaptive n-gram drafting (Song et al. 2025, arXiv 2506.04708). A table, shared by all
requests, keeps the target's own next-token distributions by the n tokens before; the tree is drawn from them without
replacement (Gumbel top-k) over a fixed topology. `stand_greedy`, the paper's deterministic variant, takes the
most probable.

    text a b c d | table[a b c d], else [b c d], [c d], [d]  ->  q = norm(p ** (1/t))  ->  the topology's children

A place whose path is unknown has no children. What is drafted at all depends on the past alone: on the acceptance of
the topology's slots, and on how often the distributions of each n foretold the token that came.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log

import torch
from torch import Tensor

from paceline.core.forest import ROOT, Forest, Law
from paceline.core.registry import Offers
from paceline.core.request import Request
from paceline.draft import DRAFTERS, Ask, Host, View
from paceline.draft.laws import LAW_TOKENS, MAX_CONTEXT_TOKENS, LawRates, LawTable
from paceline.draft.rates import RATE_MIN_CHANCE
from paceline.draft.topology import Slot, Topology
from paceline.sample.noise import gumbel, keys_tensor

MIN_PROBABILITY = 1e-6
"""A token of less probability is neither kept nor drawn."""
FORETOLD_TOKENS = 3
"""Number of most probable tokens: a distribution predicted the token that came if it is among them."""


@dataclass(slots=True)
class Growth:
    """State of one request's tree while it grows. `width`: the children of each place; `tokens`: the last ones on the
    way to it; `nodes`: its number in the forest."""

    ask: Ask
    law: Law
    width: dict[Slot, int]
    tokens: dict[Slot, list[int]]
    nodes: dict[Slot, int] = field(default_factory=lambda: {(): ROOT})

    def add(self, forest: Forest, place: Slot, drawn: Sequence[int], q_row: int) -> list[Slot]:
        """Children in draw order; those that get children of their own."""
        slots = [(*place, rank) for rank in range(min(len(drawn), self.width[place]))]
        for slot, token in zip(slots, drawn):
            self.nodes[slot] = forest.add(self.ask.place, token, self.nodes[place], law=self.law, q_row=q_row)
            self.tokens[slot] = [*self.tokens[place], token][-MAX_CONTEXT_TOKENS:]
        return [slot for slot in slots if slot in self.width]


Places = Sequence[tuple[Growth, Slot, dict[int, float]]]
"""Places whose distributions are known."""


@DRAFTERS.register(
    "stand",
    Offers(
        summary="a tree drawn from the target's own distributions, kept by n-gram",
        laws=frozenset({Law.SHARED_NOISE, Law.WITHOUT_REPLACEMENT}),
        shape="tree",
        nodes=15,
        stops_early=True,
        learns=True,
    ),
)
class Stand:
    def __init__(self, host: Host) -> None:
        self.vocab_size, self.device = host.vocab_size, torch.device("cpu")
        self.table, self.topology, self.rates = LawTable(host.remember // 2), Topology(), LawRates()

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        forest, tables = Forest(), list[Tensor]()
        growths = [self._plan(ask) for ask in asks]
        for growth in growths:
            view.slots[growth.ask.request.id] = growth
        level: list[tuple[Growth, Slot]] = [(growth, ()) for growth in growths if growth.width]
        while level:
            places = [(g, slot, law) for g, slot in level if (law := self.table.find(g.tokens[slot])[1])]
            likeliest = [(list(law), -1) for _, _, law in places]
            noisy = [i for i, (g, _, _) in enumerate(places) if g.law is not Law.POINT]
            for i, drawn in zip(noisy, self._draw([places[i] for i in noisy], tables) if noisy else ()):
                likeliest[i] = drawn
            level = [
                (g, child) for (g, slot, _), drawn in zip(places, likeliest) for child in g.add(forest, slot, *drawn)
            ]
        forest.q = torch.cat(tables).to(self.device) if tables else None
        return forest

    def _plan(self, ask: Ask) -> Growth:
        tokens = ask.request.tokens[-MAX_CONTEXT_TOKENS:]
        n, law = self.table.find(tokens) if ask.item.nodes else (0, {})
        worth = self.rates.worth(n, temperature(ask.request)) if law else 0.0
        width = self.topology.plan(
            ask.item.nodes, FORETOLD_TOKENS, worth, (ask.item.min_chance or RATE_MIN_CHANCE).node
        )
        return Growth(ask, Law.POINT if ask.request.params.greedy else ask.law, width, {(): tokens})

    def _draw(self, places: Places, tables: list[Tensor]) -> list[tuple[list[int], int]]:
        """Gumbel top-k of each distribution at its request's temperature: (tokens in draw order, row of q or -1)."""
        token = torch.tensor([[*law, *[0] * (LAW_TOKENS - len(law))] for _, _, law in places])
        logs = [
            [log(p / max(law.values())) / temperature(g.ask.request) for p in law.values()]
            + [float("-inf")] * (LAW_TOKENS - len(law))
            for g, _, law in places
        ]
        log_q = torch.tensor(logs, dtype=torch.float64).log_softmax(-1)
        log_q = log_q.masked_fill(log_q < log(MIN_PROBABILITY), float("-inf")).log_softmax(-1)
        keys = [g.ask.key(len(slot) + 1, list(g.width).index(slot)) for g, slot, _ in places]
        order = (log_q + gumbel(keys_tensor(keys), token)).argsort(-1, descending=True)
        count = (log_q > float("-inf")).sum(-1).tolist()
        drawn = [row[:n] for row, n in zip(token.gather(-1, order).tolist(), count)]
        row = [-1] * len(places)
        private = [i for i, (g, _, _) in enumerate(places) if g.law is Law.WITHOUT_REPLACEMENT]
        if private:
            base = sum(map(len, tables))
            q = torch.zeros(len(private), self.vocab_size, dtype=torch.float64)
            tables.append(q.scatter_add_(-1, token[private], log_q[private].exp()))
            for n, i in enumerate(private):
                row[i] = base + n
        return list(zip(drawn, row))

    def learn(self, view: View) -> None:
        """Keep the distributions of the accepted path and of the token after it."""
        rows, contexts = list[Tensor](), list[tuple[list[int], int, float]]()
        for ask in view.asks:
            growth, tokens = view.slots.pop(ask.request.id, None), view.results[ask.place].tokens
            if not tokens or tokens[-1] < 0:
                continue
            text = [*ask.txn.lease.tokens, tokens[-1]]
            if growth is not None and len(growth.nodes) > 1:
                places = {node: slot for slot, node in growth.nodes.items()}
                reached = places[view.accepted(ask)[-1]] if view.accepted(ask) else ()
                self.topology.observe([slot for slot in growth.nodes if slot], reached)
            assert view.scores is not None
            rows.append(view.scores(ask.place))
            for end in range(ask.known, len(text)):
                contexts.append((text[max(0, end - MAX_CONTEXT_TOKENS) : end], text[end], temperature(ask.request)))
        if rows:
            self._enter(torch.cat(rows), contexts)

    def _enter(self, scores: Tensor, contexts: Sequence[tuple[list[int], int, float]]) -> None:
        """Enter rows of scores [L, V], each with (the tokens before, the token that came, temperature)."""
        self.device = scores.device
        values, tokens = scores.topk(min(LAW_TOKENS, scores.shape[-1]), dim=-1)
        back = torch.tensor([[t or 1.0] for _, _, t in contexts], dtype=torch.float64, device=scores.device)
        laws = (values.to(torch.float64) * back).softmax(-1)
        for (context, came, t), ids, law in zip(contexts, tokens.tolist(), laws.tolist()):
            n, known = self.table.find(context)
            if n:
                self.rates.observe(n, t, came in list(known)[:FORETOLD_TOKENS])
            self.table.learn(context, {token: p for token, p in zip(ids, law) if p >= MIN_PROBABILITY})


@DRAFTERS.register(
    "stand_greedy",
    Offers(
        summary="a tree of the most probable tokens by the target's own distributions, kept by n-gram",
        laws=frozenset({Law.POINT}),
        shape="tree",
        nodes=15,
        stops_early=True,
        learns=True,
    ),
)
class StandGreedy(Stand):
    """Every request has distribution POINT."""


def temperature(request: Request) -> float:
    """0 for greedy."""
    return 1.0 if request.params.temperature is None else request.params.temperature
