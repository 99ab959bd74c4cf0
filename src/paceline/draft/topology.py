"""A topology fitted to what was accepted (STAND, Song et al. 2025, arXiv 2506.04708): the best slots of a large tree,
counted on the engine's own rounds, chosen again between rounds only."""

import heapq
from collections.abc import Iterable

from paceline.core.forest import MAX_CANDIDATES
from paceline.draft.rates import RATE_MIN_CHANCE
from paceline.draft.sequoia import SEQUOIA_DEPTH, SEQUOIA_PRIOR, SEQUOIA_PRIOR_ROUNDS

TOPOLOGY_REVIEW_ROUNDS = 64
"""Rounds before the first new topology; the next ones follow at twice as many each."""

Slot = tuple[int, ...]
"""A place of the topology: the child ranks from depth 1 down to it."""


class Topology:
    """The slots in order of their estimated acceptance, parents and earlier siblings first: any prefix is a tree."""

    def __init__(self) -> None:
        self.hits: dict[Slot, int] = {}
        self.tries: dict[Slot, int] = {}
        """Rounds in which the slot was filled and its parent accepted (the root always is)."""
        self.rounds, self.due = 0, TOPOLOGY_REVIEW_ROUNDS
        self.chance = self.best()

    def rate(self, slot: Slot) -> float:
        """Chance that the slot is accepted, given that its parent is."""
        return (SEQUOIA_PRIOR_ROUNDS * SEQUOIA_PRIOR[slot[-1]] + self.hits.get(slot, 0)) / (
            SEQUOIA_PRIOR_ROUNDS + self.tries.get(slot, 0)
        )

    def best(self) -> dict[Slot, float]:
        """{slot: estimated chance, no larger than its parent's and earlier sibling's}, the best MAX_CANDIDATES."""
        out: dict[Slot, float] = {}
        heap: list[tuple[float, int, Slot]] = [(-self.rate((0,)), 1, (0,))]
        while len(out) < MAX_CANDIDATES:
            minus, depth, slot = heapq.heappop(heap)
            out[slot] = -minus
            above, rank = slot[:-1], slot[-1] + 1
            if depth < SEQUOIA_DEPTH:
                heapq.heappush(heap, (minus * self.rate((*slot, 0)), depth + 1, (*slot, 0)))
            if rank < len(SEQUOIA_PRIOR):
                chance = out.get(above, 1.0) * self.rate((*above, rank))
                heapq.heappush(heap, (max(minus, -chance), depth, (*above, rank)))
        return out

    def observe(self, filled: Iterable[Slot], accepted: Slot) -> None:
        """One round: the slots with a node, and the deepest accepted one (() for none)."""
        for slot in filled:
            if accepted[: len(slot) - 1] == slot[:-1]:
                self.tries[slot] = self.tries.get(slot, 0) + 1
                self.hits[slot] = self.hits.get(slot, 0) + (accepted[: len(slot)] == slot)
        self.rounds += 1
        if self.rounds >= self.due:
            self.due *= 2
            self.chance = self.best()

    def plan(self, most: int, guesses: int, worth: float, least: float = RATE_MIN_CHANCE.node) -> dict[Slot, int]:
        """{place: number of its children} of those of the best `most` slots whose chance is at least `least`, for a
        root where the first `guesses` children hold the token that comes with chance `worth`."""
        scale = worth / sum(self.chance.get((rank,), 0.0) for rank in range(guesses))
        width: dict[Slot, int] = {}
        for slot, chance in list(self.chance.items())[:most]:
            if chance * scale >= least:
                width[slot[:-1]] = width.get(slot[:-1], 0) + 1
        return width
