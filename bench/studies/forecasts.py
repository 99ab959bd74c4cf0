"""Time series: the weighted ensemble beside naive forecasts and its best single model, over windows of eight series.

    python bench/studies/forecasts.py [--ett ETTh1.csv] [--windows 10]

The row without the model: what TimeSeriesScientist forecasts where no planner adds models and no forecaster gives
points. `best single` is the model that validation prefers, before the future is opened. Errors are mean absolute ones
over seasonal naive's in the same window; intervals are 95 % over windows. Coverage is the share of true values inside
the bands.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.studies.intervals import paired, shown
from paceline.apps.tsci import generate
from paceline.apps.tsci.agents import SAFE, USUAL_METHODS
from paceline.apps.tsci.clean import interpolate
from paceline.apps.tsci.ensemble import by_error, combine, covered, intervals, simple_mean, ways
from paceline.apps.tsci.explore import find_period
from paceline.apps.tsci.models import Made, forecast
from paceline.apps.tsci.series import Series, Window, errors, read_series, windows
from paceline.apps.tsci.validate import Validated, folds, validate

KEPT = 4


def sources(given: argparse.Namespace) -> Iterator[tuple[Series, int, int]]:
    """(series, history, horizon)."""
    import statsmodels.api as sm

    if given.ett is not None:
        for column in ("OT", "HUFL", "MULL"):
            yield read_series(given.ett, column), 512, 96
    co2 = sm.datasets.co2.load_pandas().data["co2"].to_numpy()
    yield named("co2", co2, 52), 512, 52
    nino = sm.datasets.elnino.load_pandas().data.iloc[:, 1:].to_numpy().ravel().astype(float)
    yield named("elnino", nino, 12), 240, 24
    spots = sm.datasets.sunspots.load_pandas().data["SUNACTIVITY"].to_numpy()
    yield named("sunspots", spots, 11), 200, 22
    yield generate.retail(), 512, 96
    yield generate.load(), 512, 96


def named(name: str, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], period: int) -> Series:
    return Series(name, values, tuple(map(str, range(len(values)))), period)


def one(window: Window, period: int) -> tuple[dict[str, float], dict[str, float]]:
    """Errors of one window by row, and coverage by band."""
    horizon, full = len(window.future), interpolate(window.history)
    found = find_period(full, 200)
    period = found if found > 1 else period
    splits = folds(full, horizon, 3)
    valid = [
        v for v in (validate(name, splits, period, 4) for name in (*USUAL_METHODS, SAFE)) if isinstance(v, Validated)
    ]
    made = {v.name: forecast(v.name, v.settings, full, horizon, period) for v in valid}
    valid = sorted((v for v in valid if isinstance(made[v.name], Made)), key=lambda v: v.mae)[:KEPT]
    values = {v.name: m.values for v in valid if isinstance(m := made[v.name], Made)}
    weights, held = by_error({v.name: v.mae for v in valid}), [{v.name: v.held[n] for v in valid} for n in range(3)]
    truth = [fold.next for fold in splits]
    chosen = combine(held, truth, values, weights)
    before = [ways(fold, weights, valid[0].name)[chosen.way] for fold in held]
    naive, seasonal = (forecast(name, {}, full, horizon, period) for name in ("naive", SAFE))
    assert isinstance(naive, Made) and isinstance(seasonal, Made)
    rows = {
        "naive": naive.values, "seasonal naive": seasonal.values, "best single": values[valid[0].name],
        "mean": simple_mean(np.stack(list(values.values()))), "without the model": chosen.forecast,
    }  # fmt: skip
    _, future = window.future.score({})
    known = np.isfinite(future)
    mae = {name: errors(each[known], future[known])["mae"] for name, each in rows.items()}
    return mae, covered(intervals(before, truth, chosen.forecast), future)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ett", type=Path)
    parser.add_argument("--windows", type=int, default=10)
    given = parser.parse_args()
    shares: dict[str, list[float]] = {}
    inside: dict[str, list[float]] = {}
    for series, history, horizon in sources(given):
        here: dict[str, list[float]] = {}
        for window in windows(series, history, horizon, given.windows):
            mae, cover = one(window, series.period)
            for name, value in mae.items():
                here.setdefault(name, []).append(value / mae["seasonal naive"])
            for level, value in cover.items():
                inside.setdefault(level, []).append(value)
        for name, values in here.items():
            shares.setdefault(name, []).extend(values)
        print(f"{series.name:12} " + "  ".join(f"{name} {np.mean(v):.3f}" for name, v in here.items()), flush=True)
    for name, values in shares.items():
        print(f"{name:18} over seasonal naive {shown(values)} in {len(values)} windows")
    for other in ("best single", "mean"):
        print(f"without the model - {other}: {paired(shares['without the model'], shares[other])}")
    for level, values in inside.items():
        print(f"the {level} % band holds {shown(values)} of the true values")


if __name__ == "__main__":
    main()
