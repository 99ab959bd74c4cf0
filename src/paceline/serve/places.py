"""Connections by the address that they come from: who goes when there are too many. One address has a share, and where
there is no room for a new connection, the address with most idle ones loses one, so that no neighbour does."""

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Places(Generic[T]):
    """Places of connections. Each operation takes the same time for any number of connections and addresses. For one
    thread."""

    def __init__(self, most: int, share: int) -> None:
        """`most` connections in all, `share` of one address."""
        self.most, self.share = most, share
        self._owners: dict[T, str] = {}
        self._held = Counter[str]()
        self._idle: dict[str, dict[T, None]] = {}
        """By address, connections that bring no whole request, the one that has waited longest first."""
        self._ranks: list[dict[str, None]] = [{}]
        """At place n, addresses with n idle connections; the last one is never empty, but for the first."""

    def __len__(self) -> int:
        return len(self._owners)

    def enter(self, owner: str, one: T) -> None:
        """A new connection, which is idle."""
        self._owners[one] = owner
        self._held[owner] += 1
        self.rest(one)

    def leave(self, one: T) -> None:
        """Drop a connection that has gone, or will go at once. Nothing happens for one that has left."""
        self.work(one)
        if (owner := self._owners.pop(one, None)) is not None:
            self._held[owner] -= 1
            if not self._held[owner]:
                del self._held[owner]

    def rest(self, one: T) -> None:
        """Note that a connection waits for a request from now on, as the last of its address."""
        if (owner := self._owners.get(one)) is not None:
            idle = self._idle.setdefault(owner, {})
            before = len(idle)
            idle.pop(one, None)
            idle[one] = None
            self._move(owner, before, len(idle))

    def work(self, one: T) -> None:
        """Note that a connection has brought a request."""
        owner = self._owners.get(one, "")
        if one in (idle := self._idle.get(owner, {})):
            del idle[one]
            self._move(owner, len(idle) + 1, len(idle))
            if not idle:
                del self._idle[owner]

    def idle(self, one: T) -> bool:
        return one in self._idle.get(self._owners.get(one, ""), ())

    def too_many(self, new: T) -> T | None:
        """Which connection has to go now that `new` is there: one of the same address beyond its share, else one of the
        address with most idle ones where there are too many. It is the one that has waited longest, or `new`, where no
        other waits; None if all have room."""
        owner = self._owners[new]
        if self._held[owner] <= self.share:
            if len(self) <= self.most:
                return None
            owner = next(iter(self._ranks[-1]), owner)
        return next((each for each in self._idle.get(owner, ()) if each != new), new)

    def _move(self, owner: str, before: int, after: int) -> None:
        """An address has another number of idle connections."""
        if before == after:
            return
        self._ranks[before].pop(owner, None)
        if after == len(self._ranks):
            self._ranks.append({})
        if after:
            self._ranks[after][owner] = None
        while len(self._ranks) > 1 and not self._ranks[-1]:
            self._ranks.pop()
