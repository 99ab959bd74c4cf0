"""The agents' typed calls: curator, planner, forecaster and reporter. Each fallback is an outcome that a result names.

All calls on one window begin with the same text, the window's facts and newest values, so the server holds it once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..common.ask import AppAnswer, AppSettings, Prompt, ask
from ..common.client import AppClient
from ..common.forms import AppSchema
from .clean import DETECT, FILL, HANDLE
from .explore import TsciFacts
from .models import LIBRARY
from .series import Floats

TSCI_SYSTEM = (
    "You are a careful forecaster of time series. You choose among tools and explain briefly; you compute nothing "
    "yourself."
)
SAFE = "seasonal_naive"
"""Always among the candidates: what is not better than it is of no use."""
USUAL_METHODS = ("stl_ets", "theta", "ridge", "n_linear", "seasonal_mean")
"""Models that are validated whatever the planner names: what it adds must be better than they are."""


@dataclass(frozen=True)
class Curation:
    """How the series is cleaned, and the season's length that models are given."""

    fill: str
    detect: str
    handle: str
    season: int


@dataclass(frozen=True)
class Told:
    """What one call brought: "ok", "retried", "fallback" or "failed", with the problem and the model's reason."""

    agent: str
    outcome: str
    problem: str | None = None
    reason: str = ""
    changed: tuple[str, ...] = field(default=())
    """What was put right in the answer, in words."""

    def row(self) -> dict[str, Any]:
        return asdict(self)


def told(agent: str, given: AppAnswer[Any], reason: str = "", changed: Sequence[str] = ()) -> Told:
    return Told(agent, given.outcome, given.problem, reason, tuple(changed))


def said(given: AppAnswer[Any]) -> dict[str, Any]:
    """The object that an answer is; an empty one where a server sent JSON of another kind."""
    found = given.get()
    return found if isinstance(found, dict) else {}


def shown(name: str, facts: TsciFacts, values: Floats, newest: int = 24) -> str:
    """The window as every agent sees it: facts, and the newest values."""
    return (
        f"Series {name}: {facts.count} values, {facts.missing} missing, mean {facts.mean:.4g}, standard deviation "
        f"{facts.std:.4g}, least {facts.least:.4g}, most {facts.most:.4g}.\n"
        f"Outliers by interquartile range {facts.outliers['iqr']}, by z-score {facts.outliers['zscore']}. "
        f"Change of the trend over the window: {facts.trend:.2f} standard deviations. "
        f"Unit root p {facts.unit_root_p:.3f}. "
        f"Season of {facts.period} with strength {facts.season:.2f}. Zeros {facts.zeros:.0%}.\n"
        f"Newest values: {' '.join(f'{value:.4g}' for value in values[-newest:])}"
    )


