"""The parts of a decoder layer: plain classes over tensors, weights fused and packed at load."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.attend import Attend
from paceline.attend.turn import rotate_
from paceline.model.attending import LatentAttention, VariedAttention
from paceline.model.linear import Linear
from paceline.model.norms import Norm
from paceline.model.per_token import LayerClose
from paceline.model.recurrent import GatedConv, Recurrence
from paceline.model.rotary import Turn
from paceline.model.spec import Experts, ModelSpec
from paceline.model.state import Scan

if TYPE_CHECKING:
    from paceline.model.adapters import AdaptedRows


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def relu2(x: Tensor) -> Tensor:
    return F.relu(x).square_()


ACTIVATE: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "gelu_tanh": gelu_tanh, "relu2": relu2}


@dataclass(frozen=True, slots=True)
class Xielu:
    """xIELU (arXiv 2411.13010): a parabola above 0 and an exponential below, with numbers that were learned."""

    above: float
    below: float
    beta: float
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        wide = x if x.dtype is torch.float64 else x.float()
        low = wide.clamp(max=self.eps).expm1_().sub_(wide).mul_(self.below)
        bent = torch.where(wide > 0, self.above * wide * wide, low)
        return bent.add_(wide, alpha=self.beta).to(x.dtype)


@dataclass(slots=True)
class SelfAttention:
    """A layer's mixer. qkv: [T, hidden] -> [T, (heads + 2 kv_heads) * head_dim]; `head_norm` has a row of weights for
    each head of q and k. With `ModelSpec.gated_attention` there are heads * head_dim gates more behind them."""

    spec: ModelSpec
    index: int
    qkv: Linear
    head_norm: Norm | None
    out: Linear
    sinks: Tensor | None = None
    """[heads], see `ModelSpec.sinks`."""
    value: Linear | None = None
    """Matrix of the values alone, where it is quantised in another way than q's and k's."""

    def __call__(self, x: Tensor, turn: Turn, attend: Attend) -> Tensor:
        spec = self.spec
        turned = spec.heads + spec.kv_heads
        projected, gate = self.projected(x), None
        if spec.gated_attention:
            sizes = [(turned + spec.kv_heads) * spec.head_dim, spec.heads * spec.head_dim]
            projected, gate = projected.split_with_sizes(sizes, -1)
        qkv = projected.view(len(x), turned + spec.kv_heads, spec.head_dim)
        if spec.norm_turned and self.head_norm is not None:
            rotate_(qkv.narrow(1, 0, turned), turn)
            self.head_norm.over_(qkv.narrow(1, 0, turned))
            kv = qkv.narrow(1, spec.heads, 2 * spec.kv_heads).view(len(x), 2, spec.kv_heads, spec.head_dim)
            return self.out(attend.forward(self.index, qkv.narrow(1, 0, spec.heads), kv))
        if self.head_norm is not None:
            self.head_norm.over_(qkv.narrow(1, 0, turned))
        mixed = attend.turned(self.index, qkv, turn)
        return self.out(mixed if gate is None else mixed * gate.sigmoid())

    def projected(self, x: Tensor) -> Tensor:
        """Queries, keys, values and gates."""
        made = self.qkv(x)
        if self.value is None:
            return made
        first = (self.spec.heads + self.spec.kv_heads) * self.spec.head_dim
        return torch.cat((made[:, :first], self.value(x), made[:, first:]), -1)


Attending = SelfAttention | VariedAttention | LatentAttention
"""Mixers that attend."""


@dataclass(slots=True)
class SideBySide:
    """A layer's mixer: attention and a recurrence over the same input, added together."""

    attention: SelfAttention
    recurrence: Recurrence


