"""The decoder whose pass is one native call. Its slow twin is model/decoder.py."""

import ctypes
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from paceline.core.forest import MAX_CANDIDATES
from paceline.core.rows import Chains, Drawn, Lookups, Out, Rows, Straight
from paceline.model.blocks import Norm
from paceline.model.decoder import Decoder, Weights, zeros
from paceline.model.footprint import UNIT
from paceline.model.linear import Packing
from paceline.model.packed import Packed, address
from paceline.model.spec import ModelSpec
from paceline.native.build import Unit, library, unit
from paceline.native.structs import CLayer, CModel, CPass, CRun

LANES = 16
"""Slots that lie side by side in the pool; UNIT // LANES groups of them follow one another."""


def integers(values: Sequence[int]) -> "ctypes.Array[ctypes.c_int64]":
    """As the library reads them, without torch, whose code a pass has driven from the caches."""
    return (ctypes.c_int64 * len(values))(*values)


def reals(values: Sequence[float]) -> "ctypes.Array[ctypes.c_double]":
    return (ctypes.c_double * len(values))(*values)


def unsigned(values: Sequence[int]) -> "ctypes.Array[ctypes.c_uint64]":
    return (ctypes.c_uint64 * len(values))(*values)


def addresses(*arrays: "ctypes.Array[Any]") -> list[int]:
    return [ctypes.addressof(it) for it in arrays]


