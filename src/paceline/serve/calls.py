"""One HTTP request on its way: its client, the cost of its samples, the reason for an early end."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from paceline.core.params import SamplingParams
from paceline.core.request import SpecStats
from paceline.engine.door import DoorTicket, Trip, Wishes
from paceline.engine.totals import summed
from paceline.serve.errors import ApiError

if TYPE_CHECKING:
    from paceline.serve.admission import Gate


@dataclass(eq=False)
class HttpCall:
    """An HTTP request, the door before what it submits, and the ticket for it. `closed` is called once, when both the
    answer is out and its last sample has ended."""

    id: str
    method: str
    path: str
    gate: "Gate"
    closed: Callable[["HttpCall"], None]
    arrived: float = field(default_factory=monotonic)
    answered: float | None = None
    status: int | None = None
    key: str = ""
    """Which API key it came with, for order fair; empty where anyone may call."""
    owner: str = ""
    """Client that the shares are counted for: the key, else the address."""
    tenant: str = ""
    """Tenant whose texts its samples may share; empty: all of them."""
    operator: bool = False
    """Did the request come with an operator's key?"""
    returns: int | None = None
    """Tokens of its prompt that come back, as the client says."""
    gone: bool = False
    """The client left before the answer was complete."""
    trips: list[Trip] = field(default_factory=list)
    """The samples that have ended."""
    open: int = 0
    """Samples in the engine."""
    complete: float | None = None
    """When the last of its samples ended; None: some are in the engine, or none has been."""
    decode: Callable[[list[int]], str] | None = None
    """Token ids to text, of the model that it was for."""
    ends: list[Callable[[], None]] = field(default_factory=list)
    """Called once, when both the answer is out and its last sample has ended."""
    span: Any = None
    """Its OpenTelemetry span, when traces are sent."""
    clock: asyncio.Timeout | None = None
    reason: ApiError | None = None
    """Error with which the call is ended early."""
    held: object = None
    """The compiled grammar, kept alive until the engine looks for it."""
    fault: ApiError | None = None
    """Error message that the client received."""

    def stop(self, reason: ApiError) -> None:
        """End it now; the client receives the reason."""
        if self.clock is not None and self.answered is None and self.reason is None:
            self.reason = reason
            self.clock.reschedule(asyncio.get_running_loop().time())

    def check_places(self, count: int) -> None:
        """Raise what `admit` would raise now for `count` samples."""
        self.gate.check(count, self.owner)

    def admit(self, batch: Wishes) -> tuple[Wishes, DoorTicket]:
        batch = self.gate.admit(batch, self.owner)
        if self.returns is not None:
            batch = [(ids, replace(params, returns=self.returns)) for ids, params in batch]
        batch = [(ids, replace(params, client=self.owner)) for ids, params in batch]
        if self.key:
            batch = [(ids, replace(params, user=self.key, tenant=self.salted(params))) for ids, params in batch]
        count = sum(params.n for _, params in batch)
        self.open, self.complete = self.open + count, None
        return batch, CallBatch(self, count)

    def salted(self, params: SamplingParams) -> str:
        """The tenant, and within it the request's own salt."""
        return "/".join(filter(None, (self.tenant, params.tenant)))

    def left(self, count: int) -> None:
        self.gate.left(count, self.owner)
        self.open -= count
        self.complete = None if self.open else monotonic()
        self._settle()

    def finished(self) -> None:
        """The answer is out, or will never be."""
        self.answered = monotonic()
        self._settle()

    def _settle(self) -> None:
        if self.answered is not None and not self.open:
            ends, self.ends = self.ends, []
            for end in ends:
                end()
            self.closed(self)

    @property
    def stats(self) -> SpecStats:
        """Speculation of all its samples together."""
        return summed(trip.request.stats for trip in self.trips)


@dataclass(frozen=True)
class CallBatch:
    """What a call has in the engine."""

    call: HttpCall
    count: int

    def refused(self) -> None:
        self.call.left(self.count)

    def ended(self, trip: Trip) -> None:
        self.call.trips.append(trip)
        self.call.gate.seen(trip)
        self.call.left(1)
