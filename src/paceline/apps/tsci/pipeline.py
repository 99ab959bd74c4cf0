"""One window from history to forecast: the agents' calls and the models' fits as one graph.

facts ─▶ curator ─▶ clean ─┬▶ validate each model ─▶ forecaster ─▶ refit ─▶ combine
         planner ──────────┘
         analyst (writes while models are fitted)
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..common.ask import AppSettings
from ..common.client import AppClient
from ..common.dag import Dag, Node
from .agents import USUAL_METHODS, Curation, Told, analyse, curate, plan, shown, weigh
from .clean import clean
from .ensemble import by_error, combine, intervals, ways
from .explore import TsciFacts, explore
from .models import Failed, Made, forecast
from .models.simple import seasonal_naive
from .series import Floats
from .validate import Fold, Validated, folds, validate


@dataclass(frozen=True)
class TsciPlan:
    """How a window is forecast."""

    horizon: int
    candidates: int = 3
    keep: int = 4
    usual: tuple[str, ...] = USUAL_METHODS
    """Validated whatever the planner names."""
    folds: int = 3
    combos: int = 4
    settings: AppSettings = field(default_factory=lambda: AppSettings(max_tokens=220))
    fit_s: float = 300.0
    """Seconds for the validation of one model; a slower one is left out, and the result says so."""


@dataclass
class SeriesForecast:
    """The result of one window. All weights sum to one over `members`; `bands` by level in per cent."""

    series: str
    start: int
    facts: TsciFacts
    curation: Curation
    outliers: int
    members: dict[str, dict[str, Any]]
    weights: dict[str, float]
    way: str
    ways: dict[str, float]
    values: Floats
    bands: dict[str, tuple[Floats, Floats]]
    back: list[dict[str, Any]]
    """The back-test, a row an origin: when, the forecast's and the seasonal naive one's error, forecast and truth."""
    others: dict[str, Floats]
    """Forecasts to compare with: each member's, their mean, the best single one."""
    failed: list[Failed]
    told: list[Told]
    analysis: str = ""
    seconds: float = 0.0
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """By forecast, once the future was opened."""

    def row(self) -> dict[str, Any]:
        """As JSON."""
        found = asdict(self)
        found["values"] = self.values.tolist()
        found["bands"] = {level: [low.tolist(), high.tolist()] for level, (low, high) in self.bands.items()}
        found["others"] = {name: values.tolist() for name, values in self.others.items()}
        return found


