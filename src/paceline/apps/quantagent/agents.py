"""The agents: three analysts side by side, a decision from their reports, and a risk agent that sets the stops.

Each is one typed call. What they see is made from the bars before the decision, and from nothing else.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import exp, log
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..common.ask import AppAnswer, AppSettings, Prompt, ask
from ..common.client import AppClient
from ..common.dag import Dag, NodeError
from ..common.forms import Json, choice
from .bars import Bars
from .indicators import atr, readings
from .patterns import describe as patterns_as_text
from .picture import data_url, png
from .trend import describe as trend_as_text
from .trend import trend

NOTE = (
    "This is a demonstration of an inference engine. It is not advice: language models have shown no edge on price "
    "bars, and figures of the past say nothing about the future."
)
QUANT_SYSTEM = (
    "You are one of several analysts who read price bars. You know the bars shown and nothing else. Be brief and name "
    "the figures that you rely on."
)
SIDES = {"LONG": 1, "SHORT": -1}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class QuantView(Strict):
    """An analyst's report."""

    reason: str = Field(max_length=120)
    outlook: Literal["up", "down", "sideways"]


class Risk(Strict):
    """The risk agent's: why the side is right, for how many bars, the stop's distance in average true ranges, 0.5 to
    3.0, and how many times as far the target is, 1.2 to 1.8. Numbers are texts of one digit behind the point, since a
    JSON number may go on for ever."""

    justification: str = Field(max_length=160)
    horizon_bars: str = Field(pattern=r"^([1-9]|1[0-2])$")
    stop_ranges: str = Field(pattern=r"^(0\.[5-9]|[12]\.[0-9]|3\.0)$")
    risk_reward_ratio: str = Field(pattern=r"^1\.[2-8]$")


@dataclass(frozen=True, slots=True)
class Pictured(Prompt):
    """A prompt with a picture before its text."""

    image: bytes = b""

    def messages(self) -> list[dict[str, Any]]:
        turns: list[dict[str, Any]] = [dict(turn) for turn in Prompt.messages(self)]
        picture = {"type": "image_url", "image_url": {"url": data_url(self.image)}}
        turns[-1]["content"] = [picture, {"type": "text", "text": turns[-1]["content"]}]
        return turns


