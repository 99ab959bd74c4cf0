"""The search for values: everything that lacks is an object of which nothing is known, until the execution needs more.

It needs more where a run ends with an error on a line that holds a put-in value, and where a condition on such a value
keeps lines from running. One value is changed then, to one that the fragment's uses of it allow, and the fragment runs
again. The run with the most lines counts, so no change makes it worse.
"""

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

MOST_TRIES = 3
"""Values that are tried for one key at one place."""


@dataclass(frozen=True, slots=True)
class PicoNeed:
    """A key whose value should change: the line, why, and whether lines were missed rather than an error met."""

    key: str
    line: int
    why: str
    missed: int = 0


@dataclass(slots=True)
class PicoSearch:
    """What was tried so far, by key and line."""

    tried: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    orders: dict[tuple[str, int], list[str]] = field(default_factory=dict)

    def left(self, need: PicoNeed) -> bool:
        at = (need.key, need.line)
        done = len(self.tried.get(at, ()))
        return done < min(MOST_TRIES, len(self.orders.get(at, ())) if at in self.orders else MOST_TRIES)

    def next(self, need: PicoNeed) -> str:
        """The next word of its order; `orders` must hold it."""
        at = (need.key, need.line)
        done = self.tried.setdefault(at, [])
        word = self.orders[at][len(done)]
        done.append(word)
        return word


def conditions(source: str, shift: int, ran: Collection[int], lines: Collection[int]) -> list[tuple[int, int, str]]:
    """(line, missed lines, in words) of conditions and loops that ran and kept lines from running, the costliest
    first."""
    found = []
    for block in blocks(ast.parse(source)):
        for place, node in enumerate(block):
            line = node.lineno - shift
            if line not in ran or not isinstance(node, ast.If | ast.While | ast.For | ast.AsyncFor):
                continue
            parts = {"under it": node.body, "of its else": node.orelse}
            if isinstance(node, ast.If) and isinstance(
                node.body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break
            ):
                parts["after it"] = block[place + 1 :]
            for where, part in parts.items():
                missed = [n for n in spanned(part, shift) if n in lines]
                if missed and not any(n in ran for n in missed):
                    found.append((line, len(missed), f"The lines {where} ({missed[0]} to {missed[-1]}) did not run."))
    return sorted(found, key=lambda each: -each[1])


def blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def spanned(part: list[ast.stmt], shift: int) -> list[int]:
    if not part:
        return []
    end = max(getattr(node, "end_lineno", None) or node.lineno for node in part)
    return list(range(part[0].lineno - shift, end - shift + 1))


def needs(
    end: tuple[int | None, str] | None,
    stops: list[tuple[int, int, str]],
    on: Mapping[int, tuple[str, ...]],
    recent: list[str],
) -> Iterator[PicoNeed]:
    """Proposed changes, the most useful first. `end`: line and text of the error that ended the run; `stops`: as
    `conditions`; `on`: put-in keys by line; `recent`: all keys put in, the newest first."""
    if end is not None:
        line, text = end
        for key in on.get(line or 0, ()) or recent[:3]:
            yield PicoNeed(key, line or 0, text)
    for line, missed, why in stops:
        for key in on.get(line, ()):
            yield PicoNeed(key, line, why, missed)
