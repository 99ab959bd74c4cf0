"""Where the tokens of a joined text stand: its RoPE positions are apart from its slots, and branches do not see one
another (Multiverse, arXiv 2506.09991, section 4).

    places      0 ..... fork | branch 1 | branch 2 | branch 3 | what follows
    positions   0 ..... fork | fork ... | fork ... | fork ... | the longest branch's end ...
    sees        all before   | itself   | itself   | itself   | everything

A *place* is a token's index in its text, and its slot. A text without joins has no stretch: positions are places there.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple


class Stretch(NamedTuple):
    """Tokens from place `start` up to the next stretch: their positions are places less `shift`, and they see what is
    before them but the places [a, b) of `hidden`."""

    start: int
    shift: int = 0
    hidden: tuple[tuple[int, int], ...] = ()


Layout = tuple[Stretch, ...]
"""Stretches by start, of which neighbours differ; before the first one a text is plain. The last one hides nothing:
what comes next sees everything."""
PLAIN = Stretch(0)


def stretch_at(layout: Layout, place: int) -> Stretch:
    """The stretch of a place."""
    number = bisect_right(layout, place, key=lambda stretch: stretch.start)
    return layout[number - 1] if number else PLAIN


def placed(layout: Layout, place: int) -> dict[str, Any]:
    """What `RowsBuilder.add` must know of where rows from `place` on stand."""
    if not layout:
        return {}
    stretch = stretch_at(layout, place)
    return {"shift": stretch.shift, "hidden": stretch.hidden}


def end_of(layout: Layout, place: int, length: int) -> int:
    """End of the stretch that holds a place, in a text of `length` tokens."""
    number = bisect_right(layout, place, key=lambda stretch: stretch.start)
    return min(length, layout[number].start) if number < len(layout) else length


def pieces(layout: Layout, start: int, stop: int) -> list[Stretch]:
    """The stretches of places start .. stop, the first from `start` on."""
    first = stretch_at(layout, start)._replace(start=start)
    return [first, *(stretch for stretch in layout if start < stretch.start < stop)]


def named(layout: Layout, start: int, stop: int) -> list[int]:
    """What the K/V of places start .. stop depends on apart from the tokens, as numbers: [] where they are plain.
    Places of a block come as distances from `start`; equal numbers mean equal positions and sight."""
    found = pieces(layout, start, stop) if layout else []
    if all(not stretch.shift and not stretch.hidden for stretch in found):
        return []
    numbers = []
    for first, shift, hidden in found:
        numbers += [first - start, shift, len(hidden), *(place for pair in hidden for place in pair)]
    return numbers


def joined(fork: int, branches: Sequence[tuple[int, Layout]]) -> Layout:
    """Layout of the text that consists of the branches one after the other. Each branch is given as (length, layout);
    the first `fork` tokens are common to all. Positions continue after the longest branch."""
    made, place, reach = list[Stretch](), fork, 0
    for number, (length, layout) in enumerate(branches):
        by = place - fork
        if not number:
            made += [stretch for stretch in layout if stretch.start < fork]
        for stretch in pieces(layout, fork, length):
            own = tuple((a + by, b + by) for a, b in stretch.hidden)
            made.append(Stretch(stretch.start + by, stretch.shift + by, (*([(fork, place)] if by else []), *own)))
        reach = max(reach, length - shift_of(layout))
        place += length - fork
    return tidy([*made, Stretch(place, place - reach)])


def tidy(stretches: Sequence[Stretch]) -> Layout:
    """Without empty stretches and such as go on as the one before."""
    made = list[Stretch]()
    for stretch in stretches:
        if made and made[-1].start == stretch.start:
            made.pop()
        if stretch[1:] != (made[-1] if made else PLAIN)[1:]:
            made.append(stretch)
    return tuple(made)


def shift_of(layout: Layout) -> int:
    """Shift of the next token: its place minus its position."""
    return layout[-1].shift if layout else 0


def cut(layout: Layout, length: int) -> Layout | None:
    """Layout of the first `length` tokens, if the text can continue from there; None if it cannot: the cut lies inside
    a branch that does not see everything before it."""
    if layout and length <= layout[-1].start and stretch_at(layout, length - 1).hidden:
        return None
    return tuple(stretch for stretch in layout if stretch.start < length)


def moved(layout: Layout, by: int) -> Layout:
    """Layout of a text that became longer by `by` tokens at its beginning; all stretches lie after the inserted
    tokens."""
    return tuple(Stretch(s.start + by, s.shift, tuple((a + by, b + by) for a, b in s.hidden)) for s in layout)
