"""The door of an `AsyncLLM`: it decides what enters, and learns what became of it."""

from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from paceline.core.params import SamplingParams
from paceline.core.request import Request

Wishes = list[tuple[list[int], SamplingParams]]
"""Prompts (token ids), each with its parameters."""


@dataclass(slots=True)
class Trip:
    """One sample's way through the engine, in seconds of `time.monotonic`; None: not reached."""

    request: Request
    arrived: float
    first: float | None = None
    """Time at which the first token was known."""
    ended: float | None = None

    @property
    def started(self) -> float | None:
        """Time at which the sample left the queue."""
        return self.request.admitted

    def look(self) -> None:
        """Note what has happened since the last step. For the engine's thread."""
        request, now = self.request, monotonic()
        if self.first is None and request.output:
            self.first = now
        if self.ended is None and request.finish is not None:
            self.ended = now


class DoorTicket(Protocol):
    """An admitted batch. Called in the event loop: `refused` once, or `ended` once for each sample."""

    def refused(self) -> None:
        """The engine could not take the batch."""

    def ended(self, trip: Trip) -> None:
        """A sample is finished; without a finish reason, the engine thread died."""


class Door(Protocol):
    """Stands before what is submitted in the context where it is set as `DOOR`."""

    def admit(self, batch: Wishes) -> tuple[Wishes, DoorTicket]:
        """What enters in place of `batch`; an exception keeps it out and goes to the caller. Called in its context."""


DOOR: ContextVar[Door | None] = ContextVar("paceline_door", default=None)
