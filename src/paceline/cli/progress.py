"""The progress of a training, on standard error: a bar where that is a terminal, else a line now and then."""

from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress as Shown
from rich.progress import TextColumn, TimeElapsedColumn

from paceline.train.loop import TrainingProgress

LINE_S = 10.0
"""Seconds between two lines where there is no bar."""


class Bar:
    def __init__(self) -> None:
        self.screen = Console(stderr=True)
        columns = (*Shown.get_default_columns()[:3], TimeElapsedColumn(), TextColumn("{task.fields[note]}"))
        self.bar = Shown(*columns, console=self.screen, disable=not self.screen.is_terminal)
        self.task = self.bar.add_task("training", total=1.0, note="")
        self.said = -LINE_S

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.bar.stop()

    def show_of(self, name: str, now: TrainingProgress) -> None:
        """Show one of several trainings."""
        self.show(now, f"{name}: ")

    def show(self, now: TrainingProgress, whose: str = "") -> None:
        rates = " ".join(f"{rate:.2f}" for rate in now.conditional)
        note = f"{whose}step {now.step}, loss {now.loss:.3f}, accuracy {rates}, simulated tau {now.tau:.2f}"
        self.bar.update(self.task, completed=now.share, note=note)
        if not self.screen.is_terminal and monotonic() - self.said >= LINE_S:
            self.said = monotonic()
            self.screen.print(
                f"{now.share:4.0%} {note}, {now.tokens:,} tokens, {now.seconds:.0f} s", highlight=False, soft_wrap=True
            )
