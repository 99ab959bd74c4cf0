"""The agents: three analysts side by side, a decision from their reports, and a risk agent that sets the stops.

Each is one typed call. What they see is made from the bars before the decision, and from nothing else.
"""

from dataclasses import asdict, dataclass, field
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
    """The risk agent's: the stop's distance in average true ranges, 0.5 to 3.0, and how many times as far the target
    is, 1.2 to 1.8. Both are texts of one digit behind the point, since a JSON number may go on for ever."""

    reason: str = Field(max_length=80)
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

    `distance` is the stop's, as a share of the price; `probability` that of the side taken, among LONG and SHORT.
    """

    side: int
    why: str
    probability: float | None = None
    distance: float = 0.0
    ratio: float = 0.0
    views: dict[str, Any] = field(default_factory=dict)
    risk: str = ""

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


def shared(asset: str, bars: Bars, shown: int = 16) -> str:
    """What all agents are shown first: the last closes and the window's range."""
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
    data = shared(asset, bars)
    image = png(bars, trend(bars), asset) if rules.pictures else None
    settings = AppSettings(max_tokens=rules.max_tokens, deadline_s=rules.deadline_s)

    async def analyse(name: str, task: str) -> AppAnswer[QuantView]:
        shown = image if name != "indicators" else None
        return await ask(client, Json(QuantView), prompt(data, task, shown), settings)

    async with Dag(deadline_s=rules.deadline_s, width=8 if rules.side_by_side else 1) as dag:
        nodes = {name: dag.node(name, analyse, name, task) for name, task in tasks(bars).items()}

        async def conclude(*answers: AppAnswer[QuantView]) -> QuantDecision:
            given = dict(zip(nodes, answers, strict=True))
            return await concluded(client, data, bars, given, rules, settings)

        last = dag.node("decision", conclude, *nodes.values())
        try:
            return await last
        except NodeError as error:
            return QuantDecision(0, f"no trade: {error}")


async def concluded(
    client: AppClient,
    data: str,
    bars: Bars,
    given: dict[str, AppAnswer[QuantView]],
    rules: Rules,
    settings: AppSettings,
) -> QuantDecision:
    """The decision and its stops, from the reports that there are; without any report, no trade."""
    views = {name: answer.value.model_dump() for name, answer in given.items() if answer.value is not None}
    lost = {name: answer.problem for name, answer in given.items() if answer.value is None}
    if not views:
        return QuantDecision(0, f"no trade: no report came ({', '.join(f'{k}: {v}' for k, v in lost.items())})")
    reports = "\n".join(f"{name}: {view['outlook']}. {view['reason']}" for name, view in views.items())
    task = f"Reports:\n{reports}\n\nDecide for the next bars. Holding is not possible. Answer LONG or SHORT."
    side = await ask(client, choice(*SIDES), Prompt(task, data, QUANT_SYSTEM), settings)
    if side.value is None:
        return QuantDecision(0, f"no trade: no decision came ({side.problem})", views=views)
    sure = side.probabilities.get(side.value)
    question = f"The decision is {side.value}. How far away is the stop, in average ranges, and the target?"
    task = f"Reports:\n{reports}\n\n{question}"
    risk = await ask(client, Json(Risk), Prompt(task, data, QUANT_SYSTEM), settings)
    if risk.value is None:
        return QuantDecision(0, f"no trade: no stop came ({risk.problem})", sure, views=views)
    unit = float(atr(bars)[-1]) / float(bars.close[-1])
    distance = rules.stop if rules.stop is not None else float(risk.value.stop_ranges) * unit
    why = "decided" if not lost else f"decided without {', '.join(lost)}"
    return QuantDecision(
        SIDES[side.value], why, sure, distance, float(risk.value.risk_reward_ratio), views, risk.value.reason
    )
