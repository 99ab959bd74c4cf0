"""Passes of few rows that are captured once and replayed: the host then starts one graph, not a thousand kernels.

A graph serves a *bucket*: all passes up to a number of rows, over tables up to a number of blocks, with the same taps.
Its input is one array of whole numbers, which stays where it is on the device and is filled in one transfer. Rows that
a pass lacks have slot -1, belong to no request, and are computed in vain.
"""

import logging
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from paceline.core.program import WHOLE
from paceline.core.rows import Out, Rows, Segment

log = logging.getLogger("paceline")
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
MIN_TABLE_BLOCKS = 64
"""Fewest blocks of a bucket's tables; the others are powers of two."""
MAX_GRAPHS = 64
"""Most graphs that are kept; passes of more kinds run kernel by kernel."""
Replay = Callable[[], None]


class GraphDevice(Protocol):
    """Device that captures passes."""

    def capture(self, call: Callable[[], Out]) -> tuple[Out, Replay]:
        """Run a call: its result, and what computes it again, in the same memory. It raises whatever went wrong."""


class CudaGraphs:
    """CUDA graphs, whose memory is one pool: one of them runs at a time."""

    def __init__(self) -> None:
        self.pool: Any = None

    def capture(self, call: Callable[[], Out]) -> tuple[Out, Replay]:
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(here)
        with torch.cuda.stream(side):
            call()  # kernels are compiled, and libraries take their memory, before anything is recorded
        here.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            out = call()
        self.pool = graph.pool() if self.pool is None else self.pool
        graph.replay()
        return out, graph.replay


class Repeating:
    """Runs a call again: for Triton's interpreter, which records nothing."""

    def capture(self, call: Callable[[], Out]) -> tuple[Out, Replay]:
        out = call()

        def replay() -> None:
            again = call()
            out.logits.copy_(again.logits)
            for name, tap in again.taps.items():
                out.taps[name].copy_(tap)

        return out, replay


class StaticRows(Rows):
    """The rows of a bucket. Its tensors stay where they are; `fill` changes their numbers."""

    def __init__(self, rows: int, width: int, taps: tuple[str, ...], device: torch.device) -> None:
        super().__init__(array("q"), width, [Segment(i, 1, 0, 0) for i in range(rows)], device, taps=taps)
        sizes = [*[rows] * 4, rows * width, rows, rows * 4]
        self.memory = torch.zeros(sum(sizes), dtype=torch.int64, device=device)
        *tensors, bounds = torch.split(self.memory, sizes)
        self.__dict__["_tensors"], self.__dict__["bounds"] = tensors, bounds.view(rows, 4)

    @property
    def wanted(self) -> int:
        return self.count

    def fill(self, rows: Rows) -> None:
        """Take the numbers of a pass, in one transfer."""
        count, missing, numbers, flat = rows.count, self.count - rows.count, rows.numbers, array("q")
        for column, filler in enumerate((0, 0, -1, 0)):
            flat.extend(numbers[column * count : (column + 1) * count])
            flat.extend(array("q", [filler]) * missing)
        narrow, tables = rows.width, 4 * count
        more = array("q", [0]) * (self.width - narrow)
        for request in range(len(rows.segments)):
            flat.extend(numbers[tables + request * narrow : tables + (request + 1) * narrow])
            flat.extend(more)
        flat.extend(array("q", [0]) * ((self.count - len(rows.segments)) * self.width))
        want = numbers[tables + len(rows.segments) * narrow :]
        flat.extend(want)
        flat.extend(array("q", [0]) * (self.count - len(want)))
        for segment in rows.segments:
            flat.extend(segment[:4])
        flat.extend(array("q", [0]) * (4 * (self.count - len(rows.segments))))
        self.memory.copy_(torch.frombuffer(flat, dtype=torch.int64))
        if rows.tokens is not None:
            self.token[:count].copy_(rows.tokens)


@dataclass(slots=True)
class Captured:
    """A bucket's graph: what it reads, what it gives, and how it runs."""

    rows: StaticRows
    out: Out
    replay: Replay


@dataclass(slots=True)
class GraphCounts:
    """Counts of the passes of a decoder on a GPU."""

    captured: int = 0
    replayed: int = 0
    eager: int = 0
    failed: str = ""
    """Why no pass is captured any more."""


@dataclass(slots=True)
class Graphs:
    """The captured passes of one decoder."""

    device: GraphDevice
    place: torch.device
    kept: dict[tuple[int, int, tuple[str, ...]], Captured] = field(default_factory=dict)
    counts: GraphCounts = field(default_factory=GraphCounts)

    def forget(self) -> None:
        """Drop all graphs: the memory that they read is gone."""
        self.kept.clear()

    def forward(self, rows: Rows, call: Callable[[Rows], Out]) -> Out:
        """`call`, which runs a pass kernel by kernel, by a graph where there is or can be one."""
        kind = self.kind(rows)
        if kind is None:
            self.counts.eager += 1
            return call(rows)
        if (found := self.kept.get(kind)) is not None:
            found.rows.fill(rows)
            found.replay()
            self.counts.replayed += 1
        else:
            static = StaticRows(*kind, self.place)
            static.fill(rows)
            try:
                out, replay = self.device.capture(lambda: call(static))
            except Exception as error:  # of memory, of a driver, of a kernel that cannot be recorded
                self.give_up(error)
                return call(rows)
            found = self.kept[kind] = Captured(static, out, replay)
            self.counts.captured += 1
        taps = {name: tap[: rows.count].clone() for name, tap in found.out.taps.items()}
        return Out(found.out.logits.index_select(0, found.rows.want[: rows.wanted]), taps)

    def give_up(self, error: Exception) -> None:
        """Run everything kernel by kernel from now on."""
        self.forget()
        self.counts.failed = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        self.counts.eager += 1
        log.warning(
            "A pass could not be captured as a graph (%s); passes run kernel by kernel from now on, slower.",
            self.counts.failed,
        )

    def kind(self, rows: Rows) -> tuple[int, int, tuple[str, ...]] | None:
        """The bucket of a pass; None where it cannot be captured."""
        bucket = next((size for size in ROW_BUCKETS if size >= rows.count), None)
        own = any(segment.shift or segment.hidden or segment.adapter for segment in rows.segments)
        if bucket is None or own or rows.program is not WHOLE or rows.hidden is not None or self.counts.failed:
            return None
        if rows.wanted > bucket or not rows.wanted:
            return None
        width = MIN_TABLE_BLOCKS
        while width < rows.width:
            width *= 2
        kind = (bucket, width, rows.taps)
        return kind if kind in self.kept or len(self.kept) < MAX_GRAPHS else None