def checked(name: str, splits: Sequence[Fold], period: int, combos: int) -> Validated | Failed:
    """`validate` in a process of its own, on one thread: processes share the cores among them."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return validate(name, splits, period, combos)


def refitted(found: Validated, history: Floats, horizon: int, period: int) -> Made | Failed:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return forecast(found.name, found.settings, history, horizon, period)


def seasons(facts: TsciFacts, calendar: int) -> list[int]:
    """Possible seasons, the first one used where nobody chooses: what was found, what the calendar suggests, none."""
    return list(dict.fromkeys([*(each for each in (facts.period, calendar) if each > 1), 1]))


@dataclass
class TsciPipeline:
    """Forecasts windows on one graph, which may be shared by many."""

    dag: Dag
    client: AppClient
    plan: TsciPlan

    def start(self, name: str, start: int, history: Floats, calendar: int) -> Node[SeriesForecast]:
        """The forecast of one window, under way. The history is all that it gets."""
        return self.dag.node(f"{name}@{start}", self.run, name, start, history.copy(), calendar)

    async def run(self, name: str, start: int, history: Floats, calendar: int) -> SeriesForecast:
        """Raises NodeError or ValueError where no forecast can be made; then nothing is made up."""
        began, at = time.monotonic(), f"{name}@{start}"
        facts = await self.dag.work(f"{at} facts", explore, history)
        data = shown(name, facts, history[np.isfinite(history)])
        settings, possible = self.plan.settings, seasons(facts, calendar)
        curator = self.dag.node(f"{at} curator", curate, self.client, data, possible, settings)
        planner = self.dag.node(
            f"{at} planner", plan, self.client, data, self.plan.candidates, settings, self.plan.usual
        )
        analyst = self.dag.node(f"{at} analyst", analyse, self.client, data, settings)
        (curation, curated), (models, planned) = await curator, await planner
        full, outliers = clean(history, curation.fill, curation.detect, curation.handle)
        splits = folds(full, self.plan.horizon, self.plan.folds)
        valid, failed = await self.validated(at, models, splits, curation.season)
        if not valid:
            raise ValueError(f"every model failed on {at}: {failed[0].why}")
        points, weighed = await weigh(self.client, data, {v.name: v.mae for v in valid}, settings)
        made, lost = await self.refit(at, valid, full, curation.season)
        analysis, analysed = await analyst
        best = [found for found in valid if found.name in made]
        if not best:
            raise ValueError(f"every model failed on {at} when fitted to all of it: {lost[0].why}")
        result = self.combined(best, made, points, splits, curation.season)
        return SeriesForecast(
            name, start, facts, curation, outliers, **result, failed=[*failed, *lost],
            told=[curated, planned, weighed, analysed], analysis=analysis, seconds=time.monotonic() - began,
        )  # fmt: skip

    async def validated(
        self, at: str, models: Sequence[str], splits: Sequence[Fold], period: int
    ) -> tuple[list[Validated], list[Failed]]:
        """The best `keep` models by validation error, and those that failed."""
        late = {name: Failed(name, {}, f"was not validated in {self.plan.fit_s:g} s") for name in models}
        nodes = [
            self.dag.work(
                f"{at} {name}", checked, name, splits, period, self.plan.combos,
                within_s=self.plan.fit_s, default=late[name],
            )
            for name in models
        ]  # fmt: skip
        found = [await node for node in nodes]
        valid = sorted((one for one in found if isinstance(one, Validated)), key=lambda one: one.mae)
        return valid[: self.plan.keep], [one for one in found if isinstance(one, Failed)]

    async def refit(
        self, at: str, valid: Sequence[Validated], history: Floats, period: int
    ) -> tuple[dict[str, Floats], list[Failed]]:
        """Forecasts of the kept models from the whole history."""
        nodes = [self.dag.work(f"{at} refit {v.name}", refitted, v, history, self.plan.horizon, period) for v in valid]
        found = [await node for node in nodes]
        made = {one.name: one.values for one in found if isinstance(one, Made)}
        return made, [one for one in found if isinstance(one, Failed)]

    def combined(
        self,
        valid: Sequence[Validated],
        made: dict[str, Floats],
        points: dict[str, float] | None,
        splits: Sequence[Fold],
        period: int,
    ) -> dict[str, Any]:
        """Weights, the combination that validated best, its forecast and bands, and forecasts to compare it with."""
        errors = {found.name: found.mae for found in valid}
        weights = by_error(errors, points)
        held = [{found.name: found.held[i] for found in valid} for i in range(len(splits))]
        truth = [fold.next for fold in splits]
        forecasts = {name: made[name] for name in errors}
        final = combine(held, truth, forecasts, weights)
        best = min(errors, key=lambda name: errors[name])
        before = [ways(fold, weights, best)[final.way] for fold in held]
        others = {f"model {name}": values for name, values in forecasts.items()}
        every = ways(forecasts, weights, best)
        others.update({way: every[way] for way in ("best single", "mean", "weighted")})
        return {
            "members": {
                found.name: {"settings": found.settings, "mae": found.mae, "mse": found.mse} for found in valid
            },
            "weights": weights,
            "way": final.way,
            "ways": final.mae,
            "values": final.forecast,
            "bands": intervals(before, truth, final.forecast),
            "back": backtest(before, splits, period),
            "others": others,
        }


def backtest(made: Sequence[Floats], splits: Sequence[Fold], period: int) -> list[dict[str, Any]]:
    """Errors of the chosen combination before each origin. It was chosen on these folds, so they are slightly too
    good."""
    return [
        {
            "origin": len(fold.past),
            "mae": float(np.abs(values - fold.next).mean()),
            "naive": float(np.abs(seasonal_naive(fold.past, len(fold.next), period) - fold.next).mean()),
            "forecast": values.tolist(),
            "truth": fold.next.tolist(),
        }
        for values, fold in zip(made, splits, strict=True)
    ]
