"""The decoder: one forward pass over flat rows, for every family."""

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.attend import Attend, Make
from paceline.attend.fused import Fused
from paceline.attend.reference import Reference
from paceline.core.component import Ability
from paceline.core.errors import InputError, RefusalError
from paceline.core.forest import MAX_CANDIDATES
from paceline.core.program import WHOLE
from paceline.core.rows import Out, Rows
from paceline.model import pages
from paceline.model.adapters import AdapterTable
from paceline.model.blocks import Block, SelfAttention
from paceline.model.grouped import looked_up
from paceline.model.linear import Linear, Packing
from paceline.model.narrow import taken
from paceline.model.norms import Norm
from paceline.model.packed import Packed
from paceline.model.per_token import TokenInputs
from paceline.model.recurrent import layout_of
from paceline.model.rotary import Rotary
from paceline.model.spec import Attention, ModelSpec
from paceline.model.state import Scan, States

if TYPE_CHECKING:
    from paceline.core.proposer import Continuation, Proposer
    from paceline.core.warp import Warp
    from paceline.model.chained import ChainTable
    from paceline.model.gpu.graphs import Graphs
    from paceline.model.gpu.loops import Draw
    from paceline.model.native_adapters import NativeAdapters
    from paceline.model.spread.layers import LayerGroup
    from paceline.model.spread.ranks import SpreadRanks

FINAL_NORM_TAPS = ("pre_norm", "post_norm")
"""Hidden states before and behind the final norm."""


@dataclass(slots=True)
class Weights:
    """What a checkpoint gives. `embedding` [vocab, hidden] stays in the storage dtype, for look-up, or in groups of 8
    bits, perhaps the head's own."""

    embedding: Tensor | Packed
    blocks: list[Block]
    norm: Norm
    head: Linear
    bytes: int
    """Bytes that one pass reads: layers, norms and head, but not the rows of the embedding."""
    sections: tuple[str, ...] = ()
    """Digests of what the checkpoint has of the embedding, of each layer, and of final norm and head: what has equal
    ones in two models of one shape is equal."""
    tokens: TokenInputs | None = None
    """Inputs of layers that depend on the token alone."""


@dataclass(frozen=True, slots=True)
class NarrowHead:
    """The head over a draft vocabulary: `words` int64 [N], ascending, and their rows of the head."""

    words: Tensor
    linear: Linear