@dataclass(slots=True)
class FeedForward:
    """A dense feed-forward part. gate_up: [T, hidden] -> [T, 2 * width], or [T, width] where it is not gated."""

    spec: ModelSpec
    gate_up: Linear
    down: Linear
    gates: Callable[[Tensor], Tensor] | None = None
    """A kernel in place of activation and product."""
    curve: Callable[[Tensor], Tensor] | None = None
    """An activation of its own."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.mixed(self.gate_up(x)))

    def mixed(self, both: Tensor) -> Tensor:
        """[T, width] of gates and what they gate [T, 2 * width], or of [T, width] where nothing is gated."""
        if self.gates is not None:
            return self.gates(both)
        if self.spec.activation == "swiglu_clamped":
            gate, up = both.chunk(2, -1)
            return clamped(gate, up, *self.spec.swiglu)
        activate = ACTIVATE[self.spec.activation] if self.curve is None else self.curve
        if not self.spec.gated:
            return activate(both)
        gate, up = both.chunk(2, -1)
        return activate(gate).mul_(up)


def clamped(gate: Tensor, up: Tensor, slope: float, limit: float) -> Tensor:
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1).mul_(gate * (slope * gate).sigmoid_())


@dataclass(slots=True)
class Mixture:
    """A mixture of experts. router: [T, hidden] -> [T, count]; shared_gate: [T, hidden] -> [T, 1], both in float32 or
    wider; correction: [count], see `Experts.corrected`."""

    form: Experts
    router: Linear
    experts: list[FeedForward]
    shared: FeedForward | None
    shared_gate: Linear | None
    correction: Tensor | None = None
    adapted: "AdaptedRows | None" = None
    """Adapters of the rows, where some were given."""
    record: Callable[[Tensor], None] | None = None
    """Called with the experts [T, active] that the rows of a pass use."""
    loads: int = 0
    """How often an expert's weights were read, the shared one's not counted."""
    factors: Tensor | None = None
    """[count] factors of the experts' weights."""

    def __call__(self, x: Tensor, told: Tensor | None = None) -> Tensor:
        """`told`: what the router reads in place of x."""
        weights, chosen = routes(self.form, self.router(x if told is None else told), self.correction)
        if self.factors is not None:
            weights = weights * self.factors[chosen]
        if self.record is not None:
            self.record(chosen)
        y, numbers = torch.zeros_like(x), sorted(set(chosen.flatten().tolist()))
        self.loads += len(numbers)
        for number in numbers:
            row, rank = (chosen == number).nonzero(as_tuple=True)
            given, worth = x.index_select(0, row), weights[row, rank, None].to(x.dtype)
            with nullcontext() if self.adapted is None else self.adapted.among(row):
                part = self.experts[number](given * worth if self.form.weighs_inputs else given)
            y.index_add_(0, row, part if self.form.weighs_inputs else part.mul_(worth))
        return self.add_shared(x, y)

    def add_shared(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the expert that every row uses, if there is one, to what the chosen ones gave."""
        if self.shared is not None:
            part = self.shared(x)
            y.add_(part if self.shared_gate is None else part.mul_(self.shared_gate(x).sigmoid().to(x.dtype)))
        return y


@dataclass(slots=True)
class BesideMixture:
    """A dense part and a mixture next to each other, each with norms of its own (Gemma 4): `norm` of what experts read,
    `router_norm` of what the router reads, both of the stream; `dense_post` and `post` of what the two parts give."""

    dense: FeedForward
    mixture: Mixture
    norm: Norm
    router_norm: Norm
    dense_post: Norm
    post: Norm

    def __call__(self, normed: Tensor, stream: Tensor) -> Tensor:
        y = self.dense_post(self.dense(normed))
        return y.add_(self.post(self.mixture(self.norm(stream), self.router_norm(stream))))


def routes(form: Experts, scores: Tensor, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights and numbers [T, active] of the experts that each row with these router scores [T, count] uses."""
    if form.score == "sparse":
        return sparse_routes(form, scores)
    shares = scores.softmax(-1) if form.score == "softmax" else scores.sigmoid()
    worth = shares if correction is None else shares + correction
    if form.groups > 1:
        by_group = worth.view(len(worth), form.groups, -1)
        best = by_group.topk(form.group_best, -1).values.sum(-1).topk(form.active_groups, -1).indices
        left_out = torch.ones_like(by_group[:, :, 0], dtype=torch.bool).scatter_(1, best, False)
        worth = by_group.masked_fill(left_out[:, :, None], -torch.inf).view_as(worth)
    chosen = worth.topk(form.active, -1).indices
    weights = shares.gather(-1, chosen)
    if form.normed:
        weights = weights / (weights.sum(-1, keepdim=True) + form.floor)
    return weights if form.scale == 1 else weights * form.scale, chosen


def sparse_routes(form: Experts, scores: Tensor) -> tuple[Tensor, Tensor]:
    """As `routes`: the best expert with its share among those near it, then the best of the others, and so on."""
    left, found = scores, []
    for _ in range(form.active):
        best, number = left.max(-1, keepdim=True)
        far = (best - scores) / torch.maximum(scores.abs(), best) > form.near
        found.append((left.masked_fill(far, -torch.inf).softmax(-1).gather(-1, number), number))
        left = left.scatter(-1, number, -torch.inf)
    weights, chosen = (torch.cat(parts, -1) for parts in zip(*found))
    return weights, chosen


@dataclass(slots=True)
class Block:
    """One layer: a mixer and a feed-forward part, each with its norms. The post norms are those of gemma's four."""

    spec: ModelSpec
    attention_norm: Norm | None
    mixer: Attending | GatedConv | Recurrence | SideBySide | None
    attention_post_norm: Norm | None
    ffn_norm: Norm | None
    ffn: FeedForward | Mixture | BesideMixture | None
    ffn_post_norm: Norm | None
    close: LayerClose | None = None

    @property
    def attention(self) -> Attending | None:
        """The part of the mixer that attends."""
        if isinstance(self.mixer, SideBySide):
            return self.mixer.attention
        return self.mixer if isinstance(self.mixer, Attending) else None

    @property
    def mixture(self) -> Mixture | None:
        """The feed-forward part's mixture, if there is one."""
        ffn = self.ffn.mixture if isinstance(self.ffn, BesideMixture) else self.ffn
        return ffn if isinstance(ffn, Mixture) else None

    @property
    def recurrence(self) -> GatedConv | Recurrence | None:
        """The part of the mixer that keeps a state."""
        if isinstance(self.mixer, SideBySide):
            return self.mixer.recurrence
        return self.mixer if isinstance(self.mixer, GatedConv | Recurrence) else None

    def attend(
        self,
        x: Tensor,
        entry: Tensor | None,
        turn: Turn | None,
        attend: Attend | None,
        scan: Scan | None = None,
        normed: Tensor | None = None,
        feeds: bool = True,
    ) -> Tensor | None:
        """Add the mixer's contribution to the residual stream x [T, hidden], in place. It reads `entry`, if there
        is one, not x. `turn`: of attention, `scan`: of a recurrent mixer; `normed`: what an earlier part gave for it.
        `feeds`: does the feed-forward part follow? What that is to read, where it is known."""
        if self.mixer is None:
            return None
        stream = x if entry is None else entry
        if normed is None:
            normed = stream if self.attention_norm is None else self.attention_norm(stream)
        if (attention := self.attention) is not None:
            assert turn is not None and attend is not None
            y = attention(normed, turn, attend)
        if (recurrence := self.recurrence) is not None:
            assert scan is not None
            beside = recurrence(normed, scan)
            y = beside if attention is None else y + beside
        y = y if self.attention_post_norm is None else self.attention_post_norm(y)
        if self.spec.parallel:
            self.contribute(x, y)
            return normed
        return self.contribute(x, y, self.ffn_norm if feeds and self.ffn is not None else None)

    def feed(self, x: Tensor, normed: Tensor | None = None, then: Norm | None = None) -> Tensor | None:
        """Add the feed-forward part's contribution, in place. `normed`: what `attend` gave. The norm `then` of the
        sum."""
        if self.ffn is None:
            return None
        norm = self.attention_norm if self.spec.parallel else self.ffn_norm
        if normed is None:
            normed = x if norm is None else norm(x)
        y = self.ffn(normed, x) if isinstance(self.ffn, BesideMixture) else self.ffn(normed)
        return self.contribute(x, y if self.ffn_post_norm is None else self.ffn_post_norm(y), then)

    def contribute(self, x: Tensor, y: Tensor, norm: Norm | None = None) -> Tensor | None:
        y = y if self.spec.residual_scale == 1 else y.mul_(self.spec.residual_scale)
        if norm is not None:
            return norm.joined(x, y)
        x.add_(y)
        return None
