"""Building `Rows` by hand: texts fed chunk by chunk into blocks of one's choice, with trees of candidates."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from paceline.core.rows import Out, Rows, Segment


@dataclass
class Chunk:
    """One request's share of a pass: given tokens from slot `base` on, then a tree of candidates.

    parents[j] is the candidate that j follows, or -1 for the last given token.
    """

    table: Sequence[int]
    base: int
    given: Sequence[int]
    tree: Sequence[int] = ()
    parents: Sequence[int] = field(default_factory=tuple)


def words(parents: Sequence[int]) -> list[int]:
    """Bit j of word i: candidate j is i or an ancestor of it; as a signed 64-bit number."""
    made: list[int] = []
    for node, parent in enumerate(parents):
        made.append((1 << node) | (made[parent] if parent >= 0 else 0))
    return made


def signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def depths(parents: Sequence[int]) -> list[int]:
    made: list[int] = []
    for parent in parents:
        made.append(made[parent] + 1 if parent >= 0 else 0)
    return made


def lay_out(
    chunks: Sequence[Chunk], block_size: int, want: Sequence[int] | None = None, taps: tuple[str, ...] = ()
) -> Rows:
    """The rows of one pass; by default logits are wanted of all of them."""
    token, position, slot, word, segments = [], [], [], [], []
    for chunk in chunks:
        given, nodes = len(chunk.given), len(chunk.tree)
        end = chunk.base + given
        segments.append(Segment(len(token), given, nodes, chunk.base))
        token += [*chunk.given, *chunk.tree]
        position += [*range(chunk.base, end), *(end + depth for depth in depths(chunk.parents))]
        places = range(chunk.base, end + nodes)
        slot += [chunk.table[place // block_size] * block_size + place % block_size for place in places]
        word += [0] * given + [signed(w) for w in words(chunk.parents)]
    width = max(len(chunk.table) for chunk in chunks)
    tables = [[*chunk.table, *[0] * (width - len(chunk.table))] for chunk in chunks]
    wanted = range(len(token)) if want is None else want
    numbers = array("q", [*token, *position, *slot, *word, *chain(*tables), *wanted])
    return Rows(numbers, width, segments, taps=taps)


def feed(model: object, tokens: Sequence[int], table: Sequence[int], block_size: int, cuts: Sequence[int]) -> Tensor:
    """Logits of a text fed in passes that end at `cuts`."""
    outs: list[Out] = []
    for start, end in zip([0, *cuts], [*cuts, len(tokens)]):
        rows = lay_out([Chunk(table, start, tokens[start:end])], block_size)
        outs.append(model.forward(rows))  # type: ignore[attr-defined]
    return torch.cat([out.logits for out in outs])
