"""Masks of grammars before a step, within what their clients may take of it. A mask of an ambiguous grammar takes a
fifth of a second of the engine's thread: what a client spends beyond its share it pays back, and its requests with a
grammar sit out of steps meanwhile. A mask follows from tokens that are committed, so a text does not depend on when it
was computed. Requests that name no client are a program's own, and are not held up."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from paceline.core.request import Request
from paceline.sample.grammar import Place

MASK_STEP_S = 0.05
"""Processor seconds of a step that the masks of all clients may take."""


class MaskTurns:
    """What each client's masks have taken of the engine's thread. One thread owns it."""

    def __init__(self) -> None:
        self.owed: dict[str, float] = {}
        """{client: seconds beyond its share of each step}"""
        self.spent = self.expected = 0.0
        """Seconds of all clients in this step, and those that its drafts are expected to take."""
        self._guessing = False

    @contextmanager
    def guessing(self) -> Iterator[None]:
        """Masks are asked for by drafters, which may do without."""
        self._guessing = True
        try:
            yield
        finally:
            self._guessing = False

    def charge(self, client: str, seconds: float) -> None:
        if client:
            self.owed[client] = self.owed.get(client, 0.0) + seconds
            self.spent += seconds

    def held(self, wanted: Sequence[tuple[Request, Place]], others: bool) -> list[int]:
        """Compute masks, and name the requests that must wait for theirs: the client that owes least comes first, and
        of its requests the one with the shortest output. `others`: more requests run; where none does, debts are let
        go as far as somebody can go on."""
        queues: dict[str, deque[tuple[Request, Place]]] = {}
        for request, place in sorted(wanted, key=lambda it: len(it[0].output)):
            queues.setdefault(request.params.client, deque()).append((request, place))
        share, self.spent, self.expected = MASK_STEP_S / max(1, len(queues)), 0.0, 0.0
        back = share if others else max(share, min((self.owed.get(name, 0.0) for name in queues), default=share))
        self.owed = {name: left for name, owed in self.owed.items() if (left := owed - back) > 0}
        held = list[int]()
        while queues:
            client = min(queues, key=lambda name: self.owed.get(name, 0.0))
            request, place = queues[client].popleft()
            left = min(share - self.owed.get(client, 0.0), MASK_STEP_S - self.spent)
            if not place.parse.known(place) and (left <= 0 or not place.parse.work(place, left)):
                held.append(request.id)
            if not queues[client]:
                del queues[client]
        return held

    def affords(self, place: Place, nodes: int) -> bool:
        """Are the masks of so many candidates likely to fit into this step? They are counted then."""
        seconds = place.parse.took * nodes
        fits = self.spent + self.expected + seconds <= MASK_STEP_S
        self.expected += seconds if fits else 0.0
        return fits

    def knows(self, place: Place) -> bool:
        """Is this mask there, or may it be computed now?"""
        free = not (self._guessing and place.parse.client) or self.spent < MASK_STEP_S
        return free or place.parse.known(place)
