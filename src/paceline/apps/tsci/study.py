"""Study of many windows: forecast and scored against seasonal naive, the best single model and the simple mean."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..common.client import AppClient, Nobody
from ..common.dag import Dag, NodeError, gather
from .clean import interpolate
from .models.simple import seasonal_naive
from .pipeline import SeriesForecast, TsciPipeline, TsciPlan
from .series import Floats, Series, Window, windows

OURS = "TimeSeriesScientist"
TSCI_ALONE = "without the model"
"""The pipeline with its own choices in place of every answer of a model."""
TSCI_COLUMNS = ("seasonal naive", "best single", "mean", TSCI_ALONE, OURS)


def scored(window: Window, made: SeriesForecast, alone: SeriesForecast, calendar: int) -> Floats:
    """Opens the window's future, scores all forecasts into `made`, and gives the true values."""
    period = made.facts.period if made.facts.period > 1 else calendar
    naive = seasonal_naive(interpolate(window.history), len(window.future), period)
    made.scores, truth = window.future.score(
        {OURS: made.values, "seasonal naive": naive, TSCI_ALONE: alone.values, **made.others}
    )
    return truth


async def study(
    client: AppClient,
    series: Sequence[Series],
    history: int,
    count: int,
    plan: TsciPlan,
    workers: int = 2,
    step: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """All windows' forecasts, scores and failures. A window without a forecast is reported and left out of the
    means."""
    rows: list[dict[str, Any]] = []
    lost: list[dict[str, str]] = []
    todo = [(one, window) for one in series for window in windows(one, history, plan.horizon, count)]
    async with Dag(workers=workers, width=1000) as dag:
        pipelines = [TsciPipeline(dag, asked, plan) for asked in (client, Nobody(native=client.native))]

        async def forecast(task: tuple[Series, Window]) -> tuple[SeriesForecast, SeriesForecast] | NodeError:
            one, window = task
            try:
                ours, alone = [
                    await each.start(one.name, window.start, window.history, one.period) for each in pipelines
                ]
                return ours, alone
            except NodeError as error:
                return error
            finally:
                step()

        made = await gather(forecast, todo, 2 * workers)
    for (one, window), pair in zip(todo, made, strict=True):
        if isinstance(pair, NodeError):
            lost.append({"series": one.name, "start": str(window.start), "why": str(pair)})
        else:
            found = pair[0]
            truth = scored(window, *pair, one.period)
            rows.append({**found.row(), "truth": truth.tolist(), "history": window.history.tolist()})
    return {"windows": rows, "lost": lost, "table": table(rows), "horizon": plan.horizon, "length": history}


def table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean MAE by series and column, relative to seasonal naive over all."""
    found = []
    for name in dict.fromkeys(row["series"] for row in rows):
        here = [row for row in rows if row["series"] == name]
        mae = {column: float(np.mean([row["scores"][column]["mae"] for row in here])) for column in TSCI_COLUMNS}
        won = sum(row["scores"][OURS]["mae"] < row["scores"]["seasonal naive"]["mae"] for row in here)
        found.append(
            {
                "series": name,
                "windows": len(here),
                **mae,
                "to_naive": _over(mae[OURS], mae["seasonal naive"]),
                "won": won,
            }
        )
    return found


def _over(value: float, base: float) -> float | None:
    return value / base if base > 0 else None
