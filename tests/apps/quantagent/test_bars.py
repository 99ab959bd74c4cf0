"""Files of bars as trading programs and exchanges write them."""

from pathlib import Path

import numpy as np
import pytest

from paceline.apps.quantagent.bars import read_windows

BAR_FILES = {
    "exchange": ("17000000{:02d}000,40.0,41.5,39.0,40.5,1.5,0\n", ""),
    "terminal": ("2024.01.02,10:{:02d},40.0,41.5,39.0,40.5,7\n", ""),
    "portal": ('"01/{:02d}/2024","40.5","40.0","41.5","39.0","1.25M"\n', "Date,Price,Open,High,Low,Vol.\n"),
}


@pytest.mark.parametrize("name", BAR_FILES)
def test_bars_without_headings_or_with_others(tmp_path: Path, name: str) -> None:
    row, head = BAR_FILES[name]
    path = tmp_path / "bars.csv"
    path.write_text(head + "".join(row.format(number) for number in range(10, 30)))
    (bars,) = read_windows(path).values()
    assert len(bars) == len(set(bars.time)) == 20
    for column, wanted in ((bars.open, 40.0), (bars.high, 41.5), (bars.low, 39.0), (bars.close, 40.5)):
        np.testing.assert_array_equal(column, wanted)


def test_numbers_that_are_no_bars_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text("".join(f"2024-01-{day},40,39,41,40.5\n" for day in range(10, 30)))
    with pytest.raises(ValueError, match="has no column open"):
        read_windows(path)
