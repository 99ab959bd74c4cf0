"""Matrices of a decoder that an adapter may change, and what their modules are called in checkpoints.

Each is that of the loader (loader.py, load_parts.py): the same modules side by side, their outputs in the same order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from paceline.model.families import FAMILIES
from paceline.model.family import Names
from paceline.model.packed import attention_inputs, by_head, by_kind, gates_last, halves, interleave
from paceline.model.spec import (
    Attention,
    Both,
    Counted,
    Delta,
    Dense,
    Experts,
    Latent,
    Mamba,
    Mixer,
    ModelSpec,
    ShortConv,
)

Order = Callable[[Tensor], Tensor]
"""Puts a matrix's outputs in the decoder's order."""
LATENT_UP = "mixer.up"
"""The up projection of latent attention. The decoder has no such matrix: it holds keys and values apart."""


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
    inputs: Order | None = None
    """Puts a matrix's inputs in the decoder's order, as rows."""


def lora_places(spec: ModelSpec, native: bool, interleaved: bool, apart: Sequence[bool] = ()) -> Iterator[LoraPlace]:
    """All matrices that an adapter may change. `apart`: whether a layer has the values in a matrix of their own."""
    names = FAMILIES[spec.family].names
    for index, layer in enumerate(spec.layers):
        places = LayerPlaces(spec, names, index, native, interleaved, bool(apart) and apart[index])
        yield from places.mixer(layer.mixer)
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
        below: str = "", inputs: Order | None = None, factors: Counted | None = None,
    ) -> LoraPlace:  # fmt: skip
        """`factors`: of outputs, which are a part of the decoder's weights."""
        at = self.names.layer.format(self.index) + below
        whole = outs if len(modules) == len(outs) else (sum(outs),)
        order = order if factors is None else partial(times, factors, order)
        return LoraPlace(self.index, matrix, tuple(at + name for name in modules), whole, width, order, inputs)

    def mixer(self, form: Mixer | None, at: str = "mixer") -> Iterator[LoraPlace]:
        spec, names, hidden, by = self.spec, self.names, self.spec.hidden, self.spec.multipliers
        if isinstance(form, Both):
            yield from self.mixer(form.attention, f"{at}.attention")
            yield from self.mixer(form.recurrence, f"{at}.recurrence")
        elif isinstance(form, Latent):
            yield from self.latent(form)
        elif isinstance(form, Attention):
            yield from self.varied(form) if spec.value_norm else self.attention(form, at)
        elif isinstance(form, ShortConv):
            yield self.place("mixer.inner", (names.conv_in,), (3 * hidden,), hidden)
            yield self.place("mixer.out", (names.conv_out,), (hidden,), hidden)
        elif isinstance(form, Mamba):
            keys = form.groups * form.state
            parts, below = (form.width, form.width, keys, keys, form.heads), names.mamba
            inner, out = (None, None) if by is None else (by.inner(parts), ((hidden, by.scan_out),))
            yield self.place(f"{at}.inner.inner", ("in_proj",), (sum(parts),), hidden, below=below, factors=inner)
            yield self.place(f"{at}.out", ("out_proj",), (hidden,), form.width, below=below, factors=out)
        elif isinstance(form, Delta):
            as_named = checkpoint_form(spec, form)
            order = partial(by_kind, form=as_named) if as_named.fused else None
            order, inputs = (partial(in_turns, form), partial(value_turns, form)) if form.tiled else (order, None)
            inner_names, outs = names.inner(as_named), tuple(as_named.inner)
            yield self.place("mixer.inner.inner", inner_names, outs, hidden, order, names.delta)
            yield self.place("mixer.out", ("out_proj",), (hidden,), form.width, below=names.delta, inputs=inputs)

    def attention(self, form: Attention, at: str) -> Iterator[LoraPlace]:
        spec, names, values, by = self.spec, self.names, self.apart, self.spec.multipliers
        q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        order = partial(
            _heads, spec, 2 * len(form.rope.inverse), self.native, self.interleaved, not values, bool(names.gate)
        )
        first, sizes = attention_inputs(spec, names, values)
        inner, out = (None, None) if by is None else (by.qkv(q, kv), ((spec.hidden, by.attention_out),))
        yield self.place(f"{at}.qkv", first, sizes, spec.hidden, order, factors=inner)
        if values:
            yield self.place("mixer.value", names.qkv[2:], (kv,), spec.hidden)
        yield self.place(f"{at}.out", (names.out,), (spec.hidden,), q, factors=out)

    def latent(self, form: Latent) -> Iterator[LoraPlace]:
        spec, hidden, inner = self.spec, self.spec.hidden, self.spec.hidden
        whole, first, _, second, down, _, up = self.names.latent
        each, query = form.head_dim + 2 * len(form.rope.inverse), whole
        if form.query_rank is not None:
            inner, query = form.query_rank, second
            yield self.place("mixer.first", (first,), (inner,), hidden)
        heads, tail = (partial(_tails, kept, size) if form.interleaved else None
                       for kept, size in ((form.head_dim, each), (form.rank, form.width)))  # fmt: skip
        yield self.place("mixer.query", (query,), (spec.heads * each,), inner, heads)
        yield self.place("mixer.latent", (down,), (form.width,), hidden, tail)
        yield self.place(LATENT_UP, (up,), (spec.heads * (form.head_dim + form.value_dim),), form.rank)
        yield self.place("mixer.out", (self.names.out,), (hidden,), spec.heads * form.value_dim)

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
        gated, by = 1 + spec.gated, spec.multipliers
        if isinstance(form, Dense):
            pairs = interleave if self.native and spec.gated else None
            inner, out = (None, None) if by is None else (by.gates(form.width), ((hidden, by.down),))
            yield self.place("ffn.gate_up", names.gate_up, (form.width,) * gated, hidden, pairs, factors=inner)
            yield self.place("ffn.down", (names.down,), (hidden,), form.width, factors=out)
        if not isinstance(form, Experts) or form.beside:
            return
        yield self.place("ffn.router", (names.router,), (form.count,), hidden)
        for number in range(form.count):
            below, mine = names.expert.format(number), f"ffn.experts.{number}"
            opening, down = [name.format(number) for name in names.expert_gate_up], names.expert_down.format(number)
            yield self.place(f"{mine}.gate_up", opening, (form.width,) * gated, hidden, below=below)
            yield self.place(f"{mine}.down", (down,), (hidden,), form.width, below=below)
        if form.shared:
            shared, down = names.shared_gate_up or names.expert_gate_up, names.shared_down or names.expert_down
            yield self.place("ffn.shared.gate_up", shared, (form.shared,) * gated, hidden, below=names.shared)
            out = ((hidden, form.shared_scale),)
            yield self.place("ffn.shared.down", (down,), (hidden,), form.shared, below=names.shared, factors=out)
            if form.shared_gated:
                yield self.place("ffn.shared_gate", (names.shared_gate,), (1,), hidden)


