"""Requests that wait for their branches, and branches that wait to be joined: whose K/V is held, though no step
computes with it. Numbers only; `Desk` owns it, in the engine and in the simulator's twin."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from paceline.cache.cache import Cache
from paceline.cache.lease import Lease
from paceline.cache.txn import Move
from paceline.core.errors import CapacityError, InputError
from paceline.core.joined import Layout
from paceline.core.request import Request


@dataclass(slots=True)
class BranchFamily:
    """A request that waits, and its branches by id."""

    parent: Request
    live: dict[int, Request] = field(default_factory=dict)
    done: dict[int, Request] = field(default_factory=dict)
    """Branches that ended, with K/V for all of their tokens unless it was given up for other requests."""

    def named(self, numbers: Sequence[int]) -> list[Request]:
        """The branches of these ids. InputError unless each has ended, and none comes twice."""
        if not numbers:
            raise InputError("A join names at least one branch.")
        if len(set(numbers)) < len(numbers):
            raise InputError(f"The branches {[*numbers]} name one twice.")
        for number in numbers:
            if number in self.live:
                raise InputError(f"Branch {number} of request {self.parent.id} has not ended; step until it has.")
            if number not in self.done:
                raise InputError(f"{number} is not a branch of request {self.parent.id}, or was aborted.")
        return [self.done[number] for number in numbers]


class Branches(dict[int, BranchFamily]):
    """Families by the id of the request that waits."""

    def add(self, parent: Request, child: Request) -> None:
        """One more branch of a request, which waits from now on."""
        self.setdefault(parent.id, BranchFamily(parent)).live[child.id] = child

    def of(self, request: Request) -> BranchFamily | None:
        """The family of a request, if it is a branch."""
        return self.get(request.parent)

    def completed(self, request: Request) -> None:
        """A branch has ended, and its K/V is there."""
        family = self[request.parent]
        family.done[request.id] = family.live.pop(request.id)

    def left(self, request: Request) -> Request | None:
        """Note that a branch is gone. Returns its parent if that has no other branch."""
        family = self.get(request.parent)
        if family is None or family.live.pop(request.id, None) is None or family.live or family.done:
            return None
        return self.pop(request.parent).parent

    def holding(self) -> Iterator[Request]:
        """Requests that hold K/V that may be given up: the latest family first; within a family the parent first,
        because its branches share its K/V, then the branches that ended, the latest first."""
        for family in reversed(self.values()):
            for request in (family.parent, *reversed(family.done.values())):
                if request.lease is not None:
                    yield request


def splice(cache: Cache, branches: Sequence[Request], layout: Layout) -> tuple[Lease | None, list[Move]]:
    """A lease on the K/V of branches, one behind the other, and the copies that make it so. It ends before the first
    branch whose K/V is not there, or for which there is no room: those rows will be computed again."""
    first = branches[0].lease
    if not isinstance(first, Lease):
        return None, []
    lease, moves = cache.fork(first), list[Move]()
    cache.rewind(lease, min(lease.length, len(branches[0].tokens)))
    lease.layout = layout
    try:
        for number, branch in enumerate(branches):
            if not isinstance(branch.lease, Lease):
                break
            start = branch.common if number else lease.length
            if start < len(branch.tokens):
                moves += cache.graft(lease, branch.lease, start, len(branch.tokens))
    except CapacityError:
        pass
    return lease, moves