@dataclass(frozen=True)
class QuantDecision:
    """What was decided on one window. `side` 0: no trade, and `why` says so.

    `distance` is the stop's, as a share of the price; `probability` that of the side taken, among LONG and SHORT, after
    the model's leaning was taken out; `leaning` the probability of LONG that it has for no reason; `horizon` in bars.
    """

    side: int
    why: str
    probability: float | None = None
    distance: float = 0.0
    ratio: float = 0.0
    views: dict[str, Any] = field(default_factory=dict)
    risk: str = ""
    leaning: float | None = None
    horizon: int | None = None

    def row(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Rules:
    """How a window is decided. `stop`: the stop's distance as a share of the price, or None for what the risk agent
    says in average true ranges. `pictures`: analysts of patterns and trend get a chart, for models that see."""

    deadline_s: float | None = None
    stop: float | None = None
    pictures: bool = False
    max_tokens: int = 200
    side_by_side: bool = True
    corrected: bool = True
    """Take the model's leaning out: the mirrored bars are judged as well, and the difference counts."""


def shared(asset: str, bars: Bars, shown: int = 16) -> str:
    """Facts shown to all agents: the last closes and the window's range."""
    closes = " ".join(f"{price:.6g}" for price in bars.close[-shown:])
    low, high = float(bars.low.min()), float(bars.high.max())
    change = 100 * (bars.close[-1] / bars.close[0] - 1)
    return (
        f"{asset}: {len(bars)} bars, lowest {low:.6g}, highest {high:.6g}, change over the window {change:+.2f} %.\n"
        f"Last {min(shown, len(bars))} closes, oldest first: {closes}"
    )


def tasks(bars: Bars) -> dict[str, str]:
    """Each analyst's own features and question."""
    indicators = "\n".join(str(reading) for reading in readings(bars, keep=4))
    lines = trend_as_text(trend(bars))
    return {
        "indicators": f"Indicators, oldest first:\n{indicators}\n\nRead momentum and extremes: where do prices go?",
        "patterns": f"{patterns_as_text(bars)}\n\nName what the pattern says: where do prices go?",
        "trend": f"Trend lines:\n{lines}\n\nRead slope and room to the lines: where do prices go?",
    }


def prompt(data: str, task: str, image: bytes | None) -> Prompt:
    return Prompt(task, data, QUANT_SYSTEM) if image is None else Pictured(task, data, QUANT_SYSTEM, (), image)


async def decide(client: AppClient, asset: str, bars: Bars, rules: Rules) -> QuantDecision:
    """A decision on one window, within the deadline; one that is late or lost is no trade, and says why."""
    settings = AppSettings(max_tokens=rules.max_tokens, deadline_s=rules.deadline_s)
    seen = {"bars": bars, **({"mirror": bars.mirrored()} if rules.corrected else {})}

    async def analyse(name: str, task: str, data: str, image: bytes | None) -> AppAnswer[QuantView]:
        shown = image if name != "indicators" else None
        return await ask(client, Json(QuantView), prompt(data, task, shown), settings)

    async def side(given: dict[str, AppAnswer[QuantView]], data: str) -> AppAnswer[str]:
        return await ask(client, choice(*SIDES), Prompt(f"{reports(given)}{DECIDE}", data, QUANT_SYSTEM), settings)

    async with Dag(deadline_s=rules.deadline_s, width=16 if rules.side_by_side else 1) as dag:
        texts = {which: shared(asset, each) for which, each in seen.items()}
        images = {which: png(each, trend(each), asset) if rules.pictures else None for which, each in seen.items()}
        nodes = {
            which: {
                name: dag.node(f"{which} {name}", analyse, name, task, texts[which], images[which])
                for name, task in tasks(each).items()
            }
            for which, each in seen.items()
        }
        names = [(which, name) for which, own in nodes.items() for name in own]

        async def conclude(*answers: AppAnswer[QuantView]) -> QuantDecision:
            given: dict[str, dict[str, AppAnswer[QuantView]]] = {which: {} for which in nodes}
            for (which, name), answer in zip(names, answers, strict=True):
                given[which][name] = answer
            for own in given.values():
                if all(answer.value is None for answer in own.values()):
                    lost = ", ".join(f"{name}: {answer.problem}" for name, answer in own.items())
                    return QuantDecision(0, f"no trade: no report came ({lost})")
            sides = [await side(given[which], texts[which]) for which in nodes]
            return await concluded(client, texts["bars"], bars, given["bars"], sides, rules, settings)

        last = dag.node("decision", conclude, *(node for own in nodes.values() for node in own.values()))
        try:
            return await last
        except NodeError as error:
            return QuantDecision(0, f"no trade: {error}")


DECIDE = "\n\nDecide for the next bars. Holding is not possible. Answer LONG or SHORT."


def reports(given: dict[str, AppAnswer[QuantView]]) -> str:
    views = {name: answer.value for name, answer in given.items() if answer.value is not None}
    return "Reports:\n" + "\n".join(f"{name}: {view.outlook}. {view.reason}" for name, view in views.items())


def unbiased(sides: Sequence[AppAnswer[str]]) -> tuple[str | None, float | None, float | None]:
    """The side, its probability and the model's leaning to LONG. With the answer to the mirrored bars, half the
    difference of the log-odds counts: a model that says LONG to both has said nothing, and there is no side."""
    first = sides[0]
    if len(sides) == 1 or first.value is None:
        return first.value, first.probabilities.get(first.value or ""), None
    odds = [log_odds(each) for each in sides]
    own, mirror = odds
    if own is None or mirror is None:
        return None, None, None
    evidence, leaning = (own - mirror) / 2, (own + mirror) / 2
    if abs(evidence) < LEAST_EVIDENCE:
        return None, None, logistic(leaning)
    return "LONG" if evidence > 0 else "SHORT", logistic(abs(evidence)), logistic(leaning)


LEAST_EVIDENCE = 1e-3
"""Log-odds below which bars and mirror count as judged alike."""


def log_odds(answer: AppAnswer[str]) -> float | None:
    """Log-odds of LONG, at most 12 either way; of the answer alone where no probabilities came."""
    if answer.value is None:
        return None
    long = answer.probabilities.get("LONG", float(answer.value == "LONG"))
    short = answer.probabilities.get("SHORT", 1.0 - long)
    return max(-12.0, min(12.0, log(max(long, 1e-9)) - log(max(short, 1e-9))))


def logistic(odds: float) -> float:
    return 1.0 / (1.0 + exp(-odds))


async def concluded(
    client: AppClient,
    data: str,
    bars: Bars,
    given: dict[str, AppAnswer[QuantView]],
    sides: Sequence[AppAnswer[str]],
    rules: Rules,
    settings: AppSettings,
) -> QuantDecision:
    """The decision with its justification and stops, from the reports that there are."""
    views = {name: answer.value.model_dump() for name, answer in given.items() if answer.value is not None}
    lost = {name: answer.problem for name, answer in given.items() if answer.value is None}
    side, sure, leaning = unbiased(sides)
    if side is None:
        problem = next((each.problem for each in sides if each.value is None), None)
        why = f"no decision came ({problem})" if problem else "the bars and their mirror were judged alike"
        return QuantDecision(0, f"no trade: {why}", views=views, leaning=leaning)
    question = (
        f"The decision is {side}. Justify it by the reports, and say for how many bars it holds, how far away the stop "
        "is, in average ranges, and the target."
    )
    risk = await ask(client, Json(Risk), Prompt(f"{reports(given)}\n\n{question}", data, QUANT_SYSTEM), settings)
    if risk.value is None:
        return QuantDecision(0, f"no trade: no stop came ({risk.problem})", sure, views=views, leaning=leaning)
    unit = float(atr(bars)[-1]) / float(bars.close[-1])
    distance = rules.stop if rules.stop is not None else float(risk.value.stop_ranges) * unit
    why = "decided" if not lost else f"decided without {', '.join(lost)}"
    found = risk.value
    return QuantDecision(
        SIDES[side], why, sure, distance, float(found.risk_reward_ratio), views, found.justification, leaning,
        int(found.horizon_bars),
    )  # fmt: skip
