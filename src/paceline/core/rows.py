"""The forward pass seen from outside: `Rows` in, `Out` out.

A request's rows are contiguous: first its *given* rows (prompt or committed tokens), then its candidates.

    slots of a request   0 ............. base | base .. base+given | candidates (reserved, one slot each)
    a given row sees     every slot up to its own
    a candidate sees     every slot < base + given, and the candidates named in its tree word
    no row sees          the segment's hidden slots

A row's position is its place (the index of its slot in the text) less the segment's shift: 0, and nothing hidden, in a
text without joins (core/joined.py).
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.program import WHOLE, Program
from paceline.core.result import Round

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Segment(NamedTuple):
    """One request's rows: `start .. start+given+nodes` of the flat arrays; plain integers, no device sync. In the order
    of the native library's."""

    start: int
    given: int
    nodes: int
    base: int
    """Committed K/V slots of this group before the pass; the first given row has slot `base`."""
    shift: int = 0
    """Place less position, of all rows."""
    adapter: int = 0
    """Slot of the adapter that its rows are computed with; 0: none. A model without adapters ignores it."""
    hidden: tuple[tuple[int, int], ...] = ()
    """Slots [a, b) below `base` that its rows do not see."""

    @property
    def rows(self) -> int:
        return self.given + self.nodes


@dataclass
class Rows:
    """Input of one forward pass; T rows over R requests. As tensors, int64 on `device`, made when first asked for:

    token, position  [T]  token id; RoPE position
    slot             [T]  where the row's K/V goes in the pool (block * block_size + offset)
    word             [T]  bit j: candidate j of the same request is this row or its ancestor; 0 for given rows
    tables           [R, B]  block ids in order, padded with 0; they cover base + given + nodes slots
    want             [L]  rows whose logits are wanted, ascending
    """

    numbers: "array[int]"
    """The arrays above, one after the other in this order, on the host."""
    width: int
    """B"""
    segments: list[Segment]
    device: "torch.device | str" = "cpu"
    program: Program = WHOLE
    hidden: "Tensor | None" = None
    """Hidden states [T, H] to enter with when the program does not start at layer 0."""
    taps: tuple[str, ...] = ()
    """Hidden states to return: `input:i` (input of layer i), `pre_norm`, `post_norm` (before and behind the final
    norm). InputError when the program has no such place."""

    tokens: "Tensor | None" = None
    """[T] on the device, in place of those in `numbers`, where only the device knows them."""

    @property
    def count(self) -> int:
        """T"""
        return self.segments[-1].start + self.segments[-1].rows

    @property
    def wanted(self) -> int:
        """L"""
        return len(self.numbers) - 4 * self.count - len(self.segments) * self.width

    @cached_property
    def bounds(self) -> "Tensor":
        """[R, 4] int64 on the device: start, given, nodes and base of each segment."""
        import torch

        return torch.tensor([segment[:4] for segment in self.segments]).to(self.device)

    @cached_property
    def _tensors(self) -> "Sequence[Tensor]":
        import torch

        lengths = [self.count] * 4 + [len(self.segments) * self.width, self.wanted]
        parts = torch.frombuffer(self.numbers, dtype=torch.int64).to(self.device).split_with_sizes(lengths)
        return parts if self.tokens is None else (self.tokens, *parts[1:])

    @property
    def token(self) -> "Tensor":
        return self._tensors[0]

    @property
    def position(self) -> "Tensor":
        return self._tensors[1]

    @property
    def slot(self) -> "Tensor":
        return self._tensors[2]

    @property
    def word(self) -> "Tensor":
        return self._tensors[3]

    @property
    def tables(self) -> "Tensor":
        return self._tensors[4].view(len(self.segments), self.width)

    @property
    def want(self) -> "Tensor":
        return self._tensors[5]


@dataclass(slots=True)
class Drawn:
    """What a run brought one of its texts: tokens, of which the last has no row yet, and its rounds."""

    tokens: list[int]
    rounds: list[Round]


@dataclass(slots=True)
class Out:
    """logits: raw, float32 or float64 [L, V] for the wanted rows; taps {name: [T, H]}, of a run one row for each token
    of each text in turn; leave: hidden states [T, H] where the program has no head (logits are then empty); drawn: of a
    run (logits are then empty, too), a text each; drafting: seconds that a run spent on drafts."""

    logits: "Tensor"
    taps: "dict[str, Tensor]" = field(default_factory=dict)
    leave: "Tensor | None" = None
    drawn: list[Drawn] = field(default_factory=list)
    drafting: float = 0.0
    error: Exception | None = None
    """What a run's proposer raised: its drafts ended there, the texts did not."""


class RowsBuilder:
    """Collects the rows of one pass request by request."""

    def __init__(self) -> None:
        self._flat: tuple[list[int], ...] = ([], [], [], [])
        self._tables: list[list[int]] = []
        self._want: list[int] = []
        self._segments: list[Segment] = []

    def add(
        self,
        tokens: list[int],
        slots: list[int],
        table: list[int],
        base: int,
        *,
        depths: list[int] | None = None,
        words: list[int] | None = None,
        want: list[int] | None = None,
        shift: int = 0,
        hidden: tuple[tuple[int, int], ...] = (),
        adapter: int = 0,
    ) -> None:
        """One request: given rows at places base, base + 1, ..., then candidates `depths[j]` places after the last
        given row with tree words `words[j]`. `want`: ranks of rows whose logits are wanted (the last one). `shift`,
        `hidden`, `adapter`: see `Segment`."""
        nodes = len(depths) if depths else 0
        given = len(tokens) - nodes
        start, first = len(self._flat[0]), base - shift
        root = first + given - 1
        positions = [*range(first, first + given), *(root + d for d in depths or ())]
        row_words = [0] * given + [w - (1 << 64) if w >> 63 else w for w in words or ()]
        for mine, new in zip(self._flat, (tokens, positions, slots, row_words)):
            mine.extend(new)
        self._tables.append(table)
        self._want.extend(start + rank for rank in ([len(tokens) - 1] if want is None else want))
        self._segments.append(Segment(start, given, nodes, base, shift, adapter, hidden))

    def build(self, device: "torch.device | str" = "cpu", taps: tuple[str, ...] = (), program: Program = WHOLE) -> Rows:
        """The pass, for a model on `device`."""
        width, numbers = max(map(len, self._tables)), array("q")
        for part in self._flat:
            numbers.extend(part)
        for table in self._tables:
            numbers.extend(table)
            numbers.extend([0] * (width - len(table)))
        numbers.extend(self._want)
        return Rows(numbers, width, self._segments, device, program, taps=taps)
