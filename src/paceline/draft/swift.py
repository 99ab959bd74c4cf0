"""`swift`: the target drafts for itself with some of its sub-layers left out (SWIFT, arXiv 2410.06916).

Which ones is searched while texts grow: a set's *matchness* is the share of the latest tokens that the shortened model
would have drawn, found in one pass over them in blocks of their own. The best set is kept for each task. The draft is a
comb: a chain of first candidates, each with siblings that have no children, more of them where it is less sure. Where
the planner knows prices, a place has another pass, and a sibling a row, while that is expected to bring what it costs.

What such a pass keeps is *fuzzy* K/V. It lies in rows that verification computes again in every layer, or in blocks
that no request holds; no other component reads it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import torch

from paceline.core.component import TARGET
from paceline.core.forest import Law
from paceline.core.program import inputs
from paceline.core.registry import DrafterSetting, Offers
from paceline.core.request import Request
from paceline.core.rows import RowsBuilder
from paceline.core.warp import Warp
from paceline.draft import DRAFTERS, NEED_PROGRAM, SCRATCH, Ask, Host, View
from paceline.draft.layer_search import Choice, Search, skipping, spread
from paceline.draft.tree import Laws, Tree, TreeDrafter
from paceline.sample.filters import law
from paceline.sample.noise import keys_tensor
from paceline.sample.race import race, winners

RATIO = DrafterSetting("ratio", 0.45, 0.01, 0.95)
"""Share of the sub-layers between the first layer and the last that are left out."""
SURE_PROBABILITY = 0.8
"""A draft ends behind a candidate of less probability."""
DEEPEST = 25
CHOSEN, DRAWN_PLACES = (3, 5, 8, 10), (1, 3, 5, 10)
"""Candidates at a place by the probability of the first one, of more than LEVELS; chosen ones, and drawn ones."""
LEVELS = (0.95, 0.8, 0.5)
SCORE_TOKENS, RESCORE_EVERY = 4, 16
"""A set is scored when the output has a multiple of SCORE_TOKENS tokens; every RESCORE_EVERY-th time it is the
one in use, and that one alone when the search has ended: it goes on where a text turns out to need another."""
TASKS = 64
"""Tasks whose sets are kept; the one used least recently goes first."""
TASK_PREFIX_TOKENS = 16
"""Tokens of a prompt that tell its task, where the request names no user."""


def task(request: Request) -> object:
    """What a set of sub-layers is kept for."""
    return request.params.user or tuple(request.prompt[:TASK_PREFIX_TOKENS])


def siblings(probability: float, counts: Sequence[int]) -> int:
    """Candidates at a place whose first one has this probability, as the paper has them."""
    return counts[next((i for i, level in enumerate(LEVELS) if probability > level), len(LEVELS))]


def priced(reached: float, probability: float, row: float, pass_: float) -> tuple[int, bool]:
    """Candidates at a place that is reached with this chance and whose first one has this probability, and whether the
    draft goes on behind that. The i-th sibling has at most an i-th of what the first one leaves."""
    return 1 + int(reached * (1.0 - probability) / row), reached * probability >= row + pass_


@dataclass(slots=True)
class Comb:
    """A tree's sub-layers that are left out, and the chance that the end of its chain is reached."""

    choice: Choice
    reached: float = 1.0


