"""Hand-over of a running request from one engine to another (Llumnix, OSDI 2024, section 4.2), as pure state machines:
no engine, no clock and no message is in here. The K/V of sealed blocks never changes, so it is copied while the request
goes on; it stops for the last few blocks alone.

    source        Peek ... Peek        Park                      [Resume, where the destination refuses]
    destination          Reserve, Settle ... Settle      Settle of the parked request
    Handover      reserving ─▶ copying ─▶ parking ─▶ settling ─▶ moved
                      └───────────┴──────────┴──▶ releasing ─▶ stayed | ended

`Handover` is what the one who moves a request knows; `Reservations` is what a destination knows.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Literal

from paceline.core.errors import CapacityError, InputError

MOST_STAGES = 3
"""Copies before the last one."""
LAST_BLOCKS = 16
"""Blocks that may be left to copy while the request stands still."""
RESERVATION_S = 10.0
"""Seconds after which a reservation that nobody speaks of is given back."""
MOST_RESERVATION_S = 3600.0
"""Longest time limit of a reservation."""
MOST_SETTLED = 1024
"""Reservations that are remembered after their end, so that a question asked twice gets the same answer."""

HandoverState = Literal["reserving", "copying", "parking", "settling", "releasing", "moved", "stayed", "ended"]
HandoverAction = Literal["reserve", "copy", "park", "settle", "release", "restore", "none"]
HandoverEvent = Literal["done", "refused", "lost", "gone"]
"""What became of the action: done; refused, and nothing has changed; lost: no answer came, so it may have been done or
not; gone: the request has ended at the source (or, of the destination, it is known to be dead)."""
FINAL_STATES = ("moved", "stayed", "ended")


@dataclass(frozen=True, slots=True)
class Handover:
    """A hand-over under way. `step` gives the next state and what to do for it; each action gets one event."""

    state: HandoverState = "reserving"
    copied: int = 0
    """Blocks that the destination has."""
    stage: int = 0
    restores: bool = False
    """The request was taken out of the source, which gets it back."""
    ended: bool = False
    """Has the request ended at the source?"""

    @property
    def action(self) -> HandoverAction:
        """What is to be done now. `copy`: Peek from block `copied` and Settle the piece; `park`: Park from there;
        `settle`: Settle the parked bytes, as often as no answer comes; `restore`: Resume them at the source, then
        release; `release`: Settle nothing."""
        if self.state == "releasing":
            return "restore" if self.restores else "release"
        actions: dict[str, HandoverAction] = {
            "reserving": "reserve", "copying": "copy", "parking": "park", "settling": "settle"
        }  # fmt: skip
        return actions.get(self.state, "none")

    def step(self, event: HandoverEvent, blocks: int = 0, left: int = 0) -> "Handover":
        """After an event. `blocks`: that a copy brought; `left`: sealed blocks that the source has beyond them.

        Where Settle of the parked request is lost it is asked again: a destination answers twice alike. Only a
        destination that is dead (`gone`) or refuses gives the request back to the source, so it never runs twice."""
        match self.state, event:
            case "reserving", "done":
                return replace(self, state="copying")
            case "reserving", "refused":
                return replace(self, state="stayed")
            case "copying", "done":
                copied, stage = self.copied + blocks, self.stage + 1
                more = left > LAST_BLOCKS and stage < MOST_STAGES
                if left > LAST_BLOCKS and not more:
                    return replace(self, state="releasing", copied=copied, stage=stage)
                return replace(self, state="copying" if more else "parking", copied=copied, stage=stage)
            case "parking", "done":
                return replace(self, state="settling")
            case "parking", "lost":
                return self  # parking is between us and the source, which answers or is dead
            case "settling", "done":
                return replace(self, state="moved")
            case "settling", "lost":
                return self
            case "settling", "refused" | "gone":
                return replace(self, state="releasing", restores=True)
            case "releasing", _ if self.restores:
                return self if event == "lost" else replace(self, restores=False, ended=event == "gone")
            case "releasing", "lost":
                return replace(self, state="ended" if self.ended else "stayed")  # its time limit gives it back
            case "releasing", _:
                return replace(self, state="ended" if self.ended else "stayed")
            case (("copying" | "parking"), "gone"):
                return replace(self, state="releasing", ended=True)
            case (("reserving" | "copying" | "parking"), _):
                return replace(self, state="releasing")
        raise InputError(f"A hand-over that is {self.state} knows no event {event!r}.")


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reservation: `blocks` are held, `filled` of them have their K/V, until the time `until`."""

    blocks: int
    filled: int
    until: float
    seconds: float


class Reservations:
    """A destination's table. `now` is in seconds of one clock. Every call on one that is not known, or has run out,
    raises InputError: a message that comes too late changes nothing."""

    def __init__(self) -> None:
        self.open: dict[int, Reserved] = {}
        self.settled: OrderedDict[int, int] = OrderedDict()
        """{reservation: the request that it became}"""
        self._next = 0

    def reserve(self, blocks: int, seconds: float, spare: int, room: int, now: float) -> int:
        """The number of a new one. CapacityError unless `spare` of `room` blocks are left next to it."""
        if blocks < 1 or not 0 < seconds <= MOST_RESERVATION_S or spare < 0:
            raise InputError(
                f"A reservation of {blocks} blocks for {seconds} s that spares {spare} cannot be made: give at least 1 "
                f"block, a number of seconds above 0 and at most {MOST_RESERVATION_S:g}, and 0 or more to spare."
            )
        if blocks + spare > room:
            raise CapacityError(
                f"{blocks} blocks cannot be reserved: {room} are free and {spare} are to stay so; ask another engine."
            )
        self._next += 1
        self.open[self._next] = Reserved(blocks, 0, now + seconds, seconds)
        return self._next

    def get(self, number: int, now: float) -> Reserved:
        """One that is open."""
        found = self.open.get(number)
        if found is None or now > found.until:
            raise InputError(f"There is no reservation {number} here, or its time has run out; reserve again.")
        return found

    def fill(self, number: int, first: int, count: int, now: float) -> Reserved:
        """Blocks first .. first + count have come; its time begins again. What is there already may come again."""
        found = self.get(number, now)
        if not 0 <= first <= found.filled or count < 0:
            raise InputError(f"Reservation {number} has {found.filled} blocks, but these begin with block {first}.")
        if first + count > found.blocks:
            raise CapacityError(f"Reservation {number} is of {found.blocks} blocks, but {first + count} have come.")
        self.open[number] = replace(found, filled=max(found.filled, first + count), until=now + found.seconds)
        return self.open[number]

    def settle(self, number: int, request: int) -> None:
        """Note that a reservation has become a request with this id."""
        del self.open[number]
        self.settled[number] = request
        while len(self.settled) > MOST_SETTLED:
            self.settled.popitem(last=False)

    def release(self, number: int) -> None:
        """Given back; nothing when it is not open."""
        self.open.pop(number, None)

    def expired(self, now: float) -> list[int]:
        """Reservations whose time has run out; they are open until they are released."""
        return [number for number, found in self.open.items() if now > found.until]