class NativeDecoder(Decoder):
    """Implements `Model`. Keys and values are laid out for the native attention: see decoder.cpp."""

    def __init__(self, spec: ModelSpec, weights: Weights, packing: Packing) -> None:
        super().__init__(spec, weights, packing)
        found = library()
        assert found is not None, "the packing was chosen where there is no native library"
        self.library = found
        self.turned = 0
        self.layers = (CLayer * len(spec.layers))(*(self.layer(index) for index in range(len(spec.layers))))
        head: Any = weights.head
        table = weights.embedding
        rows = 2 if head.c.form else int(head.scale is not None)
        self.model = CModel(
            layers=len(spec.layers), hidden=spec.hidden, heads=spec.heads, kv_heads=spec.kv_heads,
            head_dim=spec.head_dim, ffn=spec.ffn, vocab=spec.vocab, gelu=spec.activation == "gelu_tanh",
            int8=rows, unit=unit(), eps=spec.norm_eps, attention_scale=spec.attention_scale,
            attention_cap=spec.attention_softcap or 0.0, logit_cap=spec.logit_softcap or 0.0,
            embedding_scale=self.embedding_scale, embedding=table.data_ptr() if isinstance(table, Tensor) else None,
            norm=weights.norm.weight.data_ptr(), head=head.c, layer=self.layers,
        )  # fmt: skip
        if isinstance(table, Packed):
            self.model.lookup = table.c
        self.seconds: Tensor | None = None
        """Where the native parts (structs.PARTS) add up their time, float64, while someone measures."""

    def layer(self, index: int) -> CLayer:
        block: Any = self.weights.blocks[index]  # its layers are all `Packed`
        rope, window = self.spec.layers[index].rope, self.spec.layers[index].window

        def norm(it: Norm | None) -> int | None:
            return None if it is None else it.weight.data_ptr()

        return CLayer(
            qkv=block.qkv.c, out=block.out.c, gate_up=block.gate_up.c, down=block.down.c,
            attention_norm=norm(block.attention_norm), ffn_norm=norm(block.ffn_norm),
            attention_post=norm(block.attention_post_norm), ffn_post=norm(block.ffn_post_norm),
            head_norm=norm(block.head_norm), rotated=2 * len(rope.inverse), window=window or 0,
        )  # fmt: skip

    def allocate(self, blocks: int, block_size: int) -> None:
        spec = self.spec
        dims = -(-spec.head_dim // 32) * 32
        shape = (-(-blocks * block_size // UNIT), len(spec.layers), spec.kv_heads, UNIT // LANES)
        of = torch.int8 if self.packing.kv == "int8" else self.dtype
        self.keys = zeros((*shape, dims // 2, LANES, 2), of, self.device)
        self.values = zeros((*shape, LANES // 2, dims, 2), of, self.device)
        self.model.keys, self.model.values = self.keys.data_ptr(), self.values.data_ptr()
        self.scales: list[Tensor] = []
        if of == torch.int8:
            self.scales = [zeros((*shape, dims // 32, LANES), self.dtype, self.device) for _ in range(2)]
            self.model.key_scales, self.model.value_scales = (each.data_ptr() for each in self.scales)
        self.model.bytes = of == torch.int8
        self.model.block_size = block_size

    def move(self, source: list[int], target: list[int]) -> None:
        self.library.paceline_move(self.model, len(source), integers(source), integers(target))

    def forward(self, rows: Rows) -> Out:
        ended = rows.layers is None or rows.layers[1] == len(self.spec.layers)
        names = rows.taps if ended else [name for name in rows.taps if name.startswith("input:")]
        taps = {name: torch.empty(rows.count, self.spec.hidden) for name in names}
        call, x, logits, _ = self.call(rows, taps)
        self.library.paceline_forward(self.model, call)
        return Out(logits, taps, None if ended else x)

    def chain(
        self,
        rows: Rows,
        most: list[int],
        temperature: list[float],
        keys: list[list[int]],
        worth: list[float],
        share: float,
        sharp: float,
    ) -> list[list[int]]:
        """Draft a chain for each segment, whose last row alone is wanted: at most `most[i]` tokens, drawn by
        `keys[i]` at `temperature[i]` (0: greedy). A chain ends early when the chance that all of it is kept falls
        below `worth[i]`. `share`, `sharp`: those of draft/model.py."""
        steps, count = max(most), len(most)
        noise = [key for row in keys for key in (row + [0] * steps)[:steps]]
        call, *_held = self.call(rows, {}, steps)
        tokens, lengths = (ctypes.c_int64 * (count * steps))(), (ctypes.c_int64 * count)()
        self.library.paceline_draft(
            self.model, call, steps, integers(most), reals(temperature), unsigned(noise), reals(worth), share, sharp,
            tokens, lengths,
        )  # fmt: skip
        return [tokens[i * steps : i * steps + length] for i, length in enumerate(lengths)]

    def run(self, rows: Rows, passes: int, texts: Sequence[Straight], chains: Chains | Lookups | None = None) -> Out:
        """`core.rows.Run`."""
        count, room, each = len(texts), max(text.most for text in texts), max(len(text.ends) for text in texts)
        call, *_held = self.call(rows, {}, room)
        given = (
            integers([text.most for text in texts]),
            reals([text.temperature for text in texts]),
            unsigned([key for text in texts for key in (text.keys + [0] * room)[:room]]),
            integers([token for text in texts for token in (*text.ends, *[-1] * (each - len(text.ends)))]),
        )
        run = CRun(passes, room, each, *addresses(*given))
        if chains is not None:
            drafts = integers(chains.texts), integers(chains.most), reals(chains.worth)
            run.drafts, (run.whose, run.chain, run.worth) = len(chains.texts), addresses(*drafts)
        if isinstance(chains, Chains):
            assert isinstance(chains.model, NativeDecoder)
            behind, *_lacked = chains.model.call(chains.rows, {}, room)
            run.drafter, run.behind = ctypes.pointer(chains.model.model), ctypes.pointer(behind)
            run.share, run.sharp = chains.share, chains.sharp
        elif chains is not None:
            known = [token for tokens in chains.tokens for token in tokens]
            said = (
                integers(known),
                integers([*map(len, chains.tokens)]),
                reals([x for rate in chains.rates for x in rate]),
            )
            run.longest, (run.history, run.size, run.rate) = len(chains.rates[0]) // 2 - 1, addresses(*said)
            run.stamina, run.memory = chains.stamina, chains.memory
        tokens, drafted, kept, length, reach = (
            (ctypes.c_int64 * n)() for n in (count * room, count * passes, count * passes, count, count)
        )
        run.tokens, run.length, run.drafted, run.kept, run.reach = addresses(tokens, length, drafted, kept, reach)
        self.library.paceline_run(self.model, call, run)
        drawn = Drawn(
            [tokens[i * room : i * room + n] for i, n in enumerate(length)],
            [
                [pair for pair in zip(drafted[at : at + passes], kept[at : at + passes]) if pair[0] >= 0]
                for at in range(0, count * passes, passes)
            ],
            dict(zip(chains.texts, reach)) if isinstance(chains, Chains) else {},
            run.seconds,
        )
        return Out(torch.empty(0, self.spec.vocab), drawn=drawn)

    def tree(
        self,
        rows: Rows,
        size: Sequence[tuple[int, int]],
        temperature: list[float],
        least: list[float],
        limits: tuple[int, int, float],
    ) -> list[tuple[list[int], list[int], int]]:
        """Draft a tree for each segment, whose last row alone is wanted: tokens, parents (-1: the root) and how many of
        them, the first ones, have K/V. `size`: the most nodes, and the depth from which on no law is computed;
        `least`: the least chance of a node; `limits`: children, passes, gain of draft/dyspec.py."""
        count, most = len(size), MAX_CANDIDATES
        tokens, parents, computed = ((ctypes.c_int64 * n)() for n in (count * most, count * most, count))
        call, *_held = self.call(rows, {}, most)
        self.library.paceline_tree(
            self.model, call, integers([n for each in size for n in each]), reals(temperature), reals(least), *limits,
            tokens, parents, computed,
        )  # fmt: skip
        out = []
        for i, done in enumerate(computed):
            drafted = [token for token in tokens[i * most : (i + 1) * most] if token >= 0]
            out.append((drafted, parents[i * most : i * most + len(drafted)], done))
        return out

    def call(self, rows: Rows, taps: dict[str, Tensor], further: int = 0) -> tuple[CPass, Tensor | None, Tensor, Any]:
        """The pass as the library takes it, its hidden states where somebody wants them, its logits, and what must
        outlive the call. `further`: places that later rows will go beyond these."""
        spec, count = self.spec, rows.count
        first, last = rows.layers or (0, len(spec.layers))
        self.reach(max(s.base + s.rows for s in rows.segments) + further)
        x = taps.get("pre_norm")
        if x is None and (rows.hidden is not None or last < len(spec.layers)):
            x = torch.empty(count, spec.hidden)
        if x is not None and rows.hidden is not None:
            x.copy_(rows.hidden)
        wanted = rows.wanted if last == len(spec.layers) else 0
        logits = torch.empty(wanted, spec.vocab)
        segments = array("q", chain.from_iterable(rows.segments))
        row, (numbers, _) = 8 * count, rows.numbers.buffer_info()
        tables = numbers + 4 * row
        call = CPass(
            count, len(rows.segments), wanted, rows.width, first, last, rows.hidden is None,
            numbers, numbers + row, numbers + 2 * row, numbers + 3 * row, tables + 8 * len(rows.segments) * rows.width,
            tables, segments.buffer_info()[0],
            address(x), self.inputs(taps), address(taps.get("post_norm")), logits.data_ptr(), address(self.seconds),
        )  # fmt: skip
        self.model.threads = torch.get_num_threads()
        return call, x, logits, segments

    def reach(self, length: int) -> None:
        """Rotations of every position below `length`."""
        if length <= self.turned:
            return
        for rotary in self.rotaries:
            rotary.extend(length)
        for layer, which in zip(self.layers, self.rotary_of):
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
        self.places = (ctypes.c_void_p * layers)(*places)
        return ctypes.addressof(self.places)

    def describe(self) -> str:
        return f"{super().describe()}{' with AMX' if self.model.unit == Unit.TILES else ''}"