@DRAFTERS.register(
    "swift",
    Offers(
        summary="the target without some of its sub-layers drafts a comb",
        laws=frozenset({Law.SHARED_NOISE, Law.WITHOUT_REPLACEMENT}),
        shape="tree",
        nodes=15,
        needs=frozenset({NEED_PROGRAM}),
        settings=(RATIO,),
    ),
)
class Swift(TreeDrafter):
    def __init__(self, host: Host) -> None:
        self.model, self.sampler, self.chunk = host.model(TARGET), host.sampler, host.chunk
        self.scratch = host.scratch
        self.width_of_choice = max(0, 2 * (inputs(self.model.places) - 2))
        ratio = float(host.setting("swift", "ratio"))
        self.count = min(self.width_of_choice, max(1, int(self.width_of_choice * ratio)))
        self.tasks: OrderedDict[tuple[str, object], Search] = OrderedDict()
        self._due: dict[int, None] = {}
        """Requests whose texts a set is to be scored on, the longest due first."""

    def search(self, request: Request) -> Search:
        """That of the request's task; a new one begins with the set that its tenant used last, unscored."""
        key = request.extra_key, task(request)
        if key not in self.tasks:
            latest = next((it for (whose, _), it in reversed(self.tasks.items()) if whose == key[0]), None)
            start = latest.best if latest else spread(self.width_of_choice, self.count)
            self.tasks[key] = Search(start, self.count, seed=len(request.prompt))
            if len(self.tasks) > TASKS:
                self.tasks.popitem(last=False)
        self.tasks.move_to_end(key)
        return self.tasks[key]

    def asked(self, ask: Ask) -> bool:
        """False next to a prompt, whose rows would be computed twice."""
        return ask.item.nodes > 0 and ask.item.given == 1 and self.count > 0

    def reach(self, ask: Ask) -> int:
        return ask.txn.base

    def plant(self, tree: Tree) -> None:
        tree.memo = Comb(self.search(tree.ask.request).best)

    def passes(self, trees: Sequence[Tree]) -> Sequence[Sequence[Tree]]:
        """Requests of one set share passes."""
        sets: dict[Choice, list[Tree]] = {}
        for tree in trees:
            sets.setdefault(tree.memo.choice, []).append(tree)
        return [*sets.values()]

    def forward(self, builder: RowsBuilder, trees: Sequence[Tree]) -> torch.Tensor:
        return self.model.forward(builder.build(self.model.device, program=skipping(trees[0].memo.choice))).logits

    def expand(self, tree: Tree, laws: Laws) -> list[int]:
        """The number of siblings depends on the first one alone, which a rule looks at first."""
        counts = CHOSEN if tree.law is Law.POINT else DRAWN_PLACES
        for place, draws in laws.items():
            if not draws.token or not tree.left:
                continue
            sure, price, comb = exp(draws.log_q[0]), tree.ask.item.min_chance, tree.memo
            many, further = siblings(sure, counts), sure >= SURE_PROBABILITY
            if price is not None and price.target and price.row:
                share = 1.0 - self.count / (self.width_of_choice + 4)
                many, further = priced(comb.reached, sure, price.row, price.target * share)
                comb.reached *= sure
            new = [tree.add(place, token) for token in draws.token[: min(many, tree.left)]]
            return new[:1] if further and tree.depth[new[0]] < DEEPEST and tree.left else []
        return []

    def learn(self, view: View) -> None:
        """Score a set on the text as it was before this round, now and then: one text a step, for that is a pass."""
        asks = {ask.request.id: ask for ask in view.asks}
        for number, ask in asks.items():
            view.slots.pop(number, None)
            every = SCORE_TOKENS * (RESCORE_EVERY if self.search(ask.request).over else 1)
            if self.count and len(ask.request.output) % every == 0:
                self._due[number] = None
        self._due = {number: None for number in self._due if number in asks}
        for number in list(self._due):
            del self._due[number]
            search = self.search(asks[number].request)
            again = search.tried % RESCORE_EVERY == RESCORE_EVERY - 1 and search.seen[-1][0] != search.best
            choice = search.best if again or search.over else search.suggest()
            if (score := self.matchness(asks[number], choice)) is not None:
                search.register(choice, score)
                break

    def matchness(self, ask: Ask, choice: Choice) -> float | None:
        """Share of the latest output tokens that the model without these sub-layers would have drawn, given the text
        before each; None: there are too few. Rows before them are read where they lie, those of the pass are written
        to blocks of no request."""
        request, lease = ask.request, ask.txn.lease
        size, stop = lease.pool.block_size, min(lease.length, len(request.tokens) - 1)
        start = max(0, stop - SCRATCH) // size * size
        first = max(start, len(request.prompt) - 1)
        if request.layout or stop - first < SCRATCH // 2 or stop - start > len(self.scratch) * size:
            return None
        table = [*lease.blocks[: start // size], *self.scratch]
        slots = [table[place // size] * size + place % size for place in range(start, stop)]
        builder = RowsBuilder()
        want = [place - start for place in range(first, stop)]
        slot = request.adapter_slot
        builder.add(request.tokens[start:stop], slots, table, start, want=want, adapter=slot)
        with torch.inference_mode():
            logits = self.model.forward(builder.build(self.model.device, program=skipping(choice))).logits
        drawn = self._drawn(request, logits, [place + 1 + request.offset for place in range(first, stop)])
        return sum(map(int.__eq__, drawn, request.tokens[first + 1 : stop + 1])) / len(drawn)

    @staticmethod
    def _drawn(request: Request, logits: torch.Tensor, indices: Sequence[int]) -> list[int]:
        """With the noise of those places; of the processors temperature and filters alone."""
        warp = Warp.of(request.params)
        if warp.greedy:
            return winners(logits)
        keys = keys_tensor([request.target_noise.key(index) for index in indices], logits.device)
        return race(law(logits, [warp] * len(indices)), keys, warp.filters)
