"""Time series: the weighted ensemble beside naive forecasts and its best single model, over windows of eight series.

    python bench/studies/forecasts.py [--ett ETTh1.csv] [--windows 10] [--series co2,load] [--model URL]

The row without the model: what TimeSeriesScientist forecasts where no planner adds models and no forecaster gives
points. `--model`, a server, adds the row with it, on the same windows. `best single` is the model that validation
prefers, before the future is opened. Errors are mean absolute ones over seasonal naive's in the same window; intervals
are 95 % over windows. Coverage is the share of true values inside the bands.
"""

import argparse
import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from bench.studies.intervals import paired, shown
from paceline.apps.common.client import AppClient
from paceline.apps.common.dag import Dag, NodeError, gather
from paceline.apps.common.usage import told
from paceline.apps.tsci import generate
from paceline.apps.tsci.agents import SAFE, USUAL_METHODS
from paceline.apps.tsci.clean import interpolate
from paceline.apps.tsci.ensemble import by_error, combine, covered, intervals, simple_mean, ways
from paceline.apps.tsci.explore import find_period
from paceline.apps.tsci.models import Made, forecast
from paceline.apps.tsci.pipeline import TsciPipeline, TsciPlan
from paceline.apps.tsci.series import Floats, Series, Window, errors, read_series, windows
from paceline.apps.tsci.study import TSCI_ALONE
from paceline.apps.tsci.validate import Validated, folds, validate

KEPT = 4
WITH_MODEL = "with the model"


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


async def asked(url: str, series: Series, cut: list[Window]) -> list[dict[str, Floats]]:
    """By window, the row that the model of a server has a part in; none where no forecast came of it."""
    async with AppClient(url, concurrency=4) as client, Dag(workers=1, width=1000) as dag:

        async def forecast_of(window: Window) -> dict[str, Floats]:
            pipeline = TsciPipeline(dag, client, TsciPlan(len(window.future)))
            try:
                made = await pipeline.start(series.name, window.start, window.history, series.period)
            except NodeError as error:
                print(f"{series.name}@{window.start}: {error}", flush=True)
                return {}
            return {WITH_MODEL: made.values}

        found = await gather(forecast_of, cut, 2)
        print(f"{series.name:12} {told(client.tally.as_dict())}", flush=True)
        return found


def one(window: Window, period: int, more: Mapping[str, Floats]) -> tuple[dict[str, float], dict[str, float]]:
    """Errors of one window by row, those of `more` among them, and coverage by band."""
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
        "mean": simple_mean(np.stack(list(values.values()))), TSCI_ALONE: chosen.forecast, **more,
    }  # fmt: skip
    _, future = window.future.score({})
    known = np.isfinite(future)
    mae = {name: errors(each[known], future[known])["mae"] for name, each in rows.items()}
    return mae, covered(intervals(before, truth, chosen.forecast), future)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ett", type=Path)
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--series", default="", help="these alone, by commas; default all")
    parser.add_argument("--model", default="", help="address of a server")
    given = parser.parse_args()
    found = {series.name: (series, history, horizon) for series, history, horizon in sources(given)}
    names = [name for name in given.series.split(",") if name] or list(found)
    if unknown := set(names) - set(found):
        parser.error(f"there is no series {min(unknown)}; there are {', '.join(found)}")
    shares: dict[str, list[float]] = {}
    inside: dict[str, list[float]] = {}
    for series, history, horizon in (found[name] for name in names):
        here: dict[str, list[float]] = {}
        cut = windows(series, history, horizon, given.windows)
        more = asyncio.run(asked(given.model, series, cut)) if given.model else [dict[str, Floats]()] * len(cut)
        for window, rows in zip(cut, more, strict=True):
            mae, cover = one(window, series.period, rows)
            for name, value in mae.items():
                here.setdefault(name, []).append(value / mae["seasonal naive"])
            for level, value in cover.items():
                inside.setdefault(level, []).append(value)
        for name, values in here.items():
            shares.setdefault(name, []).extend(values)
        print(f"{series.name:12} " + "  ".join(f"{name} {np.mean(v):.3f}" for name, v in here.items()), flush=True)
    for name, values in shares.items():
        print(f"{name:18} over seasonal naive {shown(values)} in {len(values)} windows")
    for name in (TSCI_ALONE, WITH_MODEL):
        for other in ("best single", "mean", TSCI_ALONE):
            if name != other and len(shares.get(name, ())) == len(shares[other]):
                print(f"{name} - {other}: {paired(shares[name], shares[other])}")
    for level, values in inside.items():
        print(f"the {level} % band holds {shown(values)} of the true values")


if __name__ == "__main__":
    main()
