"""Work that takes long and waits for its turn between two steps of an engine: one piece a turn, client by client."""

from collections import deque
from collections.abc import Callable


class Turns:
    """For the engine's thread. False while nobody waits."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        """Pieces of each client; the one whose turn is next stands first."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, whose: str, work: Callable[[], None]) -> None:
        self._waiting.setdefault(whose, deque()).append(work)

    def take(self) -> None:
        """Do one piece of work, if there is one; its client is then the last in turn."""
        if not self._waiting:
            return
        whose = next(iter(self._waiting))
        pieces = self._waiting.pop(whose)
        work = pieces.popleft()
        if pieces:
            self._waiting[whose] = pieces
        work()
