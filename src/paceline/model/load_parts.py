"""Loader of the parts that few families have: attending.py, per_token.py, a dense part next to a mixture."""

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.model.attending import LatentAttention, VariedAttention
from paceline.model.blocks import ACTIVATE, BesideMixture, Mixture, Xielu
from paceline.model.groups import GROUP
from paceline.model.linear import Packing
from paceline.model.norms import LayerNorm, Norm, WholeNorm
from paceline.model.packed import halves
from paceline.model.parts import Prepared
from paceline.model.per_token import LayerClose, TokenInputs
from paceline.model.spec import Attention, Latent, Rope

if TYPE_CHECKING:
    from paceline.model.loader import Loader

XIELU = ("alpha_p", "alpha_n", "beta", "eps")
"""Names of the numbers of an activation (`Xielu`)."""
LATENT_EPS = 1e-6
"""Epsilon of the norms of latent vectors, whatever the config says of the others."""


class PartLoader:
    """Takes the tensors of these parts through a loader, whose packing and names it uses."""

    def __init__(self, loader: "Loader") -> None:
        self.loader, self.spec, self.names = loader, loader.spec, loader.names

    def curve(self, at: str) -> Xielu:
        """A layer's own activation."""
        above, below, beta, eps = (self.number(at + name) for name in XIELU)
        return Xielu(float(F.softplus(above)), float(beta + F.softplus(below)), float(beta), float(eps))

    def number(self, name: str) -> Tensor:
        """One number, which may be alone in a row."""
        keep, loader = self.loader.keep, self.loader
        if (told := loader.tensors.told(name)) is not None:
            found = torch.tensor(told)
            loader.fingerprint.add(name, found)
            return found
        shape = loader.tensors.shape(name)
        return keep.tensor(name, lambda: loader.take_wide(name, *(shape if shape == (1,) else ()))).view(())

    def latent(self, at: str, place: int, form: Latent) -> LatentAttention:
        """MLA. Rows that are rotated are put in order, half of their number apart."""
        spec, linear = self.spec, self.loader.linear
        whole, first, first_norm, second, down, norm, up = self.names.latent
        rotated = 2 * len(form.rope.inverse)
        each, hidden = form.head_dim + rotated, spec.hidden
        order = turning(rotated) if form.interleaved else torch.arange(rotated)

        def heads(rows: Tensor) -> Tensor:
            apart = rows.view(spec.heads, each, -1)
            return torch.cat((apart[:, : form.head_dim], apart[:, form.head_dim + order]), 1).reshape(rows.shape)

        def tail(rows: Tensor) -> Tensor:
            return torch.cat((rows[: form.rank], rows[form.rank + order]))

        inner = form.query_rank
        made = self.loader.take(f"{at}{up}.weight", spec.heads * (form.head_dim + form.value_dim), form.rank)
        keys, values = made.view(spec.heads, -1, form.rank).tensor_split([form.head_dim], 1)
        compute = self.loader.packing.compute
        self.loader.bytes += made.numel() * compute.itemsize
        return LatentAttention(
            place,
            first=None if inner is None else linear(at, (first,), (inner,), hidden, spec.qkv_bias),
            first_norm=None if inner is None else self.norm(at + first_norm, inner, LATENT_EPS),
            query=linear(
                at, (whole if inner is None else second,), (spec.heads * each,), inner or hidden, False, heads
            ),
            latent=linear(at, (down,), (form.width,), hidden, spec.qkv_bias, tail),
            norm=self.norm(at + norm, form.rank, LATENT_EPS),
            keys=keys.to(compute).contiguous(),
            values=values.transpose(1, 2).to(compute).contiguous(),
            out=linear(at, (self.names.out,), (hidden,), spec.heads * form.value_dim, spec.out_bias),
        )

    def varied(self, at: str, place: int, form: Attention) -> VariedAttention:
        spec, names, linear = self.spec, self.names, self.loader.linear
        kept, eps = spec.kept(form), spec.norm_eps
        own, kv = form.shares is None, kept.heads * kept.width
        exact = torch.float64 if self.loader.packing.dtype is torch.float64 else torch.float32
        values = torch.ones(kept.width, dtype=exact, device=self.loader.device)
        inner = names.qkv[1 : 2 if form.same else 3]
        return VariedAttention(
            place,
            spec.heads,
            kept.heads,
            kept.width,
            query=linear(at, names.qkv[:1], (spec.heads * kept.width,), spec.hidden, spec.qkv_bias),
            query_norm=self.norm(at + names.q_norm, kept.width),
            keys=linear(at, inner, (kv,) * len(inner), spec.hidden, spec.qkv_bias) if own else None,
            key_norm=self.norm(at + names.k_norm, kept.width) if own else None,
            value_norm=Norm(values, eps) if own else None,
            out=linear(at, (names.out,), (spec.hidden,), spec.heads * kept.width, spec.out_bias),
        )

    def tokens(self) -> TokenInputs:
        spec, (table, projection, norm) = self.spec, self.names.tokens
        every, width = len(spec.layers) * spec.token_width, spec.token_width
        dtype, form, keep = self.loader.packing.dtype, self.loader.packing.head, self.loader.keep

        def rows() -> Tensor:
            return self.loader.take(f"{table}.weight", spec.token_vocab, every)

        def prepare(form: Packing) -> Prepared:
            mark, found = len(self.loader.fingerprint.parts), rows()
            return Prepared(self.loader.key(table, mark), lambda: form.pack(found, None))

        packed = form is not None and every % GROUP == 0
        return TokenInputs(
            keep.linear(table, lambda: prepare(form)) if packed and form else keep.tensor(table, rows),
            torch.tensor(math.sqrt(width), dtype=dtype).item(),  # rounded as the embedding's
            self.loader.linear("", (projection,), (every,), spec.hidden, False),
            spec.hidden**-0.5,
            self.norm(norm, width),
            width,
        )

    def close(self, at: str) -> LayerClose:
        spec, (gate, projection, norm, factor) = self.spec, self.names.close
        hidden, width, linear = spec.hidden, spec.token_width, self.loader.linear
        return LayerClose(
            ACTIVATE[spec.activation],
            linear(at, (gate,), (width,), hidden, False) if width else None,
            linear(at, (projection,), (hidden,), width, False) if width else None,
            self.norm(at + norm, hidden) if width else None,
            self.loader.keep.tensor(at + factor, lambda: self.loader.take_wide(at + factor, 1)),
        )

    def beside(self, at: str, mixture: Mixture) -> BesideMixture:
        spec, names, form = self.spec, self.names, mixture.form
        before, dense_post, post, factor, worth = (at + name for name in names.beside)
        keep, wide = self.loader.keep.tensor, self.loader.take_wide
        mixture.factors = keep(worth, lambda: wide(worth, form.count))
        factors = keep(factor, lambda: wide(factor, spec.hidden))
        return BesideMixture(
            self.loader.dense(at, names.gate_up, names.down, form.beside),
            mixture,
            norm=self.norm(before, spec.hidden),
            router_norm=Norm(factors * spec.hidden**-0.5, spec.norm_eps),
            dense_post=self.norm(dense_post, spec.hidden),
            post=self.norm(post, spec.hidden),
        )

    def head_norm(self, at: str, rope: Rope) -> Norm | None:
        """Norm of queries and keys in a layer with this rotation."""
        spec, names, weight, rotated = self.spec, self.names, self.loader.norm_weight, 2 * len(rope.inverse)
        if spec.norm_unweighted:
            exact = torch.float64 if self.loader.packing.dtype is torch.float64 else torch.float32
            ones = torch.ones(spec.head_dim, dtype=exact, device=self.loader.device)
            return Norm(ones, spec.norm_eps) if any(rope.inverse) else None
        parts = [(at + names.q_norm, spec.heads), (at + names.k_norm, spec.kv_heads)]
        if spec.layer_norm:
            own = torch.cat([self.each_head(name, count, rotated) for name, count in parts])
            return LayerNorm(own, spec.norm_eps, None)
        if spec.whole_norm:
            q, k = (weight(name, count * spec.head_dim) for name, count in parts)
            return WholeNorm(q, k, spec.norm_eps)
        rows = [row for name, count in parts for row in [weight(name, spec.head_dim)] * count]
        return Norm(torch.stack(rows), spec.norm_eps)

    def each_head(self, name: str, heads: int, rotated: int) -> Tensor:
        """Norm weights [heads, head_dim] that differ by head: in one tensor, or in one for each."""
        width, loader = self.spec.head_dim, self.loader
        if "{}" in name:
            rows = torch.stack([loader.norm_weight(name.format(head), width) for head in range(heads)])
        else:
            exact = torch.float64 if loader.packing.dtype is torch.float64 else torch.float32
            rows = loader.keep.tensor(f"{name}.weight", lambda: loader.take(f"{name}.weight", heads, width).to(exact))
        return halves(rows.flatten(), heads, width, rotated).view(heads, width) if loader.interleaved else rows

    def norm(self, name: str, width: int, eps: float | None = None) -> Norm:
        return Norm(self.loader.norm_weight(name, width), self.spec.norm_eps if eps is None else eps)


def turning(rotated: int) -> Tensor:
    """Numbers of rows that lie in pairs, in the order of halves."""
    return halves(torch.arange(rotated), 1, rotated, rotated)
