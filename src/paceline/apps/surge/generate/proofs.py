"""FL: does a text check, and where does it not? Propositions as Python types, whose programs mypy accepts or not.

The original asks about proofs in Lean 4. What is asked here has the same shape, with a checker that pip installs: an
implication is a Callable, a conjunction a tuple, a disjunction a union, and a proof a function of that type. Half
of the items are syntax that Python's own parser accepts or refuses, which needs nothing at all.
"""

import random

from ..toolchains import PYTHON, Language, checker
from .draft import Draft, Template

SURGE_PROOFS_CHECK = "check.py"
SURGE_HEAD = """from collections.abc import Callable
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")

"""
PROOFS = {
    "modus ponens": ("(f: Callable[[A], B], a: A) -> B", ["return f(a)", "return a", "return f(f)"]),
    "composition": (
        "(f: Callable[[A], B], g: Callable[[B], C], a: A) -> C",
        ["return g(f(a))", "return f(g(a))", "return g(a)"],
    ),
    "commutes": ("(both: tuple[A, B]) -> tuple[B, A]", ["return both[1], both[0]", "return both", "return both[1]"]),
    "projection": ("(both: tuple[A, B]) -> A", ["return both[0]", "return both[1]", "return both[2]"]),
    "weakening": ("(a: A, b: B) -> A", ["return a", "return b", "return (a, b)"]),
    "currying": (
        "(f: Callable[[A, B], C], a: A) -> Callable[[B], C]",
        ["return lambda b: f(a, b)", "return lambda b: f(b, a)", "return f"],
    ),
    "cases": (
        "(f: Callable[[A], C], g: Callable[[B], C], x: tuple[A, None] | tuple[None, B]) -> object",
        ["return x[0]", "return f(x)", "return x.first"],
    ),
}
SURGE_LINES = [
    ("x = [1, 2, 3]", "x = [1, 2, 3"),
    ("if True:\n    y = 2", "if True\n    y = 2"),
    ("def f(a, b=1):\n    return a", "def f(a=1, b):\n    return a"),
    ('s = "quiet"', 's = "quiet'),
    ("z = 3 if True else 4", "z = 3 if True"),
    ("for i in range(3):\n    print(i)", "for i in range(3):\nprint(i)"),
    ("d = {'a': 1}", "d = {'a': 1]"),
]

PARSER = '''"""Checks program.py; prints a verdict as JSON."""

import ast
import json

errors = []
try:
    ast.parse(open("program.py").read())
except SyntaxError as error:
    errors.append({"severity": "error", "pos": {"line": error.lineno, "column": error.offset}, "data": error.msg})
print(json.dumps({"pass": not errors, "errors": errors}))
'''
SURGE_TYPES = '''"""Checks program.py by mypy; prints a verdict as JSON."""

import json
import subprocess
import sys

command = [sys.executable, "-m", "mypy", "--strict", "--output=json", "--no-incremental", "--cache-dir=/dev/null"]
done = subprocess.run([*command, "program.py"], capture_output=True, text=True)
rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
errors = [
    {"severity": "error", "pos": {"line": row["line"], "column": row["column"]}, "data": row["message"]}
    for row in rows
    if row["severity"] == "error"
]
assert bool(errors) == bool(done.returncode), done.stdout + done.stderr
print(json.dumps({"pass": not errors, "errors": errors}))
'''


def syntax(draw: random.Random) -> Draft:
    """Four lines of which none or one does not parse."""
    picked = draw.sample(SURGE_LINES, 4)
    broken = draw.randrange(4) if draw.random() < 0.6 else -1
    text = "\n".join(pair[index == broken] for index, pair in enumerate(picked)) + "\n"
    files = {"program.py": text, SURGE_PROOFS_CHECK: PARSER}
    return Draft("Python", files, "python3 check.py", "errors", {"checker": "parser"})


def proof(draw: random.Random) -> Draft:
    """Two propositions with programs, each of which may prove it or not."""
    text = SURGE_HEAD
    for number, name in enumerate(draw.sample(sorted(PROOFS), 2)):
        statement, bodies = PROOFS[name]
        body = bodies[0] if draw.random() < 0.7 else draw.choice(bodies[1:])
        text += f"\ndef theorem_{number}{statement}:  # {name}\n    {body}\n\n"
    files = {"program.py": text.rstrip() + "\n", SURGE_PROOFS_CHECK: SURGE_TYPES}
    return Draft("Python", files, "{python} check.py", "errors", {"checker": "mypy"})


def formal() -> list[tuple[Language, Template]]:
    return [(PYTHON, syntax), (PYTHON, proof)] if checker() else [(PYTHON, syntax)]
