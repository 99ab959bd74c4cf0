"""Predictors of a missing value: none, one type for each hole, or a ranking of values where the execution needs one.

The model is asked as in SelfPiCo (section 3.3), in its reverse order: first it chooses among the words of values that
the fragment's uses allow, which takes a few tokens; where its best choices did not help it writes a value of its own,
with its reason before it and all of it as JSON. Every prompt begins with the same examples, and the fragment comes
before the question, so that a server's prefix cache holds all but the last lines.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, runtime_checkable

from pydantic import BaseModel, Field

from ..common.ask import AppSettings, Prompt, ask
from ..common.client import AppClient
from ..common.forms import Choice, Json

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


Guess = dict[str, Any]
"""{"stop": true}, {"type": word} or {"code": statements, "expression": text}; further keys are for the report."""
STOP: Guess = {"stop": True}
UNKNOWN_OBJECT: Guess = {"type": "Object", "how": "object"}
CHOICES = 2
"""Words that the model chooses before it writes a value."""


class Predictor(Protocol):
    """`predict` is asked again, with `hole.problem`, until a guess can be evaluated or it stops."""

    name: str

    async def predict(self, hole: Hole, fragment: str) -> Guess: ...


@runtime_checkable
class PicoRanker(Predictor, Protocol):
    """`predict` is asked for what lacks at first, `ranked` which of `words` to try in its place, the best first; then
    `own` for a value that is none of them, None if it has none."""

    async def ranked(self, hole: Hole, fragment: str, words: Sequence[str]) -> list[str]: ...

    async def own(self, hole: Hole, fragment: str) -> Guess | None: ...


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


@dataclass(slots=True)
class Ordered:
    """A ranking without a model: `order` sorts the words for a hole; at first everything is an unknown object."""

    order: Callable[[Hole, str, Sequence[str]], list[str]]
    name: str

    async def predict(self, hole: Hole, fragment: str) -> Guess:
        return STOP if hole.tried else UNKNOWN_OBJECT

    async def ranked(self, hole: Hole, fragment: str, words: Sequence[str]) -> list[str]:
        return self.order(hole, fragment, words)

    async def own(self, hole: Hole, fragment: str) -> Guess | None:
        return None


FREQUENT_VALUES = (
    "None",
    "String",
    "Texts",
    "False",
    "Dictionary",
    "Pairs",
    "Integer",
    "Boolean",
    "List",
    "Empty list",
    "Zero",
)


def usual_order(hole: Hole, fragment: str, words: Sequence[str]) -> list[str]:
    """One order always: what is frequent in programs first."""
    return sorted(
        words, key=lambda word: FREQUENT_VALUES.index(word) if word in FREQUENT_VALUES else len(FREQUENT_VALUES)
    )


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


def data_of(fragment: str) -> str:
    return f"The fragment:\n```python\n{fragment.strip()}\n```"


def question(fragment: str, line: int, kind: str, name: str, error: str) -> str:
    lines = fragment.splitlines()
    here = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    what = f"the result of the call {name}(...)" if kind == "call" else f"the {kind} {name}"
    return f"Line {line}: `{here}`\n{error}\nMissing: {what}."


@dataclass(slots=True)
class PicoModel:
    """SelfPiCo's predictor over a server."""

    client: AppClient
    name: str = "selfpico"
    deadline_s: float = DEADLINE_S

    async def predict(self, hole: Hole, fragment: str) -> Guess:
        return STOP if hole.tried else UNKNOWN_OBJECT

    async def ranked(self, hole: Hole, fragment: str, words: Sequence[str]) -> list[str]:
        """The words by the model's probability; where it gives no answer, the usual order."""
        if len(words) == 1:
            return list(words)
        task = (
            f"{question(fragment, hole.line, hole.kind, hole.name, hole.error)}\nWhich value should it have, so that "
            f"the fragment runs on? Answer with one of: {', '.join(words)}."
        )
        usual = usual_order(hole, fragment, words)
        answer = await ask(
            self.client, Choice(tuple(words)), Prompt(task, data_of(fragment), PICO_SYSTEM),
            self.settings(max_tokens=8), fallback=lambda problem: usual[0],
        )  # fmt: skip
        best = answer.get()
        chances = answer.probabilities
        return sorted(usual, key=lambda word: (word != best, -chances.get(word, 0.0)))[:CHOICES]

    async def own(self, hole: Hole, fragment: str) -> Guess | None:
        task = question(fragment, hole.line, hole.kind, hole.name, hole.error)
        examples = tuple(
            (f"{data_of(text)}\n\n{question(text, line, kind, name, error)}", value.model_dump_json())
            for text, line, kind, name, error, value in PICO_EXAMPLES
        )
        prompt = Prompt(task, data_of(fragment), PICO_SYSTEM, examples)
        answer = await ask(self.client, Json(Value), prompt, self.settings(max_tokens=220, retries=0))
        if answer.value is None:
            return None
        found = answer.value
        return {"code": found.code, "expression": found.expression, "reason": found.reason, "how": "value",
                "confidence": answer.confidence}  # fmt: skip

    def settings(self, **more: Any) -> AppSettings:
        return AppSettings(deadline_s=self.deadline_s, **more)
