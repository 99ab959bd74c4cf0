"""Indicators: equal to TA-Lib, by hand, and missing where there are too few bars."""

from collections.abc import Callable

import numpy as np
import pytest

from paceline.apps.quantagent.bars import Bars, Floats
from paceline.apps.quantagent.indicators import atr, ema, macd, readings, roc, rsi, sma, stochastic, williams_r

from .series import bars_from, walk

ORACLES: dict[str, tuple[Callable[[Bars], list[Floats]], Callable[..., list[Floats]]]] = {
    "sma": (lambda b: [sma(b.close, 7)], lambda t, b: [t.SMA(b.close, 7)]),
    "ema": (lambda b: [ema(b.close, 9)], lambda t, b: [t.EMA(b.close, 9)]),
    "rsi": (lambda b: [rsi(b.close)], lambda t, b: [t.RSI(b.close, 14)]),
    "macd": (lambda b: list(macd(b.close)), lambda t, b: list(t.MACD(b.close, 12, 26, 9))),
    "roc": (lambda b: [roc(b.close)], lambda t, b: [t.ROC(b.close, 10)]),
    "stochastic": (
        lambda b: list(stochastic(b)),
        lambda t, b: list(t.STOCH(b.high, b.low, b.close, 14, 3, 0, 3, 0)),
    ),
    "williams": (lambda b: [williams_r(b)], lambda t, b: [t.WILLR(b.high, b.low, b.close, 14)]),
    "atr": (lambda b: [atr(b)], lambda t, b: [t.ATR(b.high, b.low, b.close, 14)]),
}


def flat(count: int) -> Bars:
    price = np.full(count, 50.0)
    return Bars(tuple(map(str, range(count))), price, price.copy(), price.copy(), price.copy())


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("count", [5, 15, 18, 33, 34, 45, 300])
def test_equal_to_ta_lib(name: str, count: int) -> None:
    talib = pytest.importorskip("talib", reason="TA-Lib is not installed (pip install TA-Lib)")
    ours, theirs = ORACLES[name]
    for bars in (walk(count, seed=count), bars_from(np.linspace(10, 20, count), wick=0.0), flat(count)):
        for mine, wanted in zip(ours(bars), theirs(talib, bars), strict=True):
            np.testing.assert_allclose(mine, wanted, rtol=0, atol=1e-6)


def test_rate_of_change_by_hand() -> None:
    assert roc(np.array([1.0, 2.0, 4.0]), 1).tolist()[1:] == [100.0, 100.0]


def test_rsi_of_a_rise_is_100() -> None:
    assert rsi(np.arange(1.0, 40.0))[-1] == 100.0


def test_too_few_bars_are_missing_not_extreme() -> None:
    for reading in readings(walk(8)):
        assert reading.values == ()
        assert reading.lean == 0
        assert str(reading).endswith("missing")


def test_readings_keep_the_newest_last() -> None:
    bars = walk(60)
    by_name = {reading.name: reading for reading in readings(bars)}
    assert by_name["RSI(14)"].values[-1] == rsi(bars.close)[-1]
    assert len(by_name["MACD line"].values) == 5
