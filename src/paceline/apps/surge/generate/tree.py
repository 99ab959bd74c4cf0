"""Small random programs as trees, rendered in six languages: the same program must print the same in all of them.

All values are integers of at most a few thousand, kept there by `%` of what is never negative, so that no language's
overflow, rounding or sign of a remainder shows.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

SURGE_MOST = 997


@dataclass(frozen=True)
class Set:
    """name = (terms) % SURGE_MOST; the first time it declares the name."""

    name: str
    value: str
    first: bool = False


@dataclass(frozen=True)
class Loop:
    """name from 0 to count - 1."""

    name: str
    count: int
    body: tuple["Node", ...]


@dataclass(frozen=True)
class If:
    test: str
    yes: tuple["Node", ...]
    no: tuple["Node", ...]


@dataclass(frozen=True)
class Print:
    names: tuple[str, ...]


Node = Set | Loop | If | Print


@dataclass
class Maker:
    """Draws programs; `names` are those declared so far, `loops` the loop variables in scope."""

    draw: random.Random
    names: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)

    def value(self) -> str:
        pool = [*self.names, *self.loops, str(self.draw.randint(1, 9))]
        a, b = self.draw.choice(pool), self.draw.choice(pool)
        times, plus, modulus = (self.draw.randint(*ends) for ends in ((2, 7), (0, 30), (11, SURGE_MOST)))
        return f"({a} * {times} + {b} + {plus}) % {modulus}"

    def test(self) -> str:
        by = self.draw.randint(2, 5)
        return f"{self.draw.choice([*self.names, *self.loops])} % {by} == {self.draw.randrange(by)}"

    def change(self) -> Node:
        return Set(self.draw.choice(self.names), self.value())

    def branch(self) -> Node:
        return If(self.test(), (self.change(),), (self.change(),) if self.draw.random() < 0.5 else ())

    def loop(self, depth: int) -> Node:
        name = "ijk"[len(self.loops)]
        self.loops.append(name)
        body: list[Node] = [self.branch() if self.draw.random() < 0.6 else self.change()]
        if depth > 1 and self.draw.random() < 0.4:
            body.append(self.loop(depth - 1))
        body.append(self.change())
        self.loops.pop()
        return Loop(name, self.draw.randint(2, 5), tuple(body))

    def program(self, names: int = 2, depth: int = 2) -> tuple[Node, ...]:
        nodes: list[Node] = []
        for name in "abcd"[:names]:
            nodes.append(Set(name, str(self.draw.randint(1, 40)), first=True))
            self.names.append(name)
        nodes += [self.loop(depth), self.branch(), Print(tuple(self.names))]
        return tuple(nodes)


@dataclass(frozen=True)
class Style:
    """How a language writes the nodes. `declare`, `loop` and `test` take what stands in them."""

    head: Sequence[str]
    tail: Sequence[str]
    indent: int
    declare: str
    change: str
    loop: str
    test: str
    otherwise: str
    end: str
    show: Callable[[tuple[str, ...]], str]


def _printf(names: tuple[str, ...]) -> str:
    return f'printf("{" ".join("%d" for _ in names)}\\n", {", ".join(names)});'


def _brace(head: Sequence[str], tail: Sequence[str], indent: int, **rest: object) -> Style:
    given = {"test": "if ({}) {{", "otherwise": "}} else {{", "end": "}", "change": "{} = {};", **rest}
    return Style(head, tail, indent, **given)  # type: ignore[arg-type]


INT = {"declare": "int {} = {};", "loop": "for (int {0} = 0; {0} < {1}; {0}++) {{"}
SURGE_TREE_STYLES: dict[str, Style] = {
    "Python": Style([], [], 0, "{} = {}", "{} = {}", "for {0} in range({1}):", "if {}:", "else:", "",
                    lambda names: f"print({', '.join(names)})"),
    "C": _brace(["#include <stdio.h>", "", "int main(void) {"], ["    return 0;", "}"], 1, show=_printf, **INT),
    "C++": _brace(["#include <iostream>", "", "int main() {"], ["}"], 1, **INT,
                  show=lambda names: "std::cout << " + ' << " " << '.join(names) + ' << "\\n";'),
    "Java": _brace(["public class Main {", "    public static void main(String[] args) {"], ["    }", "}"], 2, **INT,
                   show=lambda names: "System.out.println(" + ' + " " + '.join(names) + ");"),
    "JavaScript": _brace([], [], 0, declare="let {} = {};", loop="for (let {0} = 0; {0} < {1}; {0}++) {{",
                         show=lambda names: f"console.log({', '.join(names)});"),
    "Rust": _brace(["fn main() {"], ["}"], 1, declare="let mut {}: i64 = {};", loop="for {0} in 0..{1} {{",
                   test="if {} {{",
                   show=lambda names: f'println!("{" ".join("{}" for _ in names)}", {", ".join(names)});'),
}  # fmt: skip


def render(nodes: Sequence[Node], language: str) -> str:
    """The program's text in a language of SURGE_TREE_STYLES."""
    style = SURGE_TREE_STYLES[language]
    lines = [*style.head, *_lines(nodes, style, style.indent), *style.tail]
    return "\n".join(lines) + "\n"


def _lines(nodes: Sequence[Node], style: Style, depth: int) -> list[str]:
    lines: list[str] = []
    pad = "    " * depth
    for node in nodes:
        match node:
            case Set(name, value, first):
                lines.append(pad + (style.declare if first else style.change).format(name, value))
            case Print(names):
                lines.append(pad + style.show(names))
            case Loop(name, count, body):
                lines += [pad + style.loop.format(name, count), *_lines(body, style, depth + 1)]
                lines += [pad + style.end] if style.end else []
            case If(test, yes, no):
                lines += [pad + style.test.format(test), *_lines(yes, style, depth + 1)]
                lines += [pad + style.otherwise.format(), *_lines(no, style, depth + 1)] if no else []
                lines += [pad + style.end] if style.end else []
    return lines
