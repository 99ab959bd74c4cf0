"""The forward pass seen from outside: `Rows` in, `Out` out, and the protocol between them.

A request's rows are contiguous: first its *given* rows (prompt or committed tokens), then its candidates.

    slots of a request   0 ............. base | base .. base+given | candidates (reserved, one slot each)
    a given row sees     every slot < its own position + 1
    a candidate sees     every slot < base + given, and the candidates named in its tree word
"""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Segment:
    """One request's rows: `start .. start+given+nodes` of the flat arrays; plain integers, no device sync."""

    start: int
    given: int
    nodes: int
    base: int
    """Committed K/V slots of this group before the pass; the first given row has slot and position `base`."""

    @property
    def rows(self) -> int:
        return self.given + self.nodes


@dataclass(slots=True)
class Rows:
    """Input of one forward pass; T rows over R requests. Integers are int64 on the model's device.

    token, position  [T]  token id; RoPE position
    slot             [T]  where the row's K/V goes in the pool (block * block_size + offset)
    word             [T]  bit j: candidate j of the same request is this row or its ancestor; 0 for given rows
    tables           [R, B]  block ids in order, padded with 0; they cover base + given + nodes slots
    want             [L]  rows whose logits are wanted, ascending
    """

    token: Tensor
    position: Tensor
    slot: Tensor
    word: Tensor
    tables: Tensor
    want: Tensor
    segments: list[Segment]
    layers: tuple[int, int] | None = None
    """Layer range [first, last) of the pass; None: all, from embedding to logits."""
    hidden: Tensor | None = None
    """Hidden states [T, H] to enter with when the range does not start at layer 0."""
    taps: tuple[str, ...] = ()
    """Hidden states to return: `input:i` (input of layer i), `pre_norm`, `post_norm`."""


@dataclass(slots=True)
class Out:
    """logits: raw, float32 or float64 [L, V] for the wanted rows; taps {name: [T, H]}; leave: hidden states
    [T, H] when the layer range ends before the last layer (logits are then empty)."""

    logits: Tensor
    taps: dict[str, Tensor] = field(default_factory=dict)
    leave: Tensor | None = None


class Model(Protocol):
    """What computes. The only seam between deciding and computing: a decoder, or a table in tests."""

    vocab_size: int
    max_len: int
    kv_bytes_per_token: int
    weight_bytes: int
    device: torch.device

    def allocate(self, blocks: int, block_size: int) -> None:
        """Make the K/V pool; called once, before any forward."""

    def forward(self, rows: Rows) -> Out:
        """Write the rows' K/V to their slots, attend, return what `rows` asks for."""

    def move(self, source: list[int], target: list[int]) -> None:
        """Copy pool slots source[i] -> target[i], all read before any is written."""


class RowsBuilder:
    """Collects the rows of one pass request by request, then makes the tensors at once."""

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
    ) -> None:
        """One request: given rows at positions base, base + 1, ..., then candidates `depths[j]` places after the
        last given row with tree words `words[j]`. `want`: ranks of rows whose logits are wanted (the last one)."""
        nodes = len(depths) if depths else 0
        given = len(tokens) - nodes
        start, root = len(self._flat[0]), base + given - 1
        positions = [*range(base, base + given), *(root + d for d in depths or ())]
        row_words = [0] * given + [w - (1 << 64) if w >> 63 else w for w in words or ()]
        for mine, new in zip(self._flat, (tokens, positions, slots, row_words)):
            mine.extend(new)
        self._tables.append(table)
        self._want.extend(start + rank for rank in ([len(tokens) - 1] if want is None else want))
        self._segments.append(Segment(start, given, nodes, base))

    def build(self, device: torch.device | str = "cpu", taps: tuple[str, ...] = ()) -> Rows:
        """The tensors of the pass, on `device`."""
        width = max(map(len, self._tables))
        token, position, slot, word = torch.tensor(self._flat, dtype=torch.int64, device=device).unbind(0)
        tables = [t + [0] * (width - len(t)) for t in self._tables]
        return Rows(
            token,
            position,
            slot,
            word,
            tables=torch.tensor(tables, dtype=torch.int64, device=device),
            want=torch.tensor(self._want, dtype=torch.int64, device=device),
            segments=self._segments,
            taps=taps,
        )
