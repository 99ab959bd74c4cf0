"""Loader of weights: tensors by name become the layers of a decoder."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paceline.model import store
from paceline.model.blocks import Attending, BesideMixture, Block, FeedForward, Mixture, SelfAttention, SideBySide
from paceline.model.checkpoint import Tensors
from paceline.model.decoder import Weights
from paceline.model.families import FAMILIES
from paceline.model.family import Names
from paceline.model.fingerprint import Fingerprint, identity
from paceline.model.gguf import GgufTensors
from paceline.model.groups import stack
from paceline.model.json_files import read_json
from paceline.model.linear import Linear, Packing, WideMatrix
from paceline.model.load_parts import PartLoader
from paceline.model.norms import LayerNorm, Norm
from paceline.model.packed import attention_inputs, by_head, by_kind, gates_last, halves, interleave
from paceline.model.parts import Prepared, PreparedTable
from paceline.model.progress import tracked
from paceline.model.recognise import text_config
from paceline.model.recurrent import DeltaSteps, GatedConv, GatedNorm, MambaSteps, Recurrence, TakenApart
from paceline.model.rope import implied
from paceline.model.spec import Attention, Both, Delta, Experts, Latent, Mamba, ModelSpec, Multipliers, ShortConv

log = logging.getLogger("paceline")
MASKED_LOGIT = -1e30
"""A logit that no draw survives, and a finite number in bfloat16."""


class Loader:
    """Takes tensors by name, converts, fuses and packs them, one layer at a time to bound the memory."""

    def __init__(
        self,
        spec: ModelSpec,
        names: Names,
        tensors: Tensors | GgufTensors,
        packing: Packing,
        device: torch.device,
        vocabulary: tuple[int, int] | None = None,
        keep: store.Straight | None = None,
        held: Callable[[int], list[int]] | None = None,
        whole: bool = True,
    ) -> None:
        """`held`: the experts of a layer that this process holds, where others hold the rest; `whole`: with the shared
        expert."""
        self.held, self.shared = held, whole
        self.keep = keep or store.Straight()
        vocab, known = vocabulary or (spec.vocab, spec.vocab)
        self.known = None if vocab == spec.vocab else known
        """Ids that may be drawn, where the rows of embedding and head are not the checkpoint's; else None."""
        self.fitted = replace(spec, vocab=vocab)
        other = tensors.interleaved
        self.interleaved = FAMILIES[spec.family].interleaved is True if other is None else other
        self.spec, self.names, self.tensors, self.packing, self.device = spec, names, tensors, packing, device
        self.bytes = 0
        self.fingerprint = Fingerprint()
        self.parts = PartLoader(self)

    def identity(self, weights: str) -> str:
        """The model's, by the digest of its weights."""
        return identity(weights, self.fitted, self.packing, self.known, self.interleaved)

    def weights(self) -> Weights:
        spec, names, keep, form = self.spec, self.names, self.keep, self.packing.head
        table = self.table
        if form is None or form.kernels:
            embedding: Any = keep.table(names.embedding, lambda: self.keyed(names.embedding, table(names.embedding)))
        else:
            embedding = keep.linear(names.embedding, lambda: self.by_token(names.embedding, form))
        blocks, sections, before = [], [self.fingerprint.since(0)], len(self.fingerprint.parts)
        for index in tracked(range(len(spec.layers)), "Loading"):
            blocks.append(self.block(index))
            sections.append(self.fingerprint.since(before))
            before = len(self.fingerprint.parts)
            self.tensors.let_go()
        norm = self.norm(names.norm, spec.hidden)

        own = not spec.tied or f"{names.head}.weight" in self.tensors.place

        def head() -> Prepared:
            mark = len(self.fingerprint.parts)
            bias = self.head_bias()
            if form is not None and not form.kernels and not (spec.tied and own):
                return self.by_token(names.embedding if spec.tied else names.head, form, bias, mark)
            rows = table(names.embedding) if form is not None and not form.kernels and spec.tied else embedding
            whole = self.head(rows)
            key = self.key(names.head, mark, sections[0])
            return Prepared(key, lambda: (form or self.packing).pack(whole, bias))

        if form is not None and not form.kernels and not own and self.known is None and not spec.head_bias:
            last = self.counted(embedding, 0)  # one copy serves both
        else:
            last = self.counted(keep.linear(names.head, head), spec.vocab * spec.hidden)
        self.tensors.let_go()
        tokens = self.parts.tokens() if spec.token_width else None
        self.tensors.let_go()
        sections.append(self.fingerprint.since(before, sections[0]))
        return Weights(embedding, blocks, norm, last, self.bytes, keep.sections or tuple(sections), tokens)

    def key(self, name: str, mark: int, *more: object) -> str:
        """Name of the matrix that is packed of what was taken since `mark`: equal ones of two models are one."""
        shape = replace(self.fitted, max_len=0, layers=())
        turned = sorted({len(mixer.rope.inverse) for mixer in self.spec.attentions})
        latent = {(it.interleaved, it.head_dim, it.rank) for it in self.spec.attentions if isinstance(it, Latent)}
        order = (turned, sorted(latent), self.interleaved)
        facts = (name, shape, order, self.packing.describe(), self.known, str(self.device), *more)
        return self.fingerprint.since(mark, repr(facts))

    def keyed(self, name: str, table: Tensor) -> PreparedTable:
        """A table under its own digest; it was the last that was taken."""
        return PreparedTable(self.key(name, len(self.fingerprint.parts) - 1), lambda: table)

    def by_token(self, name: str, form: Packing, bias: Tensor | None = None, mark: int | None = None) -> Prepared:
        """Embedding or head with one row for each id: as the file has it where it is quantised, else as `form` rounds
        it. `mark`: how many parts had been taken before the bias."""
        mark, by_groups = len(self.fingerprint.parts) if mark is None else mark, self.packing.groups
        if by_groups is not None:
            groups = self.tensors.groups(f"{name}.weight", (self.spec.vocab, self.spec.hidden))
            if groups is not None and self.spec.hidden % 32 == 0:
                self.fingerprint.add(name, groups.codes, groups.scale, groups.minimum)
                rows = groups.rows(self.fit)
                return Prepared(self.key(name, mark, bias is None), lambda: by_groups(rows, bias))
        table = self.table(name)
        return Prepared(self.key(name, mark, bias is None), lambda: form.pack(table, bias))

    def table(self, name: str) -> Tensor:
        """One row for each id."""
        return self.fit(self.take(f"{name}.weight", self.spec.vocab, self.spec.hidden))

    def fit(self, rows: Tensor) -> Tensor:
        """One row for each id of the target: zeros where the checkpoint has none."""
        missing = self.fitted.vocab - len(rows)
        return torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows

    def closed(self) -> Tensor | None:
        """A bias that keeps ids beyond the tokenizer from being drawn."""
        if self.known is None:
            return None
        bias = torch.zeros(self.fitted.vocab, device=self.device, dtype=self.packing.dtype)
        bias[min(self.known, self.spec.vocab) :] = MASKED_LOGIT
        return bias

    def head_bias(self) -> Tensor | None:
        """The head's own, and what closes ids."""
        closed = self.closed()
        if not self.spec.head_bias:
            return closed
        own = self.take(f"{self.names.head}.bias", self.spec.vocab)
        own = torch.nn.functional.pad(own, (0, self.fitted.vocab - self.spec.vocab))
        return own if closed is None else own + closed

    def head(self, embedding: Tensor) -> Tensor:
        """The head's own weights; of a tied one the embedding, unless the file has a head that differs from it."""
        name, spec = f"{self.names.head}.weight", self.spec
        if spec.tied and name not in self.tensors.place:
            return embedding
        head = self.table(self.names.head)
        if not spec.tied:
            return head
        if torch.equal(head, embedding):
            return embedding
        log.warning("config.json ties %s to the embedding, but the weights hold another one, which is used.", name)
        return head

    def block(self, index: int) -> Block:
        spec, names = self.spec, self.names
        at = names.layer.format(index)

        def norm(name: str) -> Norm | None:
            return self.norm(at + name, spec.hidden) if name else None

        layer = spec.layers[index]
        mixes, feeds = layer.mixer is not None, layer.feed is not None
        return Block(
            spec,
            attention_norm=norm(names.attention_norm) if mixes else None,
            mixer=self.mixer(at, index),
            attention_post_norm=norm(names.attention_post_norm),
            ffn_norm=norm(names.ffn_norm) if feeds and not spec.parallel else None,
            ffn=self.feed(at, index),
            ffn_post_norm=norm(names.ffn_post_norm),
            close=self.parts.close(at) if spec.layer_scale else None,
        )

    def mixer(self, at: str, index: int) -> Attending | GatedConv | Recurrence | SideBySide | None:
        """Its number is that among the layers with the same kind of memory: K/V, or a state."""
        spec = self.spec
        before, form = spec.layers[:index], spec.layers[index].mixer
        keys = sum(layer.attends is not None for layer in before)
        state = sum(layer.recurs is not None for layer in before)
        if form is None:
            return None
        if isinstance(form, Latent):
            return self.parts.latent(at, spec.place(index)[1], form)
        if isinstance(form, Attention) and spec.value_norm:
            return self.parts.varied(at, spec.place(index)[1], form)
        if isinstance(form, Attention):
            return self.attention(at, keys, form)
        if isinstance(form, ShortConv):
            return self.convolution(at, state, form)
        if isinstance(form, Both):
            recurrence = self.mamba(at + self.names.mamba, state, form.recurrence)
            return SideBySide(self.attention(at, keys, form.attention), recurrence)
        if isinstance(form, Mamba):
            return self.mamba(at + self.names.mamba, state, form)
        return self.delta(at + self.names.delta, state, form)

    def attention(self, at: str, number: int, form: Attention) -> SelfAttention:
        spec, names = self.spec, self.names
        q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

        apart = self.packing.groups is not None and self.values_apart(at)

        by = spec.multipliers
        factors, last = None if by is None else repeated(*by.qkv(q, kv)), partial(gates_last, spec, bool(names.gate))
        of_bias = None if by is None else repeated((q, 1.0), (kv, by.key), (kv, 1.0))

        def heads(qkv: Tensor) -> Tensor:
            if spec.gated_attention:
                qkv = last(qkv)
                if not self.packing.native:
                    return qkv
                turned = q + (2 - apart) * kv
                return torch.cat((by_head(qkv[:turned], spec.heads, spec.kv_heads, not apart), qkv[turned:]))
            if self.interleaved:
                qkv = halves(qkv, spec.heads + spec.kv_heads, spec.head_dim, 2 * len(form.rope.inverse))
            return by_head(qkv, spec.heads, spec.kv_heads, not apart) if self.packing.native else qkv

        first, outs = attention_inputs(spec, names, apart)
        return SelfAttention(
            spec,
            number,
            qkv=self.linear(at, first, outs, spec.hidden, spec.qkv_bias, heads, factors, of_bias),
            head_norm=self.parts.head_norm(at, form.rope) if spec.qk_norm else None,
            out=self.linear(
                at,
                (names.out,),
                (spec.hidden,),
                q,
                spec.out_bias,
                factors=None if by is None else repeated((spec.hidden, by.attention_out)),
            ),
            value=self.linear(at, names.qkv[2:], (kv,), spec.hidden, spec.qkv_bias) if apart else None,
            sinks=self.keep.tensor(at + names.sinks, lambda: self.take_wide(at + names.sinks, spec.heads))
            if spec.sinks
            else None,
        )

    def values_apart(self, at: str) -> bool:
        """Whether the file has the values' matrix in another kind than that of the queries."""
        if len(self.names.qkv) < 3:
            return False
        q, k, v = (self.tensors.bits(f"{at}{name}.weight") for name in self.names.qkv)
        return None not in (q, k, v) and q == k != v

    def convolution(self, at: str, number: int, form: ShortConv) -> GatedConv:
        names, hidden = self.names, self.spec.hidden
        kernel = self.take(f"{at}{names.conv}.weight", hidden, 1, form.length)
        self.bytes += kernel.nbytes
        return GatedConv(
            form,
            number,
            inner=self.linear(at, (names.conv_in,), (3 * hidden,), hidden, form.bias),
            weight=kernel[:, 0].t().contiguous(),
            bias=self.take(f"{at}{names.conv}.bias", hidden) if form.bias else None,
            out=self.linear(at, (names.conv_out,), (hidden,), hidden, form.bias),
        )

    def mamba(self, at: str, number: int, form: Mamba) -> Recurrence:
        hidden, by = self.spec.hidden, self.spec.multipliers
        keys = form.groups * form.state
        parts = (form.width, form.width, keys, keys, form.heads)
        of_bias = None if by is None else repeated(*zip(parts, by.scan))
        return Recurrence(
            form,
            number,
            inner=TakenApart(
                self.linear(
                    at, ("in_proj",), (sum(parts),), hidden, form.in_bias,
                    factors=None if by is None else repeated(*by.inner(parts)), of_bias=of_bias,
                ),
                form.width,
            ),
            **self.convolved(at, form, form.conv_bias),
            steps=MambaSteps(form, *self.rates(at, form.heads)),
            through=self.take_wide(at + "D", form.heads),
            norm=self.gated_norm(at, form.width, form.groups, form.norm == "gate_first") if form.norm else None,
            out=self.linear(
                at, ("out_proj",), (hidden,), form.width, form.out_bias,
                factors=None if by is None else repeated((hidden, by.scan_out)),
            ),
        )  # fmt: skip

    def delta(self, at: str, number: int, form: Delta) -> Recurrence:
        names = self.names.inner(form)
        hidden, order = self.spec.hidden, partial(by_kind, form=form) if form.fused or form.paired else None
        return Recurrence(
            form,
            number,
            inner=TakenApart(self.linear(at, names, tuple(form.inner), hidden, False, order), form.width),
            **self.convolved(at, form, False),
            steps=DeltaSteps(form, *self.rates(at, form.heads)),
            through=None,
            norm=self.gated_norm(at, form.head_dim, form.heads, False),
            out=self.linear(at, ("out_proj",), (hidden,), form.width, False),
        )

    def convolved(self, at: str, form: Mamba | Delta, bias: bool) -> dict[str, Any]:
        """Kernel and bias of a recurrence's convolution."""
        kernel = self.take(f"{at}conv1d.weight", form.channels, 1, form.length)
        self.bytes += kernel.nbytes
        offset = self.take(f"{at}conv1d.bias", form.channels) if bias else None
        return {"kernel": kernel[:, 0].t().contiguous(), "bias": offset}

    def rates(self, at: str, heads: int) -> tuple[Tensor, Tensor]:
        """Rates of the heads: the decay in a unit of time, below 0, and what is added to its time steps."""
        return -torch.exp(self.take_wide(at + "A_log", heads)), self.take_wide(at + "dt_bias", heads)

    def gated_norm(self, at: str, width: int, groups: int, first: bool) -> GatedNorm:
        return GatedNorm(self.take_wide(f"{at}norm.weight", width), self.spec.norm_eps, groups, first)

    def feed(self, at: str, index: int) -> FeedForward | Mixture | BesideMixture | None:
        names, form = self.names, self.spec.layers[index].feed
        if form is None:
            return None
        if not isinstance(form, Experts):
            made = self.dense(at, names.gate_up, names.down, form.width)
            made.curve = self.parts.curve(at + names.curve) if self.spec.activation == "xielu" else None
            return made
        held = range(form.count) if self.held is None else self.held(index)
        inner = names.shared_gate_up or names.expert_gate_up, names.shared_down or names.expert_down
        shared = form.shared and self.shared
        if names.correction and form.corrected:
            name = at + names.correction
            shape = (1, form.count) if len(self.tensors.shape(name)) == 2 else (form.count,)  # ernie has it in a row
            correction = self.keep.tensor(name, lambda: self.take_wide(name, *shape).view(-1))
        mixture = Mixture(
            form,
            self.wide(at + names.router, form.count, form.router_bias),
            [self.expert(at, number, form.width) for number in held],
            self.dense(at + names.shared, *inner, form.shared, form.shared_scale) if shared else None,
            self.wide(at + names.shared_gate, 1, False) if shared and form.shared_gated else None,
            correction if form.corrected else None,
        )
        return self.parts.beside(at, mixture) if form.beside else mixture

    def unread(self, name: str) -> bool:
        """Does this tensor belong to keys and values of a layer that reads another's?"""
        shares = [i for i, layer in enumerate(self.spec.layers) if layer.attends and layer.attends.shares is not None]
        names = (*self.names.qkv[1:], self.names.k_norm, self.names.k_norm.replace("k_norm", "v_norm"))
        ours = [f"{self.names.layer.format(i)}{it}" for i in shares for it in names]
        if isinstance(self.tensors, GgufTensors):
            return any(name == self.tensors.named(f"{it}.weight")[0] for it in ours)
        return any(name.startswith(f"{it}.") for it in ours)

    def turns_so(self, name: str) -> bool:
        """Is this tensor the frequencies of a rotation, as the config implies them, but for a factor of all, or as they
        are before any scaling?"""
        if not name.endswith("rotary_emb.inv_freq") or isinstance(self.tensors, GgufTensors):
            return False
        config = text_config(read_json(self.tensors.path / "config.json"))
        return implied(self.tensors.stored(name, None), [it.rope for it in self.spec.attentions], config)

    def elsewhere(self, name: str) -> bool:
        """Is this tensor one of the experts that other processes hold?"""
        first = self.names.expert.split("{")[0]
        return self.held is not None and any(
            name.startswith(self.names.layer.format(index) + first)
            for index, layer in enumerate(self.spec.layers)
            if isinstance(layer.feed, Experts)
        )

    def expert(self, at: str, number: int, width: int) -> FeedForward:
        names = self.names
        gate_up = tuple(name.format(number) for name in names.expert_gate_up)
        return self.dense(at + names.expert.format(number), gate_up, names.expert_down.format(number), width)

    def wide(self, name: str, outputs: int, bias: bool) -> WideMatrix:
        """A router's matrix, in float32 or wider."""
        weight = self.keep.tensor(name, lambda: self.take_wide(f"{name}.weight", outputs, self.spec.hidden))
        self.bytes += weight.nbytes
        offset = self.keep.tensor(f"{name}.bias", lambda: self.take_wide(f"{name}.bias", outputs)) if bias else None
        return WideMatrix(weight, offset)

    def take_wide(self, name: str, *shape: int) -> Tensor:
        found = self.tensors.take(name, shape)
        self.fingerprint.add(name, found)
        wide = torch.float64 if torch.float64 in (found.dtype, self.packing.dtype) else torch.float32
        return found.to(self.device, wide).contiguous()

    def dense(self, at: str, gate_up: tuple[str, ...], down: str, width: int, scale: float = 1.0) -> FeedForward:
        """`scale`: factor of what the part gives, but for its bias."""
        spec, pairs = self.spec, interleave if self.packing.native and self.spec.gated else None
        by: Multipliers | None = spec.multipliers
        scale = scale if by is None else by.down
        return FeedForward(
            spec,
            gate_up=self.linear(
                at, gate_up, (width,) * (1 + spec.gated), spec.hidden, spec.mlp_bias, pairs,
                None if by is None else repeated(*by.gates(width)),
            ),
            down=self.linear(
                at, (down,), (spec.hidden,), width, spec.mlp_bias,
                factors=None if scale == 1 else repeated((spec.hidden, scale)),
            ),
        )  # fmt: skip

    def linear(
        self,
        at: str,
        names: tuple[str, ...],
        outs: tuple[int, ...],
        width: int,
        bias: bool,
        order: Callable[[Tensor], Tensor] | None = None,
        factors: Tensor | None = None,
        of_bias: Tensor | None = None,
    ) -> Linear:
        """Matrices of one input side by side; `names` may be one matrix that the checkpoint already fused. `order`
        puts the outputs in the order of the decoder. `factors`: of each output's weights, and of its bias where
        `of_bias` has no others."""
        sizes = outs if len(names) == len(outs) else (sum(outs),)

        def prepare() -> Prepared:
            mark, by_groups = len(self.fingerprint.parts), self.packing.groups
            offset = torch.cat([self.take(f"{at}{n}.bias", out) for n, out in zip(names, sizes)]) if bias else None
            if offset is not None and factors is not None:
                offset = scaled(offset, factors if of_bias is None else of_bias)
            if order is not None and offset is not None:
                offset = order(offset)
            if by_groups is not None and factors is None:
                found = [self.tensors.groups(f"{at}{n}.weight", (out, width)) for n, out in zip(names, sizes)]
                for name, part in zip(names, found):
                    if part is not None:
                        self.fingerprint.add(f"{at}{name}", part.codes, part.scale, part.minimum)
                if (groups := stack(found)) is not None:
                    ordered = groups if order is None else groups.rows(order)
                    return Prepared(self.key(at + names[0], mark), lambda: by_groups(ordered, offset))
            parts = [self.take(f"{at}{n}.weight", out, width) for n, out in zip(names, sizes)]

            def pack() -> Linear:
                matrix = torch.cat(parts)
                if factors is not None:
                    matrix = scaled(matrix, factors)
                return self.packing.pack(matrix if order is None else order(matrix), offset)

            return Prepared(self.key(at + names[0], mark), pack)

        return self.counted(self.keep.linear(at + names[0], prepare), sum(sizes) * (width + bias))

    def counted(self, layer: Linear, numbers: int) -> Linear:
        """Linear layer with `numbers` weights; the bytes that a pass reads of it are added up."""
        self.bytes += getattr(layer, "bytes", 0) or numbers * self.packing.dtype.itemsize
        return layer

    def norm(self, name: str, width: int) -> Norm:
        weight = self.norm_weight(name, width)
        if not self.spec.layer_norm:
            return Norm(weight, self.spec.norm_eps)
        bias = self.norm_weight(name, width, "bias") if self.spec.norm_bias else None
        return LayerNorm(weight, self.spec.norm_eps, bias)

    def norm_weight(self, name: str, width: int, part: str = "weight") -> Tensor:
        """In float32 or wider: it is small, and 1 + w would lose w in bfloat16."""

        def make() -> Tensor:
            weight = self.take(f"{name}.{part}", width)
            wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
            return weight.to(wide) + (self.spec.norm_offset if part == "weight" else 0)

        self.bytes += width * self.packing.dtype.itemsize
        return self.keep.tensor(f"{name}.{part}", make)

    def take(self, name: str, *shape: int) -> Tensor:
        found = self.tensors.take(name, shape, self.packing.dtype)
        self.fingerprint.add(name, found)
        return found.to(self.device)


def repeated(*parts: tuple[int, float]) -> Tensor:
    """Factors of outputs, each (count) times."""
    return torch.cat([torch.full((count,), factor, dtype=torch.float64) for count, factor in parts])


def scaled(rows: Tensor, factors: Tensor) -> Tensor:
    """Rows times their factors, rounded once."""
    factors = factors.to(rows.device).view(-1, *[1] * (rows.dim() - 1))
    return (rows * factors).to(rows.dtype)