class Decoder:
    """Implements `Model` (core/rows.py). Not thread-safe: the pool and the attention's plan are shared."""

    def __init__(
        self, spec: ModelSpec, weights: Weights, packing: Packing, attend: Make = Fused, *, identity: str = ""
    ) -> None:
        """`identity`: of `fingerprint`; "" where nobody knows it."""
        self.identity = identity
        self.spec, self.weights, self.packing, self.attend_type = spec, weights, packing, attend
        self.dtype, self.compute = packing.dtype, packing.compute
        self.adapters: AdapterTable | NativeAdapters | None = None
        self.chains: ChainTable | None = None
        self.device = weights.norm.weight.device
        self.vocab_size, self.max_len, self.width = spec.vocab, spec.max_len, spec.hidden
        self.taps: tuple[str, ...] = ()
        self.places = frozenset({*(f"input:{i}" for i in range(len(spec.layers))), *FINAL_NORM_TAPS})
        self.abilities = abilities(spec)
        self.kv_bytes_per_token = kv_bytes(spec, packing)
        self.state_bytes = spec.state_bytes(self.compute.itemsize)
        self.weight_bytes = weights.bytes
        self._lent: list[Tensor] = []
        self.narrowed: NarrowHead | None = None
        self.before: list[Callable[[Rows], None]] = []
        """Calls with the rows of a pass, before its layers."""
        self.spread: SpreadRanks | LayerGroup | None = None
        """The processes that hold its experts, parts of its matrices, or layers, where others than this one do."""
        self.following: list[Norm | None] = [None] * len(spec.layers)
        """The norm that reads the stream behind each layer, where one kernel adds and norms."""
        self.draw: Draw | None = None
        """Draws tokens by temperature and filters alone."""
        self.graphs: Graphs | None = None
        """Passes that are captured and replayed, on a GPU."""
        self.kernels: Callable[[Tensor, Tensor, torch.dtype, float], Tensor] | None = None
        """Look-up of embeddings, where that is a kernel."""
        self.drafts = False
        """Has every pass logits of the draft vocabulary alone?"""
        self.exact = torch.float64 if self.dtype == torch.float64 else torch.float32
        # gemma rounds the factor to the weights' dtype before it multiplies
        self.embedding_scale = torch.tensor(spec.embedding_scale, dtype=self.dtype).item()
        ropes = list(dict.fromkeys(mixer.rope for mixer in spec.attentions))
        self.rotaries = [Rotary(rope, self.device, self.compute, spec.max_len + MAX_CANDIDATES) for rope in ropes]
        attends = [layer.attends for layer in spec.layers]
        self.rotary_of = [-1 if it is None else ropes.index(it.rope) for it in attends]
        self.pool_of = [0 if it is None else spec.place(index)[0] for index, it in enumerate(attends)]
        """Which of `pools` a layer's keys and values lie in."""
        self.pools: list[Attend] = []

    def adapt(self) -> "AdapterTable | NativeAdapters":
        """The table of its adapters, made when first asked for. RefusalError where others hold its experts."""
        if self.spread is not None:
            raise RefusalError(f"Adapters and {self.spread.option} cannot be combined; leave one of them out.")
        if self.packing.kernels and self.spec.mixtures:
            raise RefusalError("Adapters of mixtures are not served on a GPU; use device cpu.")
        if self.adapters is None:
            self.adapters = AdapterTable(self.spec, self.weights.blocks, self.device, self.compute)
        return self.adapters

    def run(self, rows: Rows, passes: int, texts: "Sequence[Continuation]", proposer: "Proposer | None" = None) -> Out:
        """`core.component.Runs`, where tokens can be drawn on its device."""
        from paceline.model.gpu.loops import run

        assert self.draw is not None
        with torch.inference_mode():
            return run(self, self.draw, self.block_size, rows, passes, texts, proposer)

    def chain(
        self,
        rows: Rows,
        most: list[int],
        warp: "list[Warp]",
        keys: list[list[int]],
        worth: list[float],
        share: float,
        sharp: float,
    ) -> list[list[int]]:
        """`draft.model.Chains.chain`, likewise."""
        from paceline.model.gpu.loops import chain

        assert self.draw is not None
        with torch.inference_mode():
            return chain(self, self.draw, self.block_size, rows, most, warp, keys, worth, share, sharp)

    def draws(self, draw: "Draw") -> None:
        """Let the decoder draw on its device, if its layers are kernels there. A call may then be several passes."""
        if self.packing.kernels and self.spread is None and not self.spec.recurrent:
            self.draw = draw
            self.abilities |= {"run", "chain"}

    def alike(self, weights: Weights, identity: str) -> "Decoder":
        """Decoder with the same shape and other weights."""
        return Decoder(self.spec, weights, self.packing, self.attend_type, identity=identity)

    def take_adapters(self, other: "Decoder") -> None:
        """Use the adapters of another decoder, so that rows may have them."""
        self.adapters = other.adapters

    def allocate(self, blocks: int, block_size: int) -> None:
        spec, self.block_size = self.spec, block_size
        self.allocate_states(block_size)
        if self.graphs is not None:
            self.graphs.forget()
        self.pools = []
        for kept, layers in spec.pools.items():
            shape = (len(layers), kept.parts, kept.heads, blocks, block_size, kept.width)
            pool = pages.tensor(shape, self.dtype, self.device)
            windows = [it.window for index in layers if (it := spec.layers[index].attends) is not None]
            attend = self.attend_type(pool, windows, spec.heads, spec.attention_scale, spec.attention_softcap)
            if isinstance(attend, Reference) and spec.sinks:
                mixers = [self.weights.blocks[index].attention for index in layers]
                attend.sinks = [it.sinks if isinstance(it, SelfAttention) else None for it in mixers]
            self.pools.append(attend)

    def allocate_states(self, block_size: int) -> None:
        mine = weakref.ref(self)  # no circle, so that the weights go with the last user of this decoder

        def replay(scan: Scan) -> None:
            decoder = mine()
            assert decoder is not None, "states are used behind their decoder"
            decoder.replay(scan)

        self.states = States(block_size, self.device, replay)
        for form in self.spec.recurrences:
            parts, record = layout_of(form, self.spec.hidden, self.compute)
            self.states.add(parts, record, self.compute)

    def share_pool(self, other: "Decoder") -> None:
        """Keep keys and values where another one does, and draft as it does."""
        self.pools, self.states, self.rotaries, self._lent = other.pools, other.states, other.rotaries, other._lent
        self.narrowed, self.drafts = other.narrowed, other.drafts

    @torch.inference_mode()
    def move(self, source: list[int], target: list[int]) -> None:
        if source:
            where = torch.tensor([source, target], device=self.device)
            for pool in self.pools:
                pool.slots.index_copy_(3, where[1], pool.slots.index_select(3, where[0]))
            if self.spec.recurrent:
                self.states.move(source, target)

    def replay(self, scan: Scan) -> None:
        """Compute recorded rows again through the recurrent layers."""
        for block in self.weights.blocks:
            if block.recurrence is not None:
                block.recurrence.replay(scan)

    def keep(self, slots: list[int], ends: list[int] | None = None) -> None:
        self.states.keep({*slots}, ends)

    @torch.inference_mode()
    def blank(self, slots: list[int]) -> None:
        self.states.blank(slots)

    def read(self, slots: list[int]) -> bytes:
        at = torch.tensor(slots, device=self.device, dtype=torch.int64)
        kv = b"".join(bytes_of(pool.slots.index_select(3, at)) for pool in self.pools)
        return kv + self.states.read(slots) if self.spec.recurrent else kv

    @torch.inference_mode()
    def write(self, slots: list[int], packed: bytes) -> None:
        if self.spec.recurrent:
            states = max(0, len(packed) - self.states.size(slots))
            self.states.write(slots, packed[states:])
            packed = packed[:states]
        check_bytes(packed, self.spec.kv_width * len(slots) * self.dtype.itemsize)
        at, begun = torch.tensor(slots, device=self.device, dtype=torch.int64), 0
        for pool in self.pools:
            shape = (*pool.slots.shape[:3], len(slots), *pool.slots.shape[4:])
            end = begun + math.prod(shape) * self.dtype.itemsize
            pool.slots.index_copy_(3, at, unpacked(packed[begun:end], shape, self.dtype).to(self.device))
            begun = end

    def check(self, rows: Rows) -> None:
        """InputError unless the program and the taps of these rows are places of this model."""
        layers, program = len(self.spec.layers), rows.program
        if program is WHOLE and not rows.taps:
            return
        program.check(layers)
        first, last = program.first, layers if program.last is None else program.last
        for tap in rows.taps:
            if not (program.head if (place := self.place(tap)) < 0 else first <= place < last):
                raise InputError(f"The hidden state {tap!r} is not in a pass over the layers {first} to {last - 1}.")

    def place(self, tap: str) -> int:
        """The layer whose input it is; -1 and -2 before and behind the final norm."""
        if tap not in self.places:
            raise InputError(f"There is no hidden state {tap!r}; this model has {', '.join(sorted(self.places))}.")
        return -1 - FINAL_NORM_TAPS.index(tap) if tap in FINAL_NORM_TAPS else int(tap.removeprefix("input:"))

    def forward(self, rows: Rows) -> Out:
        return self.computed(rows) if self.chains is None else self.chains.forward(rows)

    def begun(self, rows: Rows) -> Callable[[], Out]:
        """As `computed`; other processes may be at work until what it gives is called."""
        out = self.computed(rows)
        return lambda: out

    @torch.inference_mode()
    def computed(self, rows: Rows) -> Out:
        """As `forward`, all rows by these weights."""
        self.check(rows)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # whose kernels Triton launches; each thread has its own
        if self.graphs is None or self._lent or self.before:
            return self.eager(rows)
        return self.graphs.forward(rows, self.eager)

    def eager(self, rows: Rows) -> Out:
        """A pass, operation by operation."""
        program, taps = rows.program, dict[str, Tensor]()
        x = self.embed(rows.token) if rows.hidden is None else rows.hidden.to(self.compute, copy=True)
        if isinstance(self.adapters, AdapterTable):
            self.adapters.rows.begin(rows)
        for told in self.before:
            told(rows)
        for each in self.pools:
            each.prepare(rows)
        own = None if self.weights.tokens is None else self.weights.tokens(rows.token, self.embed(rows.token))
        reach = max(s.base + s.rows for s in rows.segments)
        turns = [rotary(rows.position, reach) for rotary in self.rotaries]
        scan = self.states.scan(rows) if self.spec.recurrent else None
        carried = None
        for group in program.order(len(self.spec.layers)):
            entry = x.clone() if len(group) > 1 else None
            for index in group:
                if f"input:{index}" in rows.taps:
                    taps[f"input:{index}"] = x.clone()
                block, rotary, normed = self.weights.blocks[index], self.rotary_of[index], None
                feeds = (index, "ffn") not in program.skip
                if (index, "attention") not in program.skip:
                    turn = None if rotary < 0 else turns[rotary]
                    pool = self.pools[self.pool_of[index]] if rotary >= 0 else None
                    normed = block.attend(x, entry, turn, pool, scan, carried, feeds)
                if feeds:
                    carried = block.feed(x, normed, self.following[index] if program is WHOLE else None)
                if block.close is not None:
                    block.close(x, None if own is None else own[:, index])
        if not program.head:
            return Out(self.no_logits(), taps, x)
        if "pre_norm" in rows.taps:
            taps["pre_norm"] = x
        return Out(self.logits(x, rows, taps), taps)

    @property
    def lent(self) -> int:
        return sum(map(len, self._lent))

    def lend(self, table: Tensor) -> int:
        first = self.spec.vocab
        for known in self._lent:
            if known is table:
                return first
            first += len(known)
        self._lent.append(table)
        return first

    def last_keys(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.pools[-1].slots[-1].index_select(2, slots.to(self.device)).float().transpose(1, 2).unbind()
        return keys, values

    def embed(self, token: Tensor) -> Tensor:
        """Embeddings [N, H]; ids beyond the vocabulary get the rows that were lent."""
        if not self._lent or int(token.max()) < self.spec.vocab:
            return self.looked_up(token)
        beyond, x = token >= self.spec.vocab, self.looked_up(token.clamp(max=self.spec.vocab - 1))
        x[beyond] = torch.cat(self._lent).to(x)[token[beyond] - self.spec.vocab]
        return x

    def looked_up(self, token: Tensor) -> Tensor:
        table = self.weights.embedding
        if self.kernels is not None and isinstance(table, Tensor):
            return self.kernels(table, token, self.compute, self.embedding_scale)
        x = looked_up(table, token) if isinstance(table, Packed) else torch.nn.functional.embedding(token, table)
        x = x.to(self.compute)
        return x if self.spec.embedding_scale == 1.0 else x.mul_(self.embedding_scale)

    def logits(self, x: Tensor, rows: Rows, taps: dict[str, Tensor]) -> Tensor:
        """Logits [L, vocab] of the wanted rows."""
        tapped = "post_norm" in rows.taps
        if tapped:
            taps["post_norm"] = x = self.weights.norm(x)
        if not len(rows.want):
            return self.no_logits()
        if len(rows.want) < len(x):
            x = x.index_select(0, rows.want)
        x = x if tapped else self.weights.norm(x)
        if self.narrowed is None or not (self.drafts or rows.program.narrow):
            return self.head(x)
        some = self.finished(self.narrowed.linear(x))
        return some.new_full((len(x), self.spec.vocab), float("-inf")).index_copy_(1, self.narrowed.words, some)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [L, vocab] of hidden states [L, H] that have passed the final norm."""
        return self.finished(self.weights.head(hidden))

    def finished(self, products: Tensor) -> Tensor:
        """Logits from what a head makes of hidden states."""
        logits, cap = products.to(self.exact), self.spec.logit_softcap
        if self.spec.logit_scale != 1:
            logits.mul_(self.spec.logit_scale)
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def narrow(self, words: Tensor, drafts: bool) -> None:
        """`core.component.Narrows`."""
        linear = taken(self.weights.head, words)
        if linear is None:
            raise RefusalError(
                f"draft_vocab takes rows out of the head, which {self.packing.name} does not allow; it needs the "
                "native decoder (dtype bfloat16, a C++ compiler) or a GPU."
            )
        whole, part = (
            head.bytes if isinstance(head, Packed) else size * self.spec.hidden * self.packing.dtype.itemsize
            for head, size in ((self.weights.head, self.spec.vocab), (linear, len(words)))
        )
        self.narrowed, self.drafts = NarrowHead(words.to(self.device), linear), drafts
        if self.graphs is not None:
            self.graphs.forget()
        self.weight_bytes = self.weights.bytes + (part - whole if drafts else 0)

    def no_logits(self) -> Tensor:
        return torch.empty(0, self.spec.vocab, dtype=self.exact, device=self.device)

    @property
    def expert_loads(self) -> int:
        """How often the weights of an expert of a mixture were read: once a pass for all rows that it has."""
        return sum(block.mixture.loads for block in self.weights.blocks if block.mixture is not None)

    def describe(self) -> str:
        words = "" if self.narrowed is None else f", {len(self.narrowed.words):,} tokens of a draft"
        return f"{self.spec.family}, {self.packing.describe()}{words}, on {self.device}"


def abilities(spec: ModelSpec) -> frozenset[Ability]:
    """Abilities of a decoder with these layers in addition to the protocol."""
    found: set[Ability] = {"embed", "narrow"}
    if not spec.token_width:
        found |= {"lend"}  # ids beyond the vocabulary have nothing of their own in the layers
    if spec.layer_scale or any(mixer.shares is not None for mixer in spec.attentions):
        return frozenset(found)  # a layer left out would leave others without their keys
    if spec.recurrent:
        found |= {"state"}  # a pass that leaves layers out, or goes on from one that was not kept, has no state
    else:
        found |= {"program"}
        if all(mixer.window is None or mixer.window >= spec.max_len for mixer in spec.attentions):
            found |= {"join"}  # windows are cut by place
        if spec.early_exit:
            found |= {"exit"}
    if spec.layers and isinstance(spec.layers[-1].attends, Attention) and spec.uniform:
        found |= {"keys"}
    return frozenset(found)


def kv_bytes(spec: ModelSpec, packing: Packing) -> int:
    """Bytes of K/V per token, without padding."""
    each = 17 / 16 if packing.kv == "int8" else packing.dtype.itemsize
    return int(spec.kv_width * each)


def unpacked(packed: bytes, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """K/V that `read` packed. InputError when the bytes are not of this shape."""
    need = math.prod(shape) * dtype.itemsize
    check_bytes(packed, need)
    return torch.frombuffer(bytearray(packed), dtype=dtype).view(shape) if need else torch.empty(shape, dtype=dtype)


def check_bytes(packed: bytes, need: int) -> None:
    """InputError unless packed K/V has `need` bytes."""
    if len(packed) != need:
        raise InputError(f"The packed K/V has {len(packed)} bytes, but {need} are expected: it is another model's.")


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()
