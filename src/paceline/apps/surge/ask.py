"""Asking a model what a program prints."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..common.ask import AppAnswer, AppSettings, Prompt, ask, sample
from ..common.client import AppClient
from ..common.confidence import of_part
from ..common.dag import gather
from ..common.forms import AppSchema, AppText
from .extract import answer as extracted
from .extract import is_answer, span
from .items import SurgeItem
from .published import PUBLISHED
from .scorers import SCORERS

SAMPLED_AT = 0.7
"""Temperature of the answers that say how sure the first is."""
SURGE_STYLES = ("zero", "cot", "few")
SURGE_SYSTEM = (
    "You are given files and a command. Say exactly what the command prints, standard output and errors together, "
    "including messages of compilers and interpreters. Nothing is run for you."
)
SURGE_TASKS = {
    "zero": "What exactly does the command print? Answer with its output alone, in a fenced block.",
    "cot": "Think step by step, briefly, under `Thought:`; then the exact output in a fenced block under `Output:`.",
}
SURGE_TASKS["few"] = SURGE_TASKS["cot"]
SURGE_CHECK = (
    "Does program.py check? Answer with a JSON object: pass (true or false), and errors, each with severity, the "
    "position (line from 1, column) and the checker's message; no errors if it passes."
)
POSITION = {
    "type": "object",
    "properties": {
        "line": {"type": "integer", "minimum": 1, "maximum": 999},
        "column": {"type": "integer", "minimum": 0},
    },
    "required": ["line", "column"],
    "additionalProperties": False,
}
ERROR = {
    "type": "object",
    "properties": {"severity": {"enum": ["error"]}, "pos": POSITION, "data": {"type": "string", "maxLength": 120}},
    "required": ["severity", "pos", "data"],
    "additionalProperties": False,
}


def outcome(passes: bool) -> dict[str, Any]:
    """The schema of one of the two verdicts: without errors, or with one at least."""
    few = {"maxItems": 0} if passes else {"minItems": 1, "maxItems": 4}
    return {
        "type": "object",
        "properties": {"pass": {"const": passes}, "errors": {"type": "array", "items": ERROR, **few}},
        "required": ["pass", "errors"],
        "additionalProperties": False,
    }


VERDICT: dict[str, Any] = {"anyOf": [outcome(True), outcome(False)]}
SURGE_EXAMPLES = (
    (
        "main.py\n```\nx = 3\nfor i in range(3):\n    x = (x * 2 + i) % 7\nprint(x)\n```\n\nCommand: python3 main.py",
        "Thought: x is 3. i=0: (6+0)%7=6. i=1: (12+1)%7=6. i=2: (12+2)%7=0.\nOutput:\n```\n0\n```",
    ),
    (
        "main.py\n```\nprint(1 / 0)\n```\n\nCommand: python3 main.py",
        "Thought: the division raises on line 1.\nOutput:\n```\nTraceback (most recent call last):\n"
        '  File "/box/main.py", line 1, in <module>\n    print(1 / 0)\n          ~~^~~\n'
        "ZeroDivisionError: division by zero\n```",
    ),
    (
        "main.py\n```\nv = [4, 1, 3]\nprint(sorted(v), sum(v) / 2)\n```\n\nCommand: python3 main.py",
        "Thought: sorted is 1, 3, 4; the sum is 8, half of it 4.0.\nOutput:\n```\n[1, 3, 4] 4.0\n```",
    ),
)


@dataclass(frozen=True)
class SurgeRecord:
    """One prediction and its score; `right` only where the score is 1."""

    id: str
    kind: str
    column: str
    rule: str
    style: str
    predicted: str
    truth: str
    score: float
    published: float
    confidence: float | None
    outcome: str
    problem: str | None
    seconds: float

    @property
    def right(self) -> bool:
        return self.score >= 1.0

    def row(self) -> dict[str, Any]:
        return asdict(self)


def prompt(item: SurgeItem, style: str) -> Prompt:
    """The system text and examples first, then the program: what calls share comes first."""
    if item.rule == "errors":
        return Prompt(SURGE_CHECK, item.question, SURGE_SYSTEM)
    return Prompt(SURGE_TASKS[style], item.question, SURGE_SYSTEM, SURGE_EXAMPLES if style == "few" else ())


async def predict(
    client: AppClient, item: SurgeItem, style: str, settings: AppSettings, samples: int = 0
) -> tuple[str, AppAnswer[Any]]:
    """The predicted output, "" where no answer came, and the answer that it stands in. Its confidence is that of the
    output alone, not of the thoughts before it: with `samples` the share of that number of further answers that say the
    same, else the probability of the output."""
    verdict = item.rule == "errors"
    form: Any = AppSchema(VERDICT) if verdict else AppText()
    given = await ask(client, form, prompt(item, style), settings)
    predicted = given.text if verdict else extracted(given.text)
    begin, end = (0, len(given.text)) if verdict else span(given.text)
    shift = max(0, "".join(token.token for token in given.tokens).find(given.text))
    sure = of_part(given.tokens, begin + shift, end + shift)
    if samples and given.problem is None:
        more = await sample(client, form, prompt(item, style), samples, replace(settings, temperature=SAMPLED_AT))
        said = [(each.text if verdict else extracted(each.text)) for each in more if each.problem is None]
        sure = sum(each == predicted for each in said) / samples
    if not verdict and given.text.strip() and not is_answer(given.text):
        sure = 0.0
    return predicted, replace(given, confidence=sure)


async def evaluate(
    client: AppClient,
    items: Sequence[SurgeItem],
    style: str,
    settings: AppSettings,
    width: int,
    samples: int = 0,
    step: Callable[[], None] = lambda: None,
) -> list[SurgeRecord]:
    """Every item predicted and scored, `width` at a time. Raises ValueError for a style that there is not."""
    if style not in SURGE_STYLES:
        raise ValueError(f"There is no style {style}; there are {', '.join(SURGE_STYLES)}.")

    async def one(item: SurgeItem) -> SurgeRecord:
        began = time.monotonic()
        predicted, given = await predict(client, item, style, settings, samples)
        step()
        return record(item, style, predicted, given, time.monotonic() - began)

    return await gather(one, items, width)


def record(item: SurgeItem, style: str, predicted: str, given: AppAnswer[Any], seconds: float) -> SurgeRecord:
    return SurgeRecord(
        item.id,
        item.kind,
        item.column,
        item.rule,
        style,
        predicted,
        item.truth,
        SCORERS[item.rule](predicted, item.truth),
        PUBLISHED[item.rule](given.text if item.rule == "errors" else predicted, item.truth),
        given.confidence,
        given.outcome,
        given.problem,
        round(seconds, 3),
    )
