"""A pass whose rows enter and leave the layers where each text needs: in stages, one for each stretch of layers
between two such places, over the rows that run through it. Weights of a layer are read once for all texts."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from paceline.core.component import Model
from paceline.core.errors import IntegrityError
from paceline.core.program import WHOLE, Entry, Program, inputs
from paceline.core.rows import Out, Rows, RowsBuilder, Segment


def forward(
    model: Model,
    rows: Rows,
    entries: Sequence[Entry | None],
    exits: Sequence[int | None] = (),
    narrow: bool = False,
) -> Out:
    """As `model.forward(rows)`, with for each text the rows that have passed its first layers already, and the number
    of layers behind which its rows leave (None: all), with the logits of an early exit there. `narrow`: as in
    `Program`.

    `Out.leave` [T, H] has each row's hidden state where it left before the last layer. A tap of a row that does not run
    there is that of its entry, or zeros.
    """
    if not exits and not any(entries):
        return model.forward(rows)
    layers = inputs(model.places)
    ends = [layers if end is None else end for end in exits] or [layers] * len(rows.segments)
    cuts = sorted({0, *ends, *(entry.layer for entry in entries if entry is not None)})
    if cuts == [0, layers]:
        return model.forward(rows)
    walk = _Walk(model, rows, list(entries), ends, layers, narrow)
    for first, last in pairwise(cuts):
        walk.stage(first, last)
    return walk.out()


def head(model: Model, hidden: Tensor, layer: int) -> Tensor:
    """Logits [T, V] of an early exit from hidden states [T, H] that enter this layer, as a draft has them: final norm
    and head alone."""
    builder = RowsBuilder()
    for _ in range(len(hidden)):
        builder.add([0], [0], [0], 0)
    rows = builder.build(model.device, program=Program(layer, layer, narrow=True))
    return model.forward(replace(rows, hidden=hidden)).logits


def head_layers(model: Model) -> float:
    """What the head costs in layers, by their numbers of weights; 0 where these are not known."""
    spec = getattr(model, "spec", None)
    if spec is None:
        return 0.0
    narrowed = getattr(model, "narrowed", None)
    words = spec.vocab if narrowed is None else len(narrowed.words)
    layer = spec.hidden * (2 * spec.head_dim * (spec.heads + spec.kv_heads) + 3 * spec.ffn)
    return float(words * spec.hidden / max(layer, 1))


def skipped(segment: Segment, entry: Entry | None, first: int) -> int:
    """Rows at the start of a text that enter behind this layer."""
    return len(entry.hidden) if entry is not None and entry.layer > first else 0


@dataclass
class _Walk:
    """One pass on its way up."""

    model: Model
    rows: Rows
    entries: list[Entry | None]
    ends: list[int]
    layers: int
    narrow: bool

    def __post_init__(self) -> None:
        self.state: Tensor | None = None
        self.logits: Tensor | None = None
        self.taps: dict[str, Tensor] = {}
        want = self.rows.numbers[len(self.rows.numbers) - self.rows.wanted :]
        self.line = {row: line for line, row in enumerate(want)}
        for segment, entry in zip(self.rows.segments, self.entries):
            if entry is not None:
                own = slice(segment.start, segment.start + len(entry.hidden))
                self._states(entry.hidden)[own] = entry.hidden
                for tap, states in entry.taps.items():
                    if tap in self.rows.taps:
                        self._tap(tap, states)[own] = states

    def stage(self, first: int, last: int) -> None:
        """Layers first .. last, over the rows that run through them."""
        kept = [
            segment.rows if end <= first else skipped(segment, entry, first)
            for segment, entry, end in zip(self.rows.segments, self.entries, self.ends)
        ]
        whose = [
            segment.start + rank
            for segment, start in zip(self.rows.segments, kept)
            for rank in range(start, segment.rows)
        ]
        if not whose:
            return
        leaving = {
            segment.start + rank
            for segment, end in zip(self.rows.segments, self.ends)
            if end == last
            for rank in range(segment.rows)
        }
        want = [place for place, row in enumerate(whose) if row in leaving and row in self.line]
        taps = tuple(tap for tap in self.rows.taps if self._runs(tap, first, last))
        ends = bool(leaving)
        part = replace(
            select(self.rows, kept, want),
            program=Program(first, last, head=ends, narrow=self.narrow),
            taps=(*taps, "pre_norm") if ends and last < self.layers and "pre_norm" not in taps else taps,
            hidden=None if first == 0 or self.state is None else self.state[whose],
        )
        out = self.model.forward(part)
        for tap in taps:
            self._tap(tap, out.taps[tap])[whose] = out.taps[tap]
        left = out.taps["pre_norm"] if ends and last < self.layers else out.leave
        if left is not None:
            self._states(left)[whose] = left
        if want:
            if self.logits is None:
                self.logits = out.logits.new_zeros(len(self.line), out.logits.shape[1])
            self.logits[[self.line[whose[place]] for place in want]] = out.logits

    def out(self) -> Out:
        logits = torch.empty(0, self.model.vocab_size) if self.logits is None else self.logits
        return Out(logits, self.taps, self.state)

    def _runs(self, tap: str, first: int, last: int) -> bool:
        """Is this hidden state one of a pass over these layers?"""
        if not tap.startswith("input:"):
            return last == self.layers
        return first <= int(tap.removeprefix("input:")) < last

    def _states(self, like: Tensor) -> Tensor:
        if self.state is None:
            self.state = like.new_zeros(self.rows.count, like.shape[1])
        return self.state

    def _tap(self, tap: str, like: Tensor) -> Tensor:
        if tap not in self.taps:
            self.taps[tap] = like.new_zeros(self.rows.count, like.shape[1])
        return self.taps[tap]


def select(rows: Rows, kept: Sequence[int], want: Sequence[int]) -> Rows:
    """Rows of the same pass without the first `kept[i]` rows of text i, whose K/V is already there: the rows of a chain
    become given ones. `want`: rows of the new pass whose logits are wanted."""
    numbers, count, width = rows.numbers, rows.count, rows.width
    tables = numbers[4 * count : 4 * count + len(rows.segments) * width]
    columns = [array("q") for _ in range(4)]
    segments, blocks = list[Segment](), array("q")
    for i, (segment, start) in enumerate(zip(rows.segments, kept)):
        if start == segment.rows:
            continue
        own = segment.start + start, segment.start + segment.rows
        parts = [numbers[k * count + own[0] : k * count + own[1]] for k in range(4)]
        given, nodes = segment.given - start, segment.nodes
        if given < 1:
            nodes_at = 3 * count + segment.start + segment.given
            words = numbers[nodes_at : nodes_at + nodes]
            if any(word & (1 << 64) - 1 != (2 << rank) - 1 for rank, word in enumerate(words)):
                raise IntegrityError("Rows of a tree enter a pass half done; only those of a chain can.")
            given, nodes, parts[3] = segment.rows - start, 0, array("q", [0] * (segment.rows - start))
        at = len(columns[0])
        segments.append(segment._replace(start=at, given=given, nodes=nodes, base=segment.base + start))
        for column, part in zip(columns, parts):
            column.extend(part)
        blocks.extend(tables[i * width : (i + 1) * width])
    joined = array("q")
    for column in (*columns, blocks, array("q", want)):
        joined.extend(column)
    return Rows(joined, width, segments, rows.device, WHOLE)
