"""`Apart`: what a drafter counts, by tenant."""

from collections.abc import Callable
from typing import Generic, TypeVar

from paceline.core.request import Request

Counts = TypeVar("Counts")
MOST_TENANTS = 8
"""Tenants of whom something is kept; those drafted for longest ago are forgotten."""


class Apart(Generic[Counts]):
    """What is counted over the rounds of requests, for each tenant by itself: nobody sees in the drafts for his texts
    how those for another's were judged."""

    def __init__(self, make: Callable[[], Counts]) -> None:
        """`make`: counts that know nothing yet."""
        self._make, self.kept = make, dict[str, Counts]()

    def of(self, *requests: Request) -> Counts:
        """The counts of the tenant whose requests these are; where they are of several, such as know nothing, and are
        not kept."""
        tenants = {request.extra_key for request in requests}
        if len(tenants) != 1:
            return self._make()
        [tenant] = tenants
        found = self.kept.pop(tenant, None)
        self.kept[tenant] = found = self._make() if found is None else found  # the latest stands last
        while len(self.kept) > MOST_TENANTS:
            del self.kept[next(iter(self.kept))]
        return found
