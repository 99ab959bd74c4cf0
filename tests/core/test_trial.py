"""Grammars that crash or stall a compiler cost their own request alone."""

import json
import os
import random
from typing import Any

import pytest

from paceline.core.errors import InputError
from paceline.core.grammar import Grammar
from paceline.core.trial import TRIALS, Trials

PIECES = ['"a"', "b", "c", "/[a-z]{1,40}/", "/(x|y)*z/", "(b | c)", "b?", "c{1,3}", "start", "%json {}", "~4"]


def chain(n: int, last: str = '"x"') -> str:
    return "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(n)) + f"a{n}: {last}\n"


def defs(n: int) -> dict[str, Any]:
    made = {f"a{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(n)}
    return {"$ref": "#/$defs/a0", "$defs": {**made, f"a{n}": {"type": "string"}}}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("lark", chain(3000)),
        ("lark", chain(3000, "a0")),
        ("json_schema", json.dumps(defs(1500))),
        ("regex", "|".join("a" * i + "b" for i in range(510))),
    ],
    ids=["chain", "circle", "schema", "slow"],
)
def test_this_process_lives(kind: Any, text: str) -> None:
    try:
        Grammar(kind, text)
    except InputError as error:
        assert len(str(error)) < 600
    assert Grammar("regex", "a+b").text == "a+b", "the next one is compiled"


def test_a_child_that_dies_is_replaced_and_its_verdict_kept() -> None:
    trials = Trials()
    source = json.dumps({"grammars": [{"lark_grammar": chain(3000)}]})
    first = trials.fault(source, {})
    assert "nested too deeply" in first and trials.fault(source, {}) == first
    assert trials.fault(json.dumps({"grammars": [{"lark_grammar": 'start: "x"'}]}), {}) == ""


def test_children_are_few() -> None:
    for i in range(30):
        Grammar("regex", f"a{{{i + 1}}}b")
    assert len(TRIALS._idle) <= 2


def grammar(draw: random.Random) -> tuple[Any, str]:
    if draw.random() < 0.3:
        depth = draw.choice((1, 20, 99, 300))
        return "regex", "(" * depth + draw.choice(("a", "[a-z]{1,30}", ".*")) + draw.choice(
            (")", ")*", "){1,9}")
        ) * depth
    rules = draw.choice((2, 5, 300, 1200))
    names = [f"r{i}" for i in range(rules)]
    lines = [f"start: {draw.choice(names)}"]
    for i, name in enumerate(names):
        nearby = [names[min(rules - 1, i + 1)], names[draw.randrange(rules)], *PIECES]
        lines.append(f"{name}: " + draw.choice((" ", " | ")).join(draw.choices(nearby, k=draw.randrange(1, 4))))
    return "lark", "\n".join([*lines, 'b: "b"', "c: b"])


@pytest.mark.parametrize("count", [40, pytest.param(4000, marks=pytest.mark.full)])
def test_fuzzed_grammars_end_in_a_grammar_or_a_sentence(count: int) -> None:
    draw, pid = random.Random(7), os.getpid()
    for _ in range(count):
        try:
            Grammar(*grammar(draw))
        except InputError as error:
            assert str(error).endswith(".")
    assert os.getpid() == pid
