"""Patterns: each rule finds the shape drawn for it; candles by hand; a picture is a PNG."""

import itertools

import numpy as np
import pytest

from paceline.apps.quantagent.bars import Bars, Floats
from paceline.apps.quantagent.patterns import QUANT_CATALOGUE, candle, describe, find, pivots
from paceline.apps.quantagent.picture import data_url, png
from paceline.apps.quantagent.trend import trend

from .series import bars_from, walk


def through(*points: float, steps: int = 6) -> Floats:
    """Straight ways from point to point."""
    ways = [np.linspace(a, b, steps, endpoint=False) for a, b in itertools.pairwise(points)]
    return np.concatenate([*ways, [points[-1]]])


def gapped(*closes: float) -> Bars:
    close = np.array(closes)
    return Bars(tuple(map(str, range(len(close)))), close, close + 0.1, close - 0.1, close)


X = np.arange(40.0)
SAW = (-1.0) ** (X // 4)
SHAPES: dict[str, Bars] = {
    "double bottom": bars_from(through(110, 100, 106, 100.2, 108)),
    "double top": bars_from(through(100, 110, 104, 109.9, 102)),
    "inverse head and shoulders": bars_from(through(110, 103, 108, 98, 108, 103, 109)),
    "head and shoulders": bars_from(through(100, 107, 102, 112, 102, 107, 101)),
    "ascending triangle": bars_from(through(100, 110, 102, 110, 104, 110, 106, 110, 108), wick=0.05),
    "descending triangle": bars_from(through(110, 100, 108, 100, 106, 100, 104, 100, 102), wick=0.05),
    "symmetrical triangle": bars_from(through(95, 110, 96, 109, 98, 107, 100, 105, 102)),
    "expanding triangle": bars_from(through(102, 105, 100, 107, 98, 109, 96, 110, 95)),
    "falling wedge": bars_from(through(130, 112, 124, 108, 116, 104, 109, 101, 103)),
    "rising wedge": bars_from(through(100, 118, 106, 122, 113, 125, 119, 128, 126)),
    "rectangle": bars_from(through(105, 110, 100, 110, 100, 110, 100, 110, 105)),
    "bullish flag": bars_from(
        np.concatenate([np.full(10, 100.0), through(100, 120, steps=5), 120 - 0.3 * np.arange(10)])
    ),
    "bearish flag": bars_from(
        np.concatenate([np.full(10, 120.0), through(120, 100, steps=5), 100 + 0.3 * np.arange(10)])
    ),
    "V reversal": bars_from(through(100, 100, 110, 100, 110, steps=5)),
    "inverted V reversal": bars_from(through(110, 110, 100, 110, 100, steps=5)),
    "rounded bottom": bars_from(100 + 20 * np.linspace(-1, 1, 40) ** 2),
    "rounded top": bars_from(100 - 20 * np.linspace(-1, 1, 40) ** 2),
    "island bottom": gapped(10, 10.1, 10, 9, 9.05, 10, 10.1),
    "island top": gapped(10, 10.1, 10, 11, 11.05, 10, 10.1),
}


@pytest.mark.parametrize("name", QUANT_CATALOGUE)
def test_each_rule_finds_its_shape(name: str) -> None:
    assert name in [pattern.name for pattern in find(SHAPES[name])]


@pytest.mark.parametrize("name", QUANT_CATALOGUE)
def test_no_rule_fires_on_a_straight_line(name: str) -> None:
    assert name not in [pattern.name for pattern in find(bars_from(np.linspace(100, 140, 40)))]


def test_upside_down_leans_the_other_way() -> None:
    for name, (lean, _) in QUANT_CATALOGUE.items():
        bars = SHAPES[name]
        turned = Bars(bars.time, 230 - bars.open, 230 - bars.low, 230 - bars.high, 230 - bars.close)
        leans = {pattern.lean for pattern in find(turned)}
        assert -lean in leans, name


def test_turning_points_alternate() -> None:
    found = pivots(walk(200).close, 1.0)
    assert len(found) > 10
    assert all(a.peak != b.peak and a.bar < b.bar for a, b in itertools.pairwise(found))


@pytest.mark.parametrize(
    ("prices", "code"),
    [
        ((10, 12, 8, 10), "doji="),
        ((10, 12, 10, 12), "marubozu+"),
        ((12, 12, 10, 10), "marubozu-"),
        ((11.2, 12, 8, 12), "hammer+"),
        ((8.8, 12, 8, 8), "star-"),
        ((9, 12, 8, 11), "plain+"),
        ((10, 10, 10, 10), "doji="),
    ],
)
def test_candles(prices: tuple[float, ...], code: str) -> None:
    columns = [np.array([price], np.float64) for price in prices]
    assert candle(Bars(("0",), *columns), 0) == code


def test_engulfing_needs_the_bar_before() -> None:
    bars = Bars(("0", "1"), *(np.array(x, np.float64) for x in ([10, 8], [10.2, 11.5], [8.8, 7.9], [9, 11])))
    assert candle(bars, 1) == "engulfing+"


def test_text_and_picture() -> None:
    bars = walk(45)
    assert describe(bars).count("\n") == 2
    image = png(bars, trend(bars), "walk")
    assert image.startswith(b"\x89PNG")
    assert data_url(image).startswith("data:image/png;base64,iVBOR")


def test_one_bar_is_refused() -> None:
    with pytest.raises(ValueError, match="2 bars or more"):
        find(walk(1))
