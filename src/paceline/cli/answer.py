"""One request followed to its end on the terminal. Drafted and accepted tokens are coloured."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer

from paceline.core.errors import InputError

if TYPE_CHECKING:
    from paceline.core.params import SamplingParams
    from paceline.engine.llm import LLM
    from paceline.engine.outputs import Chunk, Completion

DRAFTED_COLOUR = "green"
TERMINAL_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a text must not send to a terminal; newline and tab are fine."""


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """A finished or interrupted request. `seconds` were spent in the engine; showing the text does not count."""

    result: "Completion"
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return len(self.result.token_ids) / self.seconds if self.seconds else 0.0

    @property
    def interrupted(self) -> bool:
        return self.result.finish_reason == "abort"

    def figures(self) -> dict[str, Any]:
        """For machines."""
        stats = self.result.stats
        return {
            "tokens": len(self.result.token_ids),
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "tau": stats.tau,
            "acceptance_rate": stats.acceptance_rate if stats.drafted else None,
        }

    def line(self) -> str:
        """For people."""
        stats = self.result.stats
        parts = [
            f"{len(self.result.token_ids)} tokens in {self.seconds:.2f} s",
            f"{self.tokens_per_second:.1f} tokens/s",
            f"tau {stats.tau:.2f}",
        ]
        if stats.drafted:
            parts.append(f"{stats.acceptance_rate:.0%} of drafts accepted")
        return ", ".join([*parts, f"seed {self.result.seed}", f"finish: {self.result.finish_reason}"])


def answer(
    llm: "LLM", prompt: Sequence[int], params: "SamplingParams", show: Callable[["Chunk"], None] | None = None
) -> ShownAnswer:
    """Run one prompt; Ctrl-C ends it where it stands. Raises PacelineError when it cannot be served."""
    from paceline.engine.outputs import Follower, completion

    engine, seconds = llm.engine, 0.0
    (request,) = engine.submit(prompt, params.resolve(llm.text.defaults))
    follower = Follower(request, 0)
    with interruptible() as stopped:
        try:
            while request.finish is None:
                started = perf_counter()
                if stopped():
                    engine.abort(request)
                else:
                    engine.step()
                seconds += perf_counter() - started
                chunk = follower.news()
                if chunk and show:
                    show(chunk)
        finally:
            engine.abort(request)
    if request.error:
        raise InputError(request.error)
    return ShownAnswer(completion(request, 0), seconds)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C makes the given function return True, so that no step is torn apart; the second raises
    KeyboardInterrupt. Only the main thread can do that; elsewhere nothing changes."""
    hits: list[int] = []

    def note(signum: int, frame: object) -> None:
        hits.append(signum)
        if len(hits) > 1:
            raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGINT, note)
    except ValueError:
        yield lambda: False
        return
    try:
        yield lambda: bool(hits)
    finally:
        signal.signal(signal.SIGINT, before)


def measure(llm: "LLM") -> None:
    """After an answer, measure what steps cost on this machine, unless an earlier start has: before it that would have
    kept the first token waiting. Ctrl-C leaves it for another time."""
    from paceline.engine.start import measure_late, unmeasured

    if unmeasured(llm.engine, llm.options):
        note("measuring this machine for the next start, once; Ctrl-C leaves it for later")
        with suppress(KeyboardInterrupt):
            measure_late(llm.engine, llm.options)


class Screen:
    """Standard output as a place for answers: coloured and cleaned of control characters on a terminal, plain
    otherwise."""

    def __init__(self, color: bool = True) -> None:
        self.terminal = sys.stdout.isatty()
        self.color = color and self.terminal and not os.environ.get("NO_COLOR")

    def show(self, chunk: "Chunk") -> None:
        """Print what is new."""
        for text, drafted in chunk.pieces:
            self.write(text, drafted is not None)

    def write(self, text: str, drafted: bool = False) -> None:
        if self.terminal:
            text = TERMINAL_CONTROL.sub("", text)
        typer.echo(typer.style(text, fg=DRAFTED_COLOUR) if drafted and self.color else text, nl=False)
        sys.stdout.flush()

    def legend(self) -> str:
        return typer.style("drafted and accepted", fg=DRAFTED_COLOUR) if self.color else ""


def note(text: str) -> None:
    """A remark apart from the answer, on stderr."""
    typer.echo(typer.style(text, dim=True) if sys.stderr.isatty() else text, err=True)
