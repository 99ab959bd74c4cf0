"""Masks of grammars before a step, within what their clients may take of it. A mask of an ambiguous grammar takes a
fifth of a second of the engine's thread: what a client spends beyond its share it pays back, and its requests with a
grammar sit out of steps meanwhile. A mask follows from tokens that are committed, so a text does not depend on when it
was computed. Requests that name no client are a program's own, and are not held up."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from paceline.core.request import Request
from paceline.sample.grammar import Place

EXTRA_STEP_S = 0.02
"""Seconds of a step of several clients that all their masks may take, or all drafts that they ask for by name."""
ALONE_TIMES = 10
"""How many times as long they may take while one client is there."""
CHEAP_SHARE = 1 / 8
"""Part of it that a mask may take which is cheap; and that each step pays back at least."""


class ClientDebts:
    """Seconds that each client took beyond its share of each step."""

    def __init__(self) -> None:
        self.owed: dict[str, float] = {}
        self.share = 0.0

    def begin(self, share: float) -> None:
        """Begin a step, of which each client may take `share` seconds."""
        self.share = share
        self.owed = {name: left for name, owed in self.owed.items() if (left := owed - share) > 0}

    def left(self, client: str) -> float:
        """Seconds that are left of a client's share."""
        return self.share - self.owed.get(client, 0.0)

    def charge(self, client: str, seconds: float) -> None:
        self.owed[client] = self.owed.get(client, 0.0) + seconds


class MaskTurns:
    """What each client's masks have taken of the engine's thread. One thread owns it."""

    def __init__(self) -> None:
        self.debts = ClientDebts()
        self.most = EXTRA_STEP_S
        """Seconds that all masks of this step may take."""
        self.spent = self.expected = 0.0
        """Seconds that they have taken, and that those of drafts are expected to take."""
        self.beyond = self.behind = 0.0
        """Seconds that slow masks took beyond what they may of this step, and of the steps before: many clients that
        each owe nothing yet must not follow one another. Until that is paid back, only masks that are cheap are
        computed. Each step pays back what is left of it, and a little at least, however many cheap masks fill it."""
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
            self.debts.charge(client, seconds)
            before, self.spent = self.spent, self.spent + seconds
            if seconds > self.most * CHEAP_SHARE:
                self.beyond += max(0.0, self.spent - max(before, self.most))

    def held(self, wanted: Sequence[tuple[Request, Place]], alone: bool) -> list[int]:
        """Compute masks, and name the requests that must wait for theirs: the client that owes least comes first, and
        of its requests the one with the shortest output. `alone`: all running requests belong to one client."""
        queues: dict[str, deque[tuple[Request, Place]]] = {}
        for request, place in sorted(wanted, key=lambda it: len(it[0].output)):
            queues.setdefault(request.params.client, deque()).append((request, place))
        back = max(self.most - self.spent, self.most * CHEAP_SHARE)
        self.behind = max(0.0, self.behind + self.beyond - back)
        self.most, self.spent = EXTRA_STEP_S * (ALONE_TIMES if alone else 1), 0.0
        self.expected = self.beyond = 0.0
        self.debts.begin(self.most / max(1, len(queues)))
        held = list[int]()
        while queues:
            client = max(queues, key=lambda name: (self.debts.left(name), -queues[name][0][1].parse.took))
            request, place = queues[client].popleft()
            left = min(self.debts.left(client), self.most - self.spent)
            slow = self.behind > 0 and place.parse.took > self.most * CHEAP_SHARE
            if not place.parse.known(place) and (left <= 0 or slow or not place.parse.work(place, left)):
                held.append(request.id)
            if not queues[client]:
                del queues[client]
        return held

    def affords(self, place: Place, nodes: int) -> bool:
        """Are the masks of `nodes` candidates likely to fit into this step? They are counted then."""
        seconds = place.parse.took * nodes
        fits = self.spent + self.expected + seconds <= self.most
        self.expected += seconds if fits else 0.0
        return fits

    def room(self) -> bool:
        """Is there time left for masks in this step?"""
        return self.spent < self.most

    def ready(self, place: Place) -> None:
        """Compute the mask there, as far as there is time."""
        if self.room() and not place.parse.known(place):
            place.parse.work(place, self.most - self.spent)

    def knows(self, place: Place) -> bool:
        """Is this mask there, or may it be computed now?"""
        free = not (self._guessing and place.parse.client) or self.spent < self.most
        return free or place.parse.known(place)
