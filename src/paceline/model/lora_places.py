"""Matrices of a decoder that an adapter may change, and what their modules are called in checkpoints.

Each is that of the loader (loader.py, load_parts.py): the same modules side by side, their outputs in the same order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from paceline.model.families import FAMILIES
from paceline.model.family import Names
from paceline.model.packed import by_head, by_kind, gates_last, halves, interleave
from paceline.model.spec import Attention, Delta, Dense, Experts, Layer, Mamba, ModelSpec, ShortConv

Order = Callable[[Tensor], Tensor]
"""Puts a matrix's outputs in the decoder's order."""


@dataclass(frozen=True, slots=True)
class LoraPlace:
    """A matrix of a decoder, and the modules that lie in it side by side."""

    layer: int
    matrix: str
    """Attribute path below the layer's block."""
    modules: tuple[str, ...]
    outs: tuple[int, ...]
    width: int
    """Inputs."""
    order: Order | None = None


def lora_places(spec: ModelSpec, native: bool, interleaved: bool, apart: Sequence[bool] = ()) -> Iterator[LoraPlace]:
    """All matrices that an adapter may change. `apart`: whether a layer has the values in a matrix of their own."""
    if spec.multipliers is not None:
        return  # its weights hold factors that an adapter's lack
    names = FAMILIES[spec.family].names
    for index, layer in enumerate(spec.layers):
        places = LayerPlaces(spec, names, index, native, interleaved, bool(apart) and apart[index])
        yield from places.mixer(layer)
        yield from places.feed(layer.feed)


@dataclass(frozen=True, slots=True)
class LayerPlaces:
    """Places of one layer."""

    spec: ModelSpec
    names: Names
    index: int
    native: bool
    interleaved: bool
    apart: bool

    def place(
        self, matrix: str, modules: Sequence[str], outs: tuple[int, ...], width: int, order: Order | None = None,
        below: str = "",
    ) -> LoraPlace:  # fmt: skip
        at = self.names.layer.format(self.index) + below
        whole = outs if len(modules) == len(outs) else (sum(outs),)
        return LoraPlace(self.index, matrix, tuple(at + name for name in modules), whole, width, order)

    def mixer(self, layer: Layer) -> Iterator[LoraPlace]:
        spec, names, hidden, form = self.spec, self.names, self.spec.hidden, layer.mixer
        if isinstance(form, Attention):
            yield from self.varied(form) if spec.value_norm else self.attention(form)
        elif isinstance(form, ShortConv):
            yield self.place("mixer.inner", (names.conv_in,), (3 * hidden,), hidden)
            yield self.place("mixer.out", (names.conv_out,), (hidden,), hidden)
        elif isinstance(form, Mamba):
            inner = 2 * form.width + 2 * form.groups * form.state + form.heads
            yield self.place("mixer.inner.inner", ("in_proj",), (inner,), hidden, below=names.mamba)
            yield self.place("mixer.out", ("out_proj",), (hidden,), form.width, below=names.mamba)
        elif isinstance(form, Delta):
            order = partial(by_kind, form=form) if form.fused else None
            inner_names = names.delta_fused if form.fused else names.delta_inner
            yield self.place("mixer.inner.inner", inner_names, tuple(form.inner), hidden, order, names.delta)
            yield self.place("mixer.out", ("out_proj",), (hidden,), form.width, below=names.delta)

    def attention(self, form: Attention) -> Iterator[LoraPlace]:
        spec, names, values = self.spec, self.names, self.apart
        q, kv, gates = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, 1 + spec.gated_attention
        order = partial(_heads, spec, 2 * len(form.rope.inverse), self.native, self.interleaved, not values)
        sizes = (q * gates, kv, kv)[: 3 - values]
        yield self.place("mixer.qkv", names.qkv[: 3 - values], sizes, spec.hidden, order)
        if values:
            yield self.place("mixer.value", names.qkv[2:], (kv,), spec.hidden)
        yield self.place("mixer.out", (names.out,), (spec.hidden,), q)

    def varied(self, form: Attention) -> Iterator[LoraPlace]:
        spec, names, kept = self.spec, self.names, self.spec.kept(form)
        inner = names.qkv[1 : 2 if form.same else 3]
        yield self.place("mixer.query", names.qkv[:1], (spec.heads * kept.width,), spec.hidden)
        if form.shares is None:
            yield self.place("mixer.keys", inner, (kept.heads * kept.width,) * len(inner), spec.hidden)
        yield self.place("mixer.out", (names.out,), (spec.hidden,), spec.heads * kept.width)
        if spec.layer_scale and spec.token_width:
            yield self.place("close.gate", names.close[:1], (spec.token_width,), spec.hidden)
            yield self.place("close.projection", names.close[1:2], (spec.hidden,), spec.token_width)

    def feed(self, form: Dense | Experts | None) -> Iterator[LoraPlace]:
        spec, names, hidden = self.spec, self.names, self.spec.hidden
        gated = 1 + spec.gated
        if isinstance(form, Dense):
            pairs = interleave if self.native and spec.gated else None
            yield self.place("ffn.gate_up", names.gate_up, (form.width,) * gated, hidden, pairs)
            yield self.place("ffn.down", (names.down,), (hidden,), form.width)
        if not isinstance(form, Experts) or form.beside:
            return
        yield self.place("ffn.router", (names.router,), (form.count,), hidden)
        for number in range(form.count):
            below, mine = names.expert.format(number), f"ffn.experts.{number}"
            yield self.place(f"{mine}.gate_up", names.expert_gate_up, (form.width,) * gated, hidden, below=below)
            yield self.place(f"{mine}.down", (names.expert_down,), (hidden,), form.width, below=below)
        if form.shared:
            inner, down = names.shared_gate_up or names.expert_gate_up, names.shared_down or names.expert_down
            yield self.place("ffn.shared.gate_up", inner, (form.shared,) * gated, hidden, below=names.shared)
            yield self.place("ffn.shared.down", (down,), (hidden,), form.shared, below=names.shared)
            if form.shared_gated:
                yield self.place("ffn.shared_gate", (names.shared_gate,), (1,), hidden)


def _heads(spec: ModelSpec, rotated: int, native: bool, interleaved: bool, values: bool, rows: Tensor) -> Tensor:
    if spec.gated_attention:
        rows = gates_last(rows, spec.heads, spec.head_dim)
        if not native:
            return rows
        turned = (spec.heads + (1 + values) * spec.kv_heads) * spec.head_dim
        return torch.cat((by_head(rows[:turned], spec.heads, spec.kv_heads, values), rows[turned:]))
    if interleaved:
        rows = halves(rows, spec.heads + spec.kv_heads, spec.head_dim, rotated)
    return by_head(rows, spec.heads, spec.kv_heads, values) if native else rows
