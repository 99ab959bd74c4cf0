"""Mixers that read the text through a state: short convolutions, Mamba-2, the gated delta rule."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.model.linear import Linear
from paceline.model.scan import SCANNED_ROWS, Steps, ancestors_of, causal, scanned
from paceline.model.spec import Delta, Mamba, ShortConv
from paceline.model.state import Part, Scan, Shape

L2_FLOOR = 1e-6
"""Added to a key's squared length before it is divided by its length."""
Layout = tuple[list[tuple[Shape, torch.dtype]], int]
"""Shapes and dtypes of the parts of a state; numbers of a row's record."""


def layout_of(form: ShortConv | Mamba | Delta, hidden: int, dtype: torch.dtype) -> Layout:
    """How a layer's state and records lie in memory. `dtype`: of what the layers compute with."""
    if isinstance(form, ShortConv):
        return [((form.length - 1, hidden), dtype)], hidden
    tail = ((form.length - 1, form.channels), dtype)
    return [tail, (form.matrix, widened(dtype))], form.record


def widened(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a state that is added up over a whole text."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(slots=True)
class GatedConv:
    """A layer's mixer: of input projections B, C and x [T, hidden] each, C times a convolution of B x over the last
    tokens of a row's path. inner: [T, hidden] -> [T, 3 * hidden]; `weight` [length, hidden],
    the oldest token's first."""

    form: ShortConv
    index: int
    """Its number among the recurrent layers."""
    inner: Linear
    weight: Tensor
    bias: Tensor | None
    out: Linear

    def __call__(self, x: Tensor, scan: Scan) -> Tensor:
        before, gate, own = self.inner(x).chunk(3, -1)
        rows = before * own
        mixed = self.mix(rows, scan)
        scan.record(self.index, rows)
        return self.out(gate * mixed[scan.own])

    def mix(self, rows: Tensor, scan: Scan) -> Tensor:
        """The convolution [N, hidden] of all rows; leaves the anchors."""
        conv = Convolved(self.index, self.weight, self.bias, scan.everything(self.index, rows), scan)
        for part in scan.parts:
            for row, place in part.anchors:
                scan.anchor(self.index, place, [conv.tail(part.first + row)])
        return conv.outputs

    def replay(self, scan: Scan) -> None:
        """Leave the anchors of a scan without rows of its own."""
        self.mix(self.weight.new_empty(0, self.weight.shape[1]), scan)


class Convolved:
    """A causal convolution of each channel of inputs [N, n] along every row's own path; weight [length, n], bias [n].
    The first part of a layer's state is the last length - 1 inputs."""

    def __init__(self, index: int, weight: Tensor, bias: Tensor | None, inputs: Tensor, scan: Scan) -> None:
        length = len(weight)
        self.window = scan.window(length)
        starts = [scan.start(index, text)[0].to(inputs.dtype) for text in range(len(scan.parts))]
        self.past = torch.cat((*starts, inputs))
        y = torch.zeros_like(inputs) if bias is None else bias.expand_as(inputs).to(inputs.dtype)
        for number, part in enumerate(weight.to(inputs.dtype)):
            y = y.addcmul(self.past.index_select(0, self.window[:, number]), part)
        self.outputs = y

    def tail(self, row: int) -> Tensor:
        """The last length - 1 inputs up to a row."""
        return self.past[self.window[row, 1:]]


@dataclass(slots=True)
class GatedNorm:
    """RMS norm of each of `groups` equal parts of a row, in float32 or wider, and silu of a gate: the gate `first`, or
    behind the norm. `weight` [n / groups, or n]."""

    weight: Tensor
    eps: float
    groups: int
    first: bool

    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        gate = F.silu(gate.to(x.dtype))
        if self.first:
            x = x * gate
        apart = x.view(*x.shape[:-1], self.groups, -1)
        normed = apart * torch.rsqrt(apart.square().mean(-1, keepdim=True) + self.eps)
        normed = normed * self.weight.view(-1, normed.shape[-1])
        return normed.flatten(-2) if self.first else normed.flatten(-2) * gate


@dataclass(slots=True)
class Recurrence:
    """A layer's mixer: its input becomes a gate z, channels that a short convolution mixes, and some numbers more
    for each head; a scan over them (scan.py); the norm of what comes out.

    inner: [T, hidden] -> [T, n]; `split` takes these apart: z [T, width] and the record [T, form.record], channels
    first. `steps` makes of convolved channels and the rest of the record what the scan reads."""

    form: Mamba | Delta
    index: int
    """Its number among the recurrent layers."""
    inner: Callable[[Tensor], tuple[Tensor, Tensor]]
    kernel: Tensor
    """[length, channels], the oldest token's first."""
    bias: Tensor | None
    steps: "Callable[[Tensor, Tensor], Steps]"
    through: Tensor | None
    """[heads] factor of a value that is added to what comes out (Mamba-2's D)."""
    norm: GatedNorm | None
    out: Linear

    def __call__(self, x: Tensor, scan: Scan) -> Tensor:
        gate, rows = self.inner(x)
        mixed = self.mix(rows, scan)[scan.own]
        scan.record(self.index, rows)
        mixed = mixed * F.silu(gate.to(mixed.dtype)) if self.norm is None else self.norm(mixed, gate)
        return self.out(mixed.to(x.dtype))

    def mix(self, rows: Tensor, scan: Scan) -> Tensor:
        """What the scan gives of all rows [N, width]; leaves the anchors."""
        everything, channels = scan.everything(self.index, rows), self.form.channels
        conv = Convolved(self.index, self.kernel, self.bias, everything[:, :channels], scan)
        wide = widened(rows.dtype)
        convolved = F.silu(conv.outputs).to(wide)
        steps = self.steps(convolved, everything[:, channels:].to(wide))
        mixed = torch.cat([self._text(scan, text, steps, conv) for text in range(len(scan.parts))], 2)
        if self.through is not None:
            mixed = mixed + self.through.view(*mixed.shape[:2], 1, 1) * convolved_values(self.form, convolved)
        tiled = isinstance(self.form, Delta) and self.form.tiled
        return mixed.permute((2, 1, 0, 3) if tiled else (2, 0, 1, 3)).flatten(1)

    def _text(self, scan: Scan, text: int, steps: Steps, conv: Convolved) -> Tensor:
        """y [G, R, rows, P] of one text's rows."""
        part = scan.parts[text]
        anchors, state, made = dict(part.anchors), scan.start(self.index, text)[1], list[Tensor]()
        mine = steps.part(part.first, part.first + part.rows)

        def leave(row: int, matrix: Tensor) -> None:
            if row in anchors:
                scan.anchor(self.index, anchors[row], [conv.tail(part.first + row), matrix])

        for first, last in spans(part):
            rows = scanned(mine.part(first, last), state, causal(last - first, state.device))
            made.append(rows.outputs())
            state = rows.after(last - first - 1)
            leave(last - 1, state)
        if part.parents:
            tree = scanned(mine.part(part.chain, part.rows), state, ancestors_of(part.parents, state.device))
            made.append(tree.outputs())
            for row in anchors:
                if row >= part.chain:
                    leave(row, tree.after(row - part.chain))
        return torch.cat(made, 2)

    def replay(self, scan: Scan) -> None:
        """Leave the anchors of a scan without rows of its own."""
        self.mix(self.kernel.new_empty(0, self.form.record), scan)


def spans(part: Part) -> list[tuple[int, int]]:
    """A chain's rows, cut behind anchors and where they are many."""
    cuts = sorted(
        {0, *range(0, part.chain, SCANNED_ROWS), *(row + 1 for row, _ in part.anchors if row < part.chain), part.chain}
    )
    return list(pairwise(cuts))


def convolved_values(form: Mamba | Delta, convolved: Tensor) -> Tensor:
    """The values [G, R, N, P] among convolved channels."""
    assert isinstance(form, Mamba)
    values = convolved[:, : form.heads * form.head_dim]
    return values.view(-1, form.groups, form.heads // form.groups, form.head_dim).permute(1, 2, 0, 3)


@dataclass(slots=True)
class MambaSteps:
    """What Mamba-2's scan reads: of channels x, B and C, and of a time step for each head."""

    form: Mamba
    rate: Tensor
    """[heads], below 0"""
    offset: Tensor
    """[heads], of the time steps"""

    def __call__(self, convolved: Tensor, rest: Tensor) -> Steps:
        form = self.form
        low, high = form.limits
        time = F.softplus(rest + self.offset).clamp(low, high)  # [N, heads]
        heads, keys = form.heads * form.head_dim, form.groups * form.state

        def by_group(x: Tensor) -> Tensor:
            return x.view(len(x), form.groups, form.state).transpose(0, 1)

        def by_head(x: Tensor) -> Tensor:
            return x.t().view(form.groups, form.heads // form.groups, -1)

        values = convolved_values(form, convolved)
        return Steps(
            by_head(time * self.rate),
            by_group(convolved[:, heads : heads + keys]),
            by_group(convolved[:, heads + keys :]),
            values * by_head(time)[..., None],
        )


@dataclass(slots=True)
class DeltaSteps:
    """What the gated delta rule's scan reads: of queries, keys and values, and of two numbers for each head."""

    form: Delta
    rate: Tensor
    """[heads], below 0"""
    offset: Tensor
    """[heads]"""

    def __call__(self, convolved: Tensor, rest: Tensor) -> Steps:
        form = self.form
        width = form.key_heads * form.key_dim
        query, key, value = convolved.split_with_sizes([width, width, form.width], -1)
        strength, decay = rest.chunk(2, -1)
        ratio = form.heads // form.key_heads

        def by_group(x: Tensor) -> Tensor:
            x = x.view(len(x), form.key_heads, form.key_dim)
            return (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_FLOOR)).transpose(0, 1)

        def by_head(x: Tensor) -> Tensor:
            if form.tiled:
                return x.t().view(ratio, form.key_heads, -1).transpose(0, 1)
            return x.t().view(form.key_heads, ratio, -1)

        if form.tiled:
            values = value.view(-1, ratio, form.key_heads, form.head_dim).permute(2, 1, 0, 3)
        else:
            values = value.view(-1, form.key_heads, ratio, form.head_dim).permute(1, 2, 0, 3)
        return Steps(
            by_head(self.rate * F.softplus(decay + self.offset)),
            by_group(key),
            by_group(query) * form.key_dim**-0.5,
            values,
            by_head(strength.sigmoid()),
        )


@dataclass(slots=True)
class TakenApart:
    """Input projections, of which some columns are a gate, and the others what is recorded, in the order of `order`."""

    inner: Linear
    gate: int

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.inner(x)
        return y[:, : self.gate], y[:, self.gate :]
