"""The decoder whose pass is one native call. Its reference form is model/decoder.py."""

import ctypes
import math
from array import array
from collections.abc import Sequence
from ctypes import c_int64
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from paceline.core.program import Program
from paceline.core.proposer import Continuation, Proposer
from paceline.core.result import Round
from paceline.core.rows import Drawn, Out, Rows
from paceline.core.warp import Warp
from paceline.model import pages
from paceline.model.blocks import FeedForward, Mixture
from paceline.model.callbacks import Callbacks
from paceline.model.decoder import Decoder, Weights, unpacked
from paceline.model.footprint import UNIT_SLOTS
from paceline.model.linear import Packing, WideMatrix
from paceline.model.native_adapters import NativeAdapters
from paceline.model.native_states import NativeStates, recurrence_of
from paceline.model.norms import Norm
from paceline.model.packed import Packed, address
from paceline.model.recurrent import GatedConv, Recurrence, TakenApart
from paceline.model.settle import Settling
from paceline.model.spec import Activation, ModelSpec
from paceline.model.state import Scan
from paceline.native.build import Unit, library, unit
from paceline.native.structs import (
    MOST_NODES,
    CExperts,
    CLayer,
    CLinear,
    CModel,
    CNorm,
    CPass,
    CRun,
    addresses,
    integers_in,
    keys_in,
    reals_in,
    warps_in,
)

ATTENDS, FEEDS, BEGINS, SHARES = 1, 2, 4, 8
NATIVE_ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu_tanh", "relu2", "swiglu_clamped")
"""In the order of base.h."""
LANES = 16
"""Slots that lie side by side in the pool; UNIT // LANES groups of them follow one another."""


