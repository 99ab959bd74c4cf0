"""Predictors of a missing value: none, a table of types, or a model.

The model is asked as in SelfPiCo (section 3.3): first for a value, with its reason before it and all of it as JSON; a
failed answer is shown to the model once more; then for one of 15 type words, whose dummy stands in. Every prompt begins
with the same examples, and the fragment comes before the question, so that a server's prefix cache holds all but the
last lines.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, Field

from ..common.ask import AppAnswer, AppSettings, Prompt, ask
from ..common.client import AppClient
from ..common.forms import Choice, Json
from .box.dummies import PICO_TYPES

VALUE_ROUNDS = 2
DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Hole:
    """What a fragment lacks: the `error` that it met at `line`, and the `problem` of the guess before, if any."""

    key: str
    kind: str
    name: str
    line: int
    error: str
    problem: str
    tried: int

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> "Hole":
        return cls(**{name: said[name] for name in cls.__slots__})


Guess = dict[str, Any]
"""{"stop": true}, {"type": word} or {"code": statements, "expression": text}; further keys are for the report."""
STOP: Guess = {"stop": True}


class Predictor(Protocol):
    """`predict` is asked again, with `hole.problem`, until a guess can be evaluated or it stops."""

    name: str

    async def predict(self, hole: Hole, fragment: str) -> Guess: ...


class Nothing:
    """As is: what is missing stays missing."""

    name = "nothing"

    async def predict(self, hole: Hole, fragment: str) -> Guess:
        return STOP


@dataclass(slots=True)
class Types:
    """A predictor of types alone: `choose` gives one of the 15 words for a hole (LExecutor; see table.py)."""

    choose: Callable[[Hole, str], str]
    name: str = "types"

    async def predict(self, hole: Hole, fragment: str) -> Guess:
        return STOP if hole.tried else {"type": self.choose(hole, fragment)}


class Value(BaseModel):
    """A model's answer: the reason first, then statements that the expression needs, then the expression."""

    reason: Annotated[str, Field(max_length=120)]
    code: Annotated[str, Field(max_length=240)]
    expression: Annotated[str, Field(min_length=1, max_length=100)]


PICO_SYSTEM = (
    "You are a Python programmer. A fragment of Python runs, but something in it is not defined. Supply it, so that "
    "the fragment runs on past that line in the way its author meant.\n"
    "Answer as JSON: reason, one short sentence; code, statements that define what is needed (imports, classes, "
    'functions) or ""; expression, whose value takes the missing place.'
)
PICO_EXAMPLES = (
    ("total = sum(item.price for item in cart)\nprint(total)", 1, "name", "cart",
     "NameError: name 'cart' is not defined",
     Value(reason="cart is a list of items with a price.",
           code="class Item:\n    def __init__(self, price):\n        self.price = price",
           expression="[Item(3.5), Item(2.0)]")),
    ("parts = line.split(',')\nif len(parts) > 2:\n    print(parts[2])", 1, "name", "line",
     "NameError: name 'line' is not defined",
     Value(reason="line is a text with at least three parts between commas.", code="", expression="'a,b,c'")),
    ("resp = client.get(url)\nif resp.ok:\n    data = resp.json()", 1, "call", "client.get",
     "TypeError: nothing is known of this callable",
     Value(reason="get returns a response with ok and json().",
           code="class Response:\n    ok = True\n    def json(self):\n        return {'id': 1}",
           expression="Response()")),
    ("if self.debug and not force:\n    self.log.append(message)", 1, "attribute", "debug",
     "AttributeError: 'Dummy' object has no attribute 'debug'",
     Value(reason="debug is a flag, and true lets the line below run.", code="", expression="True")),
)  # fmt: skip
TYPE_TASK = "Of which type is the value that is missing? Answer with one word of: " + ", ".join(PICO_TYPES) + "."


def data_of(fragment: str) -> str:
    return f"The fragment:\n```python\n{fragment.strip()}\n```"


def question(fragment: str, line: int, kind: str, name: str, error: str) -> str:
    lines = fragment.splitlines()
    here = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    what = f"the result of the call {name}(...)" if kind == "call" else f"the {kind} {name}"
    return f"Line {line}: `{here}`\n{error}\nMissing: {what}."


@dataclass(slots=True)
class PicoModel:
    """SelfPiCo's predictor over a server. `learned` holds, per key, the last expression that fragments ran on with."""

    client: AppClient
    name: str = "selfpico"
    learned: dict[str, Guess] = field(default_factory=dict)
    deadline_s: float = DEADLINE_S

    async def predict(self, hole: Hole, fragment: str) -> Guess:
        if hole.tried == 0 and hole.key in self.learned and not hole.problem:
            return {**self.learned[hole.key], "how": "learned"}
        if hole.tried <= VALUE_ROUNDS - 1:
            value = await self.ask_value(hole, fragment)
            if value.value is not None:
                found = value.value
                return {"code": found.code, "expression": found.expression, "reason": found.reason, "how": "value",
                        "confidence": value.confidence}  # fmt: skip
        if hole.tried > VALUE_ROUNDS:
            return STOP
        answer = await self.ask_type(hole, fragment)
        return {"type": answer.get(), "how": f"type ({answer.outcome})", "confidence": answer.confidence}

    async def ask_value(self, hole: Hole, fragment: str) -> AppAnswer[Value]:
        task = question(fragment, hole.line, hole.kind, hole.name, hole.error)
        if hole.problem:
            task += f"\nAn earlier answer failed: {hole.problem}\nAnswer differently."
        examples = tuple(
            (f"{data_of(text)}\n\n{question(text, line, kind, name, error)}", value.model_dump_json())
            for text, line, kind, name, error, value in PICO_EXAMPLES
        )
        prompt = Prompt(task, data_of(fragment), PICO_SYSTEM, examples)
        return await ask(self.client, Json(Value), prompt, self.settings(max_tokens=220, retries=0))

    async def ask_type(self, hole: Hole, fragment: str) -> AppAnswer[str]:
        task = f"{question(fragment, hole.line, hole.kind, hole.name, hole.error)}\n{TYPE_TASK}"
        prompt = Prompt(task, data_of(fragment), PICO_SYSTEM)
        return await ask(
            self.client, Choice(PICO_TYPES), prompt, self.settings(max_tokens=8), fallback=lambda problem: "Object"
        )

    def settings(self, **more: Any) -> AppSettings:
        return AppSettings(deadline_s=self.deadline_s, **more)

    def keep(self, guesses: Mapping[str, Guess]) -> None:
        """Learn from a fragment that ran to its end: the values that it ran on."""
        for key, guess in guesses.items():
            if guess.get("expression"):
                self.learned[key] = {k: v for k, v in guess.items() if k != "how"}