def thing(properties: Mapping[str, Any]) -> AppSchema:
    """An object with exactly these properties."""
    return AppSchema(
        {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    )


def text(longest: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": longest}


async def curate(client: AppClient, data: str, seasons: Sequence[int], settings: AppSettings) -> tuple[Curation, Told]:
    """The strategies for gaps and outliers, and which of the possible seasons to use."""
    form = thing(
        {
            "reason": text(120),
            "fill": {"enum": list(FILL)},
            "detect": {"enum": list(DETECT)},
            "handle": {"enum": list(HANDLE)},
            "season": {"enum": [str(season) for season in seasons]},
        }
    )
    task = (
        "Choose how to fill missing values, how to detect outliers (none if they are real), how to handle them, and "
        f"the season's length ({', '.join(map(str, seasons))}; 1 is none)."
    )
    usual = {"fill": "interpolate", "detect": "none", "handle": "interpolate", "season": str(seasons[0]), "reason": ""}
    given = await ask(client, form, Prompt(task, data, TSCI_SYSTEM), settings, lambda problem: usual)
    value = said(given)
    keys = ("fill", "detect", "handle", "season")
    changed = [key for key in keys if not _member(key, value, seasons)]
    kept = {key: usual[key] if key in changed else str(value[key]) for key in keys}
    made = Curation(kept["fill"], kept["detect"], kept["handle"], int(kept["season"]))
    return made, told("curator", given, str(value.get("reason", "")), [f"{key} was unknown" for key in changed])


def _member(key: str, value: Mapping[str, Any], seasons: Sequence[int]) -> bool:
    """Whether an answer's field is one of the choices: a server may not have kept to the schema."""
    known: dict[str, list[str]] = {
        "fill": list(FILL),
        "detect": list(DETECT),
        "handle": list(HANDLE),
        "season": [str(season) for season in seasons],
    }
    return value.get(key) in known[key]


async def plan(
    client: AppClient, data: str, count: int, settings: AppSettings, usual: Sequence[str] = USUAL_METHODS
) -> tuple[list[str], Told]:
    """`count` models to try, without repeats, with the usual ones and the safe one."""
    library = "\n".join(f"{name}: {model.about}" for name, model in LIBRARY.items())
    form = thing(
        {
            "reason": text(120),
            "models": {"type": "array", "items": {"enum": list(LIBRARY)}, "minItems": count, "maxItems": count},
        }
    )
    task = f"Models:\n{library}\n\nChoose {count} different ones to validate on this series, the most promising first."
    given = await ask(
        client, form, Prompt(task, data, TSCI_SYSTEM), settings, lambda problem: {"models": [], "reason": ""}
    )
    named = said(given).get("models")
    listed = [str(name) for name in named] if isinstance(named, list) else []
    known = list(dict.fromkeys(name for name in listed if name in LIBRARY))[:count]
    models = list(dict.fromkeys([*known, *usual, SAFE]))
    changed = [] if known else ["the usual models alone"]
    return models, told("planner", given, str(said(given).get("reason", "")), changed)


async def analyse(client: AppClient, data: str, settings: AppSettings) -> tuple[str, Told]:
    """Two sentences on what the series looks like, written while models are fitted."""
    form = thing({"trend": text(100), "season": text(100), "risk": text(100)})
    task = "Describe trend, season, and what could make a forecast fail, a short sentence each."
    given = await ask(client, form, Prompt(task, data, TSCI_SYSTEM), settings, lambda problem: {})
    found = said(given)
    return " ".join(str(found[key]) for key in ("trend", "season", "risk") if found.get(key)), told("analyst", given)


async def weigh(
    client: AppClient, data: str, errors: Mapping[str, float], settings: AppSettings
) -> tuple[dict[str, float] | None, Told]:
    """Points from 0 to 10 for each validated model; None where none came."""
    form = thing({name: {"type": "integer", "minimum": 0, "maximum": 10} for name in errors})
    listed = "\n".join(f"{name}: {error:.4g}" for name, error in errors.items())
    task = (
        f"Mean absolute errors in validation (less is better):\n{listed}\n\nGive each model 0 to 10 points of weight."
    )
    given = await ask(client, form, Prompt(task, data, TSCI_SYSTEM), settings, lambda problem: {})
    found = said(given)
    points = {name: found.get(name) for name in errors}
    if given.problem is not None or not all(isinstance(point, int) and point >= 0 for point in points.values()):
        return None, told("forecaster", given, changed=["weights by validation error"])
    return {name: float(point or 0) for name, point in points.items()}, told("forecaster", given)


async def summarise(client: AppClient, data: str, settings: AppSettings) -> tuple[str, Told]:
    """The reporter's summary of all results."""
    form = thing({"summary": text(500), "limits": text(300)})
    task = "Write an executive summary of these results, and their limits. Use only figures that stand above."
    given = await ask(client, form, Prompt(task, data, TSCI_SYSTEM), settings, lambda problem: {})
    found = said(given)
    return " ".join(str(found[key]) for key in ("summary", "limits") if found.get(key)), told("reporter", given)
