"""Alternatives of a synopsis, such as `[--fast | --slow]`: options of one pair of brackets exclude one another."""

import re
from collections.abc import Iterator
from itertools import combinations

from .manual import Manual, named

INNERMOST_GROUP = re.compile(r"[\[{(]([^\[\]{}()]*)[\]})](?! ?\.\.\.)")
REPEATED_GROUP = re.compile(r"[\[{(]([^\[\]{}()]*)[\]})] ?\.\.\.")
"""Each of its alternatives may be given."""


def alternatives(manual: Manual) -> Iterator[tuple[str, str]]:
    """Pairs of keys that exclude each other, from the innermost brackets outwards."""
    text = REPEATED_GROUP.sub(" ", manual.synopsis)
    while (found := INNERMOST_GROUP.search(text)) is not None:
        options = [named(part, manual) for part in found[1].split("|") if part.strip().startswith("-")]
        for one, other in combinations(options, 2):
            yield from ((min(a, b), max(a, b)) for a in one for b in other if not {a, b} & {*one} & {*other})
        text = f"{text[: found.start()]} {found[1].replace('|', ' ')} {text[found.end() :]}"
