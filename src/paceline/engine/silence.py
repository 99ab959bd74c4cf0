"""One line about a drafter that a request names and that drafts nothing: it brings nothing, and the user
should know."""

import logging
from collections.abc import Sequence

from paceline.core.plan import Note

log = logging.getLogger("paceline")
SILENT_PASSES = 48
"""Passes of a drafter without one drafted token, after which the log says so."""


class Silence:
    """Counts of the passes of named drafters until each has drafted or was logged. One entry a drafter."""

    def __init__(self) -> None:
        self._passes: dict[str, tuple[int, int]] = {}
        """Drafter: passes, and those in which it was asked for drafts."""
        self._settled: set[str] = set()

    def heard(self, drafter: str, asked: bool, notes: Sequence[Note], why: Sequence[str]) -> None:
        """Passes of one request. `asked`: it might draft; `why`: reasons of the latest decision of the planner."""
        if drafter in self._settled or not notes:
            return
        if any(sum(note.offered) for note in notes):
            self._settled.add(drafter)
            self._passes.pop(drafter, None)
            return
        passes, times = self._passes.get(drafter, (0, 0))
        passes, times = passes + len(notes), times + len(notes) * asked
        self._passes[drafter] = passes, times
        if passes < SILENT_PASSES:
            return
        self._settled.add(drafter)
        del self._passes[drafter]
        if times:
            reason = f"it was asked in {times} of them and found nothing to guess in these texts"
        else:
            reason = "it was given no rows to draft in" + (f" ({'; '.join(why)})" if why else "")
        log.warning("Drafter %r has drafted nothing in %d passes: %s (said once).", drafter, passes, reason)
