"""What an engine's rounds were, for comparisons of twins."""

from typing import Any

from paceline.core.plan import Note
from paceline.core.result import Round
from paceline.engine.recorder import Recorder


class Rounds(Recorder):
    """The rounds of every item of every step, and what merged drafters said of their parts."""

    def __init__(self) -> None:
        self.each: list[list[Round]] = []
        self.found: list[Note] = []

    def ran(self, results: Any, found: Any, work: Any, parts: Any, times: Any) -> None:
        self.each += [result.rounds for result in results]
        self.found += found
