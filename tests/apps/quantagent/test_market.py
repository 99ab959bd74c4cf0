"""Real bars, where the shared data is there: files read, indicators equal TA-Lib's, lines cross no bar."""

import os
from pathlib import Path

import numpy as np
import pytest

from paceline.apps.quantagent.bars import read_windows
from paceline.apps.quantagent.cases import LOOKBACK, QUANT_HORIZON, cases
from paceline.apps.quantagent.trend import QUANT_TOLERANCE, trend

from .test_indicators import ORACLES

SHARED = Path(os.environ.get("PACELINE_SHARED", Path(__file__).parents[3].parent / "shared"))
FILES = sorted((SHARED / "data" / "market").glob("*_4h.csv.gz"))
pytestmark = pytest.mark.skipif(not FILES, reason="no data/market below PACELINE_SHARED")


@pytest.mark.parametrize("path", FILES[:2], ids=lambda path: path.name)
def test_indicators_equal_ta_lib_on_real_windows(path: Path) -> None:
    talib = pytest.importorskip("talib", reason="TA-Lib is not installed (pip install TA-Lib)")
    for bars in list(read_windows(path).values())[::10]:
        for ours, theirs in ORACLES.values():
            for mine, wanted in zip(ours(bars), theirs(talib, bars), strict=True):
                np.testing.assert_allclose(mine, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("path", FILES[:2], ids=lambda path: path.name)
def test_every_window_is_a_case_and_its_lines_cross_no_bar(path: Path) -> None:
    found = cases(path.name, read_windows(path), None, LOOKBACK, QUANT_HORIZON)
    assert len(found) == 100
    for case in found:
        lines, x = trend(case.past), np.arange(LOOKBACK)
        unit = QUANT_TOLERANCE * float(case.past.close[-1])
        assert (lines.support.intercept + lines.support.slope * x <= case.past.low + unit).all()
        assert (lines.resistance.intercept + lines.resistance.slope * x >= case.past.high - unit).all()