def times(factors: Counted, order: Order | None, rows: Tensor) -> Tensor:
    """Rows times their factors, in the decoder's order."""
    by = torch.cat([torch.full((count, 1), factor) for count, factor in factors])
    return rows * by if order is None else order(rows * by)


def checkpoint_form(spec: ModelSpec, form: Delta) -> Delta:
    """A gated delta rule as the family's checkpoints have it, whatever file the model is from: adapters have their
    names and order."""
    return replace(form, fused=FAMILIES[spec.family].delta == "fused", paired=False, tiled=False)


def value_turns(form: Delta, rows: Tensor, back: bool = False) -> Tensor:
    """Rows of all value heads, head by head -> in turns of the key heads, as GGUF files have them; or `back`."""
    sizes = (form.key_heads, form.heads // form.key_heads)
    return rows.view(*(reversed(sizes) if back else sizes), -1, rows.shape[1]).transpose(0, 1).reshape(rows.shape)


def in_turns(form: Delta, rows: Tensor) -> Tensor:
    """Rows of all input projections, turned alike: gates, queries, keys, values, rates and decays."""
    keys = form.channels - form.width
    gates, fixed, *heads = rows.split_with_sizes([form.width, keys, form.width, form.heads, form.heads])
    return torch.cat((value_turns(form, gates), fixed, *(value_turns(form, part) for part in heads)))


def _tails(kept: int, each: int, rows: Tensor) -> Tensor:
    """Rows of heads of `each`, whose rows behind the first `kept` go from pairs to halves."""
    apart, turned = rows.view(-1, each, rows.shape[1]), each - kept
    order = halves(torch.arange(turned), 1, turned, turned)
    return torch.cat((apart[:, :kept], apart[:, kept + order]), 1).reshape(rows.shape)


def _heads(
    spec: ModelSpec, rotated: int, native: bool, interleaved: bool, values: bool, beside: bool, rows: Tensor
) -> Tensor:
    if spec.gated_attention:
        rows = gates_last(spec, beside, rows)
        if not native:
            return rows
        turned = (spec.heads + (1 + values) * spec.kv_heads) * spec.head_dim
        return torch.cat((by_head(rows[:turned], spec.heads, spec.kv_heads, values), rows[turned:]))
    if interleaved:
        rows = halves(rows, spec.heads + spec.kv_heads, spec.head_dim, rotated)
    return by_head(rows, spec.heads, spec.kv_heads, values) if native else rows
