from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from paceline.bench.files import cpu_name
from paceline.bench.harness import BenchCell, BenchRun
from paceline.bench.limit import Limit
from paceline.bench.report import BenchReport, BenchRow, cells
from paceline.core.errors import InputError


def run(seconds: float, tokens: int = 100, **more: int) -> BenchRun:
    return BenchRun(seconds=seconds, tokens=tokens, passes=more.pop("passes", tokens), **more)


CELL = BenchCell("ngram", 8, 0.5)
PLAIN = [run(10), run(8), run(20)]
FAST = [run(5, passes=50, drafted=80, accepted=40), run(5, passes=50, drafted=80, accepted=40), run(4, passes=50)]
ROW = BenchRow.of(CELL, "exact", FAST, PLAIN, True, 2)
LIMIT = Limit(100_000_000, 20.0, 5.0, 10.0, 0.5, 0.1)


def report(*rows: BenchRow, guarantee: str = "text") -> BenchReport:
    return BenchReport(list(rows), LIMIT, guarantee, {}, {}, {})


def test_a_row_is_made_of_medians_and_paired_ratios() -> None:
    assert (ROW.method, ROW.verifier, ROW.batch, ROW.temperature) == ("ngram", "exact", 8, 0.5)
    assert (ROW.tokens, ROW.seconds, ROW.tokens_per_second) == (100, 5, 20)
    assert ROW.tau == 2 and ROW.acceptance_rate == 0.5 and ROW.decode_tokens_per_second is None
    assert ROW.speedup == 2 and (ROW.speedup_min, ROW.speedup_max) == (1.6, 5)


def test_table_fits_a_terminal() -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(report(ROW).table())
    shown = console.export_text()
    assert "…" not in shown and max(map(len, shown.splitlines())) <= 80
    assert "2.00x" in shown and "1.60-5.00" in shown


@pytest.mark.parametrize(("identical", "guarantee", "word"), [(True, "text", "yes"), (False, "text", "NO"), (None, "distribution", "distribution")])  # fmt: skip  # noqa: E501
def test_the_word_for_identical(identical: bool | None, guarantee: str, word: str) -> None:
    assert cells(replace(ROW, identical=identical), guarantee)[-2] == word


def test_passed() -> None:
    assert report(ROW, replace(ROW, identical=None)).passed
    assert not report(ROW, replace(ROW, identical=False)).passed
    assert report(replace(ROW, identical=False), guarantee="none").passed


def test_summary_names_the_limit() -> None:
    assert report().summary() == (
        "Plain step 10.00 ms; reading 100.0 MB of weights at 20.0 GB/s takes 5.00 ms: 50% of the limit, host share 10%."
    )


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        report(ROW).write(tmp_path / "absent" / "out.json")


def test_cpu_name() -> None:
    assert cpu_name()
