"""What a benchmark says: rows, the machine's limit, and everything needed to repeat it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from paceline.bench.files import host, number, save_json
from paceline.bench.harness import BenchCell, BenchRun
from paceline.bench.limit import Limit

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One method at one batch size and temperature; medians over the repeats.

    `speedup` compares tokens_per_second with the row of `none`; `speedup_min` and `speedup_max` do so repeat by repeat.
    `identical` is None for rules that keep the distribution but not the text.
    """

    method: str
    verifier: str
    batch: int
    temperature: float
    tokens: int
    seconds: float
    tokens_per_second: float
    decode_tokens_per_second: float | None
    tau: float
    acceptance_rate: float | None
    speedup: float
    speedup_min: float
    speedup_max: float
    identical: bool | None
    near_ties: int | None

    @classmethod
    def of(
        cls,
        cell: BenchCell,
        verifier: str,
        runs: Sequence[BenchRun],
        plain: Sequence[BenchRun],
        identical: bool | None,
        near_ties: int | None,
    ) -> "BenchRow":
        """From the runs of one cell and of `none` at the same batch size and temperature, repeat by repeat."""
        ratios = [run.speed / base.speed for run, base in zip(runs, plain)]
        decode = [run.decode_speed for run in runs if run.decode_speed is not None]
        drafted, passes = sum(run.drafted for run in runs), sum(run.passes for run in runs)
        return cls(
            cell.method,
            verifier,
            cell.batch,
            cell.temperature,
            int(median(run.tokens for run in runs)),
            median(run.seconds for run in runs),
            median(run.speed for run in runs),
            median(decode) if decode else None,
            sum(run.tokens for run in runs) / passes,
            sum(run.accepted for run in runs) / drafted if drafted else None,
            median(run.speed for run in runs) / median(run.speed for run in plain),
            min(ratios),
            max(ratios),
            identical,
            near_ties,
        )


@dataclass(slots=True)
class BenchReport:
    rows: list[BenchRow]
    limit: Limit
    guarantee: str
    """Guarantee of the verifier: `text` (equal to plain decoding's), `distribution`, or `none`."""
    machine: dict[str, Any]
    versions: dict[str, str]
    args: dict[str, Any]
    differences: list[dict[str, Any]] = field(default_factory=list)
    """Where texts differed from plain decoding's, one entry per request and method."""
    warnings: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """No row differs from plain decoding where the verifier says that it must not."""
        return self.guarantee == "none" or all(row.identical is not False for row in self.rows)

    def write(self, path: Path) -> None:
        """As JSON. Raises InputError when the file cannot be written."""
        save_json(path, asdict(self))

    def table(self) -> "Table":
        """For a terminal."""
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
        for name in BENCH_COLUMNS:
            left = name in ("drafter", "identical")
            table.add_column(name, justify="left" if left else "right", no_wrap=True)
        for row in self.rows:
            table.add_row(*cells(row, self.guarantee))
        return table

    def summary(self) -> str:
        """The limit in one line."""
        limit = self.limit
        return (
            f"Plain step {limit.step_ms:.2f} ms; reading {limit.weight_bytes / 1e6:,.1f} MB of weights at "
            f"{limit.read_gb_s:.1f} GB/s takes {limit.floor_ms:.2f} ms: {limit.fraction_of_limit:.0%} of the limit, "
            f"host share {limit.host_share:.0%}."
        )


BENCH_COLUMNS = ("drafter", "batch", "T", "tokens/s", "decode/s", "tau", "kept", "ratio", "range", "identical", "ties")
"""Narrow enough for 80 characters; JSON has the rest."""


def cells(row: BenchRow, guarantee: str) -> list[str]:
    """One line of the table, in the order of BENCH_COLUMNS."""
    return [
        row.method,
        str(row.batch),
        f"{row.temperature:g}",
        f"{row.tokens_per_second:.1f}",
        number(row.decode_tokens_per_second, ".1f"),
        f"{row.tau:.2f}",
        number(row.acceptance_rate, ".0%"),
        f"{row.speedup:.2f}x",
        f"{row.speedup_min:.2f}-{row.speedup_max:.2f}",
        guarantee if row.identical is None else "yes" if row.identical else "NO",
        number(row.near_ties, "d"),
    ]


def machine(device: str) -> dict[str, Any]:
    """The machine that was measured."""
    import torch

    return {
        **host(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
    }