class NativeDecoder(Decoder):
    """Implements `Model`. Keys and values are laid out for the native attention: see decoder.cpp."""

    runs_chains = True
    """Can one call draw several tokens for texts of one chain?"""

    def __init__(
        self, spec: ModelSpec, weights: Weights, packing: Packing, *, late: bool = False, identity: str = ""
    ) -> None:
        """`late`: weights lie in a mapped file at first."""
        super().__init__(spec, weights, packing, identity=identity)
        found = library()
        assert found is not None, "the packing was chosen where there is no native library"
        self.library = found
        if not spec.recurrent:
            self.abilities |= {"run", "chain", "rules"}  # no state is moved between the passes of a call
        self.turned, self.passes = 0, 0
        mixtures = spec.mixtures
        self.loads = torch.zeros(len(spec.layers), 1 + max((it.count for it in mixtures), default=0), dtype=torch.int64)
        self.experts: dict[int, tuple[CExperts, Any]] = {}
        found_mixers = {i: it.recurrence for i, it in enumerate(weights.blocks) if it.recurrence is not None}
        self.recurrences = {i: recurrence_of(it, spec.hidden) for i, it in found_mixers.items()}
        recurs = [c for c, _ in self.recurrences.values()]
        self.native_states = NativeStates(recurs)
        self.layers = (CLayer * len(spec.layers))(*(self.layer(index) for index in range(len(spec.layers))))
        head: Any = weights.head
        table = weights.embedding
        rows = 2 if head.c.form else int(head.scale is not None)
        self.model = CModel(
            layers=len(spec.layers), hidden=spec.hidden, heads=spec.heads, kv_heads=spec.kv_heads,
            head_dim=spec.head_dim, ffn=spec.ffn, vocab=spec.vocab, int8=rows, unit=unit(),
            activation=NATIVE_ACTIVATIONS.index(spec.activation), gated=spec.gated, centred=spec.layer_norm,
            joint=spec.whole_norm, parallel=spec.parallel, eps=spec.norm_eps, attention_scale=spec.attention_scale,
            attention_cap=spec.attention_softcap or 0.0, logit_cap=spec.logit_softcap or 0.0,
            residual_scale=spec.residual_scale, logit_scale=spec.logit_scale,
            embedding_scale=self.embedding_scale, embedding=table.data_ptr() if isinstance(table, Tensor) else None,
            norm=norm_of(weights.norm), head=head.c, layer=self.layers,
            slope=spec.swiglu[0], limit=spec.swiglu[1],
            active=max((it.active for it in mixtures), default=0), routed=max((it.width for it in mixtures), default=0),
            shared=max((it.shared for it in mixtures), default=0),
            kept=len(spec.attentions), gates=spec.gated_attention,
            projected=max((self.layers[i].qkv.outputs for i in self.recurrences), default=0),
            channels=max((it.channels for it in recurs), default=0),
            scanned=max((it.width for it in recurs), default=0),
            coefficients=max((it.heads for it in recurs), default=0),
        )  # fmt: skip
        if isinstance(table, Packed):
            self.model.lookup = table.c
        self.settling = Settling(self.matrices()) if late else None
        self.seconds: Tensor | None = None
        """Where the native parts (structs.PARTS) add up their time, float64, while someone measures."""

    def adapt(self) -> NativeAdapters:
        if not isinstance(self.adapters, NativeAdapters):
            apart = [getattr(block.mixer, "value", None) is not None for block in self.weights.blocks]
            self.adapters = NativeAdapters(self.spec, apart, self.model)
        return self.adapters

    def alike(self, weights: Weights, identity: str) -> Decoder:
        return NativeDecoder(self.spec, weights, self.packing, identity=identity)

    def take_adapters(self, other: Decoder) -> None:
        assert isinstance(other, NativeDecoder)
        self.model.rank, self.model.adapters = other.model.rank, other.model.adapters

    def matrices(self) -> list[list[Packed]]:
        """Packed matrices of each layer, then the ones outside the layers."""
        weights: Any = self.weights
        layers = [
            [
                *(matrix for matrix in projections(it) if matrix is not None),
                *(matrix for part in feeds(it.ffn) for matrix in (part.gate_up, part.down)),
            ]
            for it in weights.blocks
        ]
        apart = {id(it): it for it in (weights.head, weights.embedding) if isinstance(it, Packed)}
        return [*layers, [*apart.values()]]

    def settle(self, wait: bool = True) -> None:
        """Take what moved into memory of its own in; `wait`: until all has."""
        if self.settling is None:
            return
        if wait:
            self.settling.finish()
        for number in self.settling.arrived():
            if number < len(self.layers):
                moved = self.layer(number)
                moved.turn = self.layers[number].turn
                self.layers[number] = moved
                continue
            head: Any = self.weights.head
            self.model.head = head.c
            if isinstance(self.weights.embedding, Packed):
                self.model.lookup = self.weights.embedding.c
        if not self.settling.left:
            self.settling = None
            return
        if self.passes:
            self.settling.begin()
        self.passes += 1

    def layer(self, index: int) -> CLayer:
        block: Any = self.weights.blocks[index]  # its layers are all `Packed`
        form, mixed, dense = self.spec.layers[index], isinstance(block.ffn, Mixture), isinstance(block.ffn, FeedForward)
        mixer, experts, attends = form.attends, None, block.attention is not None
        qkv, value, out = projections(block)
        if mixed:
            self.experts[index] = experts_of(block.ffn, self.loads[index])
            experts = ctypes.pointer(self.experts[index][0])
        return CLayer(
            qkv=qkv.c, value=CLinear() if value is None else value.c, out=out.c, experts=experts,
            sinks=address(block.mixer.sinks) if attends else None,
            gate_up=block.ffn.gate_up.c if dense else CLinear(), down=block.ffn.down.c if dense else CLinear(),
            attention_norm=norm_of(block.attention_norm), ffn_norm=norm_of(block.ffn_norm),
            attention_post=norm_of(block.attention_post_norm), ffn_post=norm_of(block.ffn_post_norm),
            head_norm=norm_of(block.mixer.head_norm).weight if attends else None,
            rotated=0 if mixer is None else 2 * len(mixer.rope.inverse),
            window=getattr(mixer, "window", None) or 0,
            recurrence=ctypes.pointer(self.recurrences[index][0]) if index in self.recurrences else None,
            kept=sum(it.attends is not None for it in self.spec.layers[:index]),
        )  # fmt: skip

    def narrow(self, words: Tensor, drafts: bool) -> None:
        super().narrow(words, drafts)
        head: Any = self.narrowed
        self.model.narrow, self.model.word = head.linear.c, head.words.data_ptr()
        self.model.words, self.model.drafts = len(words), drafts

    def allocate(self, blocks: int, block_size: int) -> None:
        spec = self.spec
        self.allocate_states(block_size)
        dims = -(-spec.head_dim // 32) * 32
        shape = (-(-blocks * block_size // UNIT_SLOTS), self.model.kept, spec.kv_heads, UNIT_SLOTS // LANES)
        of = torch.int8 if self.packing.kv == "int8" else self.dtype
        self.keys = pages.tensor((*shape, dims // 2, LANES, 2), of, self.device)
        self.values = pages.tensor((*shape, LANES // 2, dims, 2), of, self.device)
        self.model.keys, self.model.values = self.keys.data_ptr(), self.values.data_ptr()
        self.scales: list[Tensor] = []
        if of == torch.int8:
            self.scales = [pages.tensor((*shape, dims // 32, LANES), self.dtype, self.device) for _ in range(2)]
            self.model.key_scales, self.model.value_scales = (each.data_ptr() for each in self.scales)
        self.model.bytes = of == torch.int8
        self.model.block_size = block_size

    def share_pool(self, other: Decoder) -> None:
        assert isinstance(other, NativeDecoder)
        self.keys, self.values, self.scales, self.states = other.keys, other.values, other.scales, other.states
        self._lent, self.narrowed, self.drafts = other._lent, other.narrowed, other.drafts
        for name in ("keys", "values", "key_scales", "value_scales", "bytes", "block_size",
                     "narrow", "word", "words", "drafts"):  # fmt: skip
            setattr(self.model, name, getattr(other.model, name))

    def move(self, source: list[int], target: list[int]) -> None:
        self.library.paceline_move(self.model, len(source), integers_in(source), integers_in(target))
        if self.spec.recurrent:
            self.states.move(source, target)

    def replay(self, scan: Scan) -> None:
        call, _held = self.native_states.scan(scan)
        self.model.threads = torch.get_num_threads()
        self.library.paceline_replay(self.model, call)

    def read(self, slots: list[int]) -> bytes:
        keys, values = self.rows_of(slots)
        packed = torch.stack((keys.flatten(-2), values), 1).view(torch.uint8).numpy().tobytes()
        states = self.states.read(slots) if self.spec.recurrent else b""
        if not self.scales:
            return packed + states
        unit, group, lane = self.where(slots)
        scales = torch.stack([each[unit, :, :, group, :, lane] for each in self.scales], 1)
        return packed + scales.view(torch.uint8).numpy().tobytes() + states

    def write(self, slots: list[int], packed: bytes) -> None:
        if self.spec.recurrent:
            ends = max(0, len(packed) - self.states.size(slots))
            self.states.write(slots, packed[ends:])
            packed = packed[:ends]
        shape = (len(slots), 2, self.model.kept, self.spec.kv_heads, self.keys.shape[4] * 2)
        unit, group, lane = self.where(slots)
        if self.scales:
            size = math.prod(shape)
            by = unpacked(packed[size:], (*shape[:-1], shape[-1] // 32), self.dtype)
            packed = packed[:size]
            for each, mine in zip(self.scales, by.unbind(1)):
                each[unit, :, :, group, :, lane] = mine
        both = unpacked(packed, shape, self.keys.dtype)
        self.keys[unit, :, :, group, :, lane] = both[:, 0].view(*shape[:1], *shape[2:-1], shape[-1] // 2, 2)
        self.values[unit, :, :, group, lane // 2, :, lane % 2] = both[:, 1]

    def rows_of(self, slots: list[int]) -> tuple[Tensor, Tensor]:
        """Keys [N, layers, kv heads, dims / 2, 2] and values [N, layers, kv heads, dims] of these slots."""
        unit, group, lane = self.where(slots)
        return self.keys[unit, :, :, group, :, lane], self.values[unit, :, :, group, lane // 2, :, lane % 2]

    def last_keys(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        unit, group, lane = self.where(slots)
        keys = self.keys[unit, -1, :, group, :, lane].flatten(-2).float()
        values = self.values[unit, -1, :, group, lane // 2, :, lane % 2].float()
        if self.scales:
            scales = [each[unit, -1, :, group, :, lane].float().repeat_interleave(32, -1) for each in self.scales]
            keys, values = keys * scales[0], values * scales[1]
        return keys[..., : self.spec.head_dim], values[..., : self.spec.head_dim]

    @staticmethod
    def where(slots: list[int] | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Unit, group and lane of each slot."""
        at = torch.as_tensor(slots, dtype=torch.int64)
        return at // UNIT_SLOTS, at % UNIT_SLOTS // LANES, at % LANES

    def computed(self, rows: Rows) -> Out:
        self.check(rows)
        if self._lent and max(rows.numbers[: rows.count]) >= self.spec.vocab:
            rows = replace(rows, hidden=self.embed(rows.token))
        taps = {name: torch.empty(rows.count, self.spec.hidden) for name in rows.taps}
        call, x, logits, _ = self.call(rows, taps)
        self.library.paceline_forward(self.model, call)
        return Out(logits, taps, None if rows.program.head else x)

    def drafting(self, rows: Rows, further: int) -> tuple[CModel, CPass, Any]:
        """The model and a pass over `rows` as the library takes them, for a proposer; and what must outlive them."""
        call, *held = self.call(rows, {}, further)
        return self.model, call, (rows, held)

    def chain(
        self,
        rows: Rows,
        most: list[int],
        warp: list[Warp],
        keys: list[list[int]],
        worth: list[float],
        share: float,
        sharp: float,
    ) -> list[list[int]]:
        """Draft a chain for each segment, whose last row alone is wanted: at most `most[i]` tokens, drawn by
        `keys[i]` as `warp[i]` says. A chain ends early when the chance that all of it is kept falls
        below `worth[i]`. `share`, `sharp`: those of draft/model.py."""
        steps, count = max(most), len(most)
        noise = [key for row in keys for key in (row + [0] * steps)[:steps]]
        call, *_held = self.call(rows, {}, steps)
        tokens, lengths = (ctypes.c_int64 * (count * steps))(), (ctypes.c_int64 * count)()
        self.library.paceline_draft(
            self.model, call, steps, integers_in(most), warps_in(warp), keys_in(noise), reals_in(worth), share,
            sharp, tokens, lengths,
        )  # fmt: skip
        return [tokens[i * steps : i * steps + length] for i, length in enumerate(lengths)]

    def run(self, rows: Rows, passes: int, texts: Sequence[Continuation], proposer: Proposer | None = None) -> Out:
        """`core.component.Runs`; of texts of one chain alone."""
        if self.chains is not None and (one := self.chains.alone(rows)) is not self:
            assert one is not None, "a run is of one set of layers"
            return self.chains.ready(one).run(rows, passes, texts, proposer)
        self.check(rows)
        count, room, each = len(texts), max(text.most for text in texts), max(len(text.ends) for text in texts)
        call, *_held = self.call(rows, {}, room + MOST_NODES)
        given = (
            integers_in([text.most for text in texts]),
            warps_in([text.warp for text in texts]),
            keys_in([key for text in texts for key in (text.keys + [0] * room)[:room]]),
            integers_in([token for text in texts for token in (*text.ends, *[-1] * (each - len(text.ends)))]),
            integers_in([] if proposer is None else proposer.texts),
            integers_in([self.place(tap) for tap in rows.taps]),
        )
        calls = (
            None
            if proposer is None
            else Callbacks(self.library, proposer, texts, self.vocab_size, rows.taps, self.spec.hidden)
        )
        hidden = torch.empty(len(rows.taps), count, room, self.spec.hidden)
        out = [(c_int64 * n)() for n in (count * room, count, count, count * passes * MOST_NODES, count * passes)]
        *how, whose, taps = addresses(*given)
        run = CRun(
            passes, room, each, *how, len(given[4]), whose, None if calls is None else ctypes.pointer(calls.c),
            len(rows.taps), taps, hidden.data_ptr(), *addresses(*out),
        )  # fmt: skip
        self.library.paceline_run(self.model, call, run)
        tokens, length, rounds, offered, kept = out
        drawn = []
        for i in range(count):
            mine = tokens[i * room : i * room + length[i]]
            turns = range(i * passes, i * passes + rounds[i])
            drafts = [until_none(offered[turn * MOST_NODES : (turn + 1) * MOST_NODES]) for turn in turns]
            drawn.append(Drawn(mine, [Round.of(each, kept[turn]) for turn, each in zip(turns, drafts)]))
        read = {
            tap: torch.cat([states[i, : length[i]] for i in range(count)]) for tap, states in zip(rows.taps, hidden)
        }
        error = None if calls is None else calls.ended()
        return Out(torch.empty(0, self.spec.vocab), read, drawn=drawn, drafting=run.seconds, error=error)

    def call(self, rows: Rows, taps: dict[str, Tensor], further: int = 0) -> tuple[CPass, Tensor | None, Tensor, Any]:
        """The pass as the library takes it, its hidden states if requested, its logits, and what must
        outlive the call. `further`: places that later rows will go beyond these."""
        if self.settling is not None:
            self.settle(wait=False)
        spec, count = self.spec, rows.count
        first, last = rows.program.first, len(spec.layers) if rows.program.last is None else rows.program.last
        self.reach(max(s.base + s.rows for s in rows.segments) + further)
        x = taps.get("pre_norm")
        if x is None and (rows.hidden is not None or not rows.program.head):
            x = torch.empty(count, spec.hidden)
        if x is not None and rows.hidden is not None:
            x.copy_(rows.hidden)
        wanted = rows.wanted if rows.program.head else 0
        logits = torch.empty(wanted, spec.vocab)
        parts = self.parts(rows.program)
        hidden = array("q", (place for s in rows.segments for pair in s.hidden for place in pair))
        before = [0, *accumulate(len(s.hidden) for s in rows.segments)]
        scan, kept = (None, None) if not spec.recurrent else self.native_states.scan(self.states.scan(rows))
        segments = array("q", [n for s, i in zip(rows.segments, before) for n in (*s[:-1], i, len(s.hidden))])
        row, (numbers, _) = 8 * count, rows.numbers.buffer_info()
        tables = numbers + 4 * row
        call = CPass(
            count, len(rows.segments), wanted, rows.width, first, last, rows.hidden is None, rows.program.head,
            numbers, numbers + row, numbers + 2 * row, numbers + 3 * row, tables + 8 * len(rows.segments) * rows.width,
            tables, segments.buffer_info()[0],
            address(x), self.inputs(taps), address(taps.get("post_norm")), logits.data_ptr(), address(self.seconds),
            None if parts is None else ctypes.addressof(parts), hidden.buffer_info()[0], rows.program.narrow,
            None if scan is None else ctypes.pointer(scan),
        )  # fmt: skip
        self.model.threads = torch.get_num_threads()
        return call, x, logits, (segments, hidden, parts, kept)

    def parts(self, program: Program) -> "ctypes.Array[Any] | None":
        """Bit mask of the parts that run in each layer (base.h's Parts); None: every layer runs whole."""
        if not program.skip and not program.groups:
            return None
        layers, bits = len(self.spec.layers), dict[int, int]()
        for group in program.order(layers):
            for index in group:
                shares = (BEGINS * (index == group[0]) | SHARES) * (len(group) > 1)
                attends, feeds = ((index, part) not in program.skip for part in ("attention", "ffn"))
                bits[index] = ATTENDS * attends | FEEDS * feeds | shares
        return integers_in([bits.get(index, 0) for index in range(layers)])

    def reach(self, length: int) -> None:
        """Rotations of every position below `length`."""
        if length <= self.turned or not self.rotaries:
            return
        for rotary in self.rotaries:
            rotary.extend(length)
        for layer, which in zip(self.layers, self.rotary_of):
            if which >= 0:
                layer.turn = self.rotaries[which].table.data_ptr()
        self.turned = min(len(rotary.table) for rotary in self.rotaries)

    def inputs(self, taps: dict[str, Tensor]) -> int | None:
        """Where the layers' inputs go, one pointer a layer."""
        if not taps:
            return None
        layers = len(self.spec.layers)
        places = [address(taps.get(f"input:{index}")) for index in range(layers)]
        if not any(places):
            return None
        self.targets = (ctypes.c_void_p * layers)(*places)
        return ctypes.addressof(self.targets)

    @property
    def expert_loads(self) -> int:
        mixtures = {i: block.ffn for i, block in enumerate(self.weights.blocks) if isinstance(block.ffn, Mixture)}
        return sum(int(self.loads[i, mixture.form.count]) for i, mixture in mixtures.items())

    def describe(self) -> str:
        return f"{super().describe()}{' with AMX' if self.model.unit == Unit.TILES else ''}"


def projections(block: Any) -> tuple[Any, Any, Any]:
    """Matrices of a layer's mixer: of what it reads, of the values if they are apart, and of what it gives."""
    it = block.mixer
    if isinstance(it, GatedConv):
        return it.inner, None, it.out
    if isinstance(it, Recurrence):
        assert isinstance(it.inner, TakenApart)
        return it.inner.inner, None, it.out
    return it.qkv, it.value, it.out


def feeds(it: FeedForward | Mixture | None) -> list[FeedForward]:
    """The feed-forward parts of a layer."""
    if it is None:
        return []
    if not isinstance(it, Mixture):
        return [it]
    return [*it.experts, *([] if it.shared is None else [it.shared])]


def experts_of(it: Mixture, loads: Tensor) -> tuple[CExperts, Any]:
    """A mixture as the library takes it, and what must outlive it. `loads` [at least count + 1]: see `routed`."""
    form, shared, parts = it.form, it.shared, feeds(it)
    router, gate = it.router, it.shared_gate
    assert isinstance(router, WideMatrix) and (gate is None or isinstance(gate, WideMatrix))
    held: Any = [
        (CLinear * form.count)(*(getattr(part, name).c for part in parts[: form.count])) for name in ("gate_up", "down")
    ]
    none: Any = CLinear()
    return CExperts(
        router=address(router.weight), router_bias=address(router.bias), correction=address(it.correction),
        gate_up=held[0], down=held[1],
        shared_gate_up=none if shared is None else parts[-1].gate_up.c,  # type: ignore[attr-defined]
        shared_down=none if shared is None else parts[-1].down.c,  # type: ignore[attr-defined]
        shared_gate=None if gate is None else address(gate.weight),
        count=form.count, active=form.active, width=form.width, shared=form.shared,
        sigmoid=form.score == "sigmoid", normed=form.normed, groups=form.groups, active_groups=form.active_groups,
        group_best=form.group_best, scale=form.scale, floor=form.floor, loads=loads.data_ptr(),
    ), held  # fmt: skip


def norm_of(it: Norm | None) -> CNorm:
    return CNorm() if it is None else CNorm(address(it.weight), address(it.bias))


def until_none(counts: Sequence[int]) -> list[int]:
    """Nodes at depth 1, 2, ... down to the deepest."""
    return list(counts[: counts.index(0)]) if 0 in counts else list(counts)
