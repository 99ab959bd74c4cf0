"""From a checkpoint to a decoder."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.attend import quickest
from paceline.attend.fused import Fused
from paceline.attend.reference import Reference
from paceline.core.errors import CapacityError, CheckpointError, RefusalError
from paceline.model import store
from paceline.model.blocks import Block, FeedForward, GatedConv, LayerNorm, Mixture, Norm, SelfAttention, WholeNorm
from paceline.model.checkpoint import DTYPES, Tensors, open_tensors, read_config, resolve
from paceline.model.decoder import Decoder, Weights, kv_bytes
from paceline.model.families import FAMILIES
from paceline.model.family import Names
from paceline.model.fingerprint import Fingerprint, identity
from paceline.model.footprint import Footprint, footprint
from paceline.model.gguf import GgufTensors
from paceline.model.groups import stack
from paceline.model.linear import Linear, Packing, WideMatrix, as_stored, available, choose, plain, quantised
from paceline.model.malloc import exact
from paceline.model.native import NativeDecoder
from paceline.model.opened import let_go
from paceline.model.packed import Packed, by_head, halves, interleave
from paceline.model.progress import tracked
from paceline.model.spec import Attention, Experts, ModelSpec, ShortConv
from paceline.model.stored import stored_bits

log = logging.getLogger("paceline")
MASKED_LOGIT = -1e30
"""A logit that no draw survives, and a finite number in bfloat16."""


def load_model(
    model: str | Path,
    *,
    dtype: str = "bfloat16",
    device: str = "cpu",
    revision: str | None = None,
    token: str | None = None,
    max_len: int | None = None,
    quantize: str | None = None,
    kv_dtype: str | None = None,
    fast: bool = True,
    vocabulary: tuple[int, int] | None = None,
    cache: bool = True,
    late: bool = False,
) -> Decoder:
    """Load a directory, a GGUF file or a hub id for serving texts of up to `max_len` tokens (default: the config's).

    dtype: of weights and K/V cache: float32, bfloat16, float16 (float64 for tests). quantize:
    "int8" and "int4" round the weights of all linear layers as they are loaded; of a checkpoint that is quantised
    already each keeps its own bits unless that is "none", which widens them to dtype. kv_dtype: "int8" keeps keys and
    values in 8 bits. With `fast` false every part is its slow twin in plain PyTorch. vocabulary: of a draft, how many
    logits its target has and how many ids their tokenizer knows; where the draft is padded differently, it gets as
    many, and what lies beyond the tokenizer is never drawn. cache: packed weights of a large model are kept on disk for
    the next time (store.py). late: where they are kept, they move into memory behind the first pass (settle.py). Raises
    CheckpointError for whatever cannot be served, RefusalError for what this machine
    cannot do.
    """
    form(dtype, quantize, device, fast, kv_dtype)  # what cannot be is refused before anything is downloaded
    path, target = resolve(model, revision, token), torch.device(device)
    spec = read_config(path, max_len)
    packing = packing_of(path, spec, dtype, quantize, device, fast, kv_dtype)
    with exact():
        weights, spec, mapped, name = read(path, spec, packing, target, vocabulary, cache, late)
    let_go(path)
    if packing.native:
        return NativeDecoder(spec, weights, packing, late=mapped, identity=name)
    make = Fused if spec.sinks else quickest(target, packing.dtype)
    return Decoder(spec, weights, packing, make if fast else Reference, identity=name)


def read(
    path: Path,
    spec: ModelSpec,
    packing: Packing,
    device: torch.device,
    vocabulary: tuple[int, int] | None,
    cache: bool,
    late: bool = False,
) -> tuple[Weights, ModelSpec, bool, str]:
    """The weights as they lie in memory, from the cache where they are in it, the spec that fits them, whether they
    are late, and the model's identity."""
    tensors = open_tensors(path)
    whole = footprint(spec, packing, packing.dtype.itemsize, 2, 1).weights
    where = None
    if cache and packing.native and whole >= store.MIN_STORED_BYTES:
        where = store.place(tensors.paths(), spec, packing, vocabulary)
        if (kept := store.opened(where, late)) is not None:
            try:
                loader = Loader(
                    spec, tensors.renamed or FAMILIES[spec.family].names, tensors, packing, device, vocabulary, kept
                )
                return loader.weights(), loader.fitted, late, loader.identity(kept.digest)
            except store.Damaged as error:
                store.discard(where, error)
    with writing(where, whole) as keep:
        weights, fitted, name = fresh(path, spec, packing, device, vocabulary, keep)
        return weights, fitted, False, name


def fresh(
    path: Path,
    spec: ModelSpec,
    packing: Packing,
    device: torch.device,
    vocabulary: tuple[int, int] | None,
    keep: store.Straight,
) -> tuple[Weights, ModelSpec, str]:
    """The weights from the checkpoint, which must hold nothing else, the spec that fits them, and the model's
    identity."""
    tensors = open_tensors(path)
    if tensors.word:
        log.info("%s: %s", path, tensors.word)
    loader = Loader(spec, tensors.renamed or FAMILIES[spec.family].names, tensors, packing, device, vocabulary, keep)
    weights = loader.weights()
    if unknown := sorted(name for name in tensors.leftover() if not tensors.says_nothing(name)):
        raise CheckpointError(
            f"{path} holds {len(unknown)} tensors that a {spec.family} model has no place for, such as {unknown[0]}; "
            "the weights and the config are of different models."
        )
    keep.digest = loader.fingerprint.digest()
    return weights, loader.fitted, loader.identity(keep.digest)


def pack_to(path: Path, spec: ModelSpec, packing: Packing, where: Path) -> None:
    """Pack a checkpoint into a file. Raises CapacityError or OSError where it cannot be written."""
    size = footprint(spec, packing, packing.dtype.itemsize, 2, 1).weights
    with exact(), store.StoreWriter(where, size, strict=True) as keep:
        fresh(path, spec, packing, torch.device("cpu"), None, keep)


@contextmanager
def writing(where: Path | None, size: int) -> Iterator[store.Straight]:
    """What keeps the parts of a model at `where`; where it cannot, a word says why, and nothing does."""
    try:
        keep = None if where is None else store.StoreWriter(where, size)
    except (OSError, CapacityError) as error:
        log.warning("Packed weights are not kept: %s", error)
        keep = None
    if keep is None:
        yield store.Straight()
        return
    with keep:
        yield keep


def packing_of(
    path: Path,
    spec: ModelSpec,
    dtype: str,
    quantize: str | None,
    device: str,
    fast: bool = True,
    kv_dtype: str | None = None,
) -> Packing:
    """How weights, keys and values of this checkpoint will lie in memory: what is quantised already keeps its own bits
    where nothing else is asked for and the native decoder can run."""
    native = fast and quantize is None and dtype == "bfloat16" and spec.common
    bits = stored_bits(open_tensors(path), spec) if native else None
    return suited(form(dtype, quantize, device, fast, kv_dtype, bits), spec, torch.device(device))


def form(
    dtype: str,
    quantize: str | None,
    device: str,
    fast: bool = True,
    kv_dtype: str | None = None,
    bits: float | None = None,
) -> Packing:
    """How weights, keys and values lie in memory; `bits`: those of a weight in a checkpoint that keeps its own."""
    if dtype not in DTYPES:
        raise CheckpointError(f"dtype {dtype!r} is not known; use one of {', '.join(DTYPES)}.")
    where = torch.device(device)
    own = None if bits is None else as_stored(bits, DTYPES[dtype], where)
    if own is not None:
        packing = own
    elif quantize not in (None, "none"):
        packing = quantised(quantize, DTYPES[dtype], where)
    else:
        packing = choose(DTYPES[dtype], where) if fast else plain(DTYPES[dtype], where)
    if kv_dtype in (None, "auto", dtype):
        return packing
    if kv_dtype != "int8":
        raise RefusalError(f"kv_dtype is {kv_dtype!r}, but keys and values lie as dtype, {dtype}, or in int8.")
    if not packing.native:
        raise RefusalError(
            "kv_dtype int8 needs the native decoder: dtype bfloat16, Linux, a CPU with AVX2 and FMA (or NEON with its "
            "dot product) and a C++ compiler; leave kv_dtype out."
        )
    return replace(packing, kv="int8")


def suited(packing: Packing, spec: ModelSpec, device: torch.device) -> Packing:
    """`packing`, or the next best for layers that the native decoder does not compute."""
    if spec.common or not packing.native:
        return packing
    if packing.name != "native":
        raise RefusalError(
            f"{packing.name} is the native decoder's, which does not compute the layers of {spec.family} yet; leave "
            "quantize out."
        )
    if packing.kv == "int8":
        raise RefusalError(
            f"kv_dtype int8 is the native decoder's, which does not compute the layers of {spec.family} yet; leave "
            "kv_dtype out."
        )
    return next(other for other in available(packing.dtype, device) if not other.native)


def measure(path: Path, spec: ModelSpec, packing: Packing) -> Footprint:
    """What a checkpoint's model will take of memory, from config and headers alone."""
    stored = open_tensors(path).widest()
    return footprint(spec, packing, packing.dtype.itemsize, stored, torch.get_num_threads())


@dataclass(frozen=True, slots=True)
class Facts:
    """What can be said of a checkpoint without reading its weights. `path` is where it lies."""

    path: Path
    spec: ModelSpec
    tensors: int
    bytes: int
    kv_bytes_per_token: int


def inspect(
    model: str | Path,
    *,
    dtype: str = "bfloat16",
    kv_dtype: str | None = None,
    revision: str | None = None,
    token: str | None = None,
) -> Facts:
    """Facts of a checkpoint from its config and headers; `dtype`, or `kv_dtype`, is that of the K/V cache."""
    path = resolve(model, revision, token)
    spec, tensors = read_config(path), open_tensors(path)
    kv = kv_bytes(spec, replace(plain(DTYPES[dtype], torch.device("cpu")), kv="int8" if kv_dtype == "int8" else None))
    return Facts(path, spec, len(tensors.place), tensors.bytes(), kv)


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
    ) -> None:
        self.keep = keep or store.Straight()
        vocab, known = vocabulary or (spec.vocab, spec.vocab)
        self.known = None if vocab == spec.vocab else known
        """Ids that may be drawn, where the rows of embedding and head are not the checkpoint's; else None."""
        self.fitted = replace(spec, vocab=vocab)
        other = tensors.interleaved
        self.interleaved = FAMILIES[spec.family].interleaved if other is None else other
        self.spec, self.names, self.tensors, self.packing, self.device = spec, names, tensors, packing, device
        self.bytes = 0
        self.fingerprint = Fingerprint()

    def identity(self, weights: str) -> str:
        """The model's, by the digest of its weights."""
        return identity(weights, self.fitted, self.packing, self.known, self.interleaved)

    def weights(self) -> Weights:
        spec, names, keep, form = self.spec, self.names, self.keep, self.packing.head
        table = self.table
        if form is None:
            embedding: Any = keep.tensor(names.embedding, lambda: table(names.embedding))
        else:
            embedding = keep.linear(names.embedding, lambda: self.by_token(names.embedding, form))
        blocks = []
        for index in tracked(range(len(spec.layers)), "Loading"):
            blocks.append(self.block(index))
            self.tensors.let_go()
        norm = self.norm(names.norm, spec.hidden)

        own = not spec.tied or f"{names.head}.weight" in self.tensors.place

        def head() -> Linear:
            if form is not None and not (spec.tied and own):
                return self.by_token(names.embedding if spec.tied else names.head, form, self.closed())
            rows = table(names.embedding) if form is not None and spec.tied else embedding
            return (form or self.packing).pack(self.head(rows), self.closed())

        if form is not None and not own and self.known is None:
            last = self.counted(embedding, 0)  # one copy serves both
        else:
            last = self.counted(keep.linear(names.head, head), spec.vocab * spec.hidden)
        self.tensors.let_go()
        return Weights(embedding, blocks, norm, last, self.bytes)

    def by_token(self, name: str, form: Packing, bias: Tensor | None = None) -> Linear:
        """Embedding or head with one row for each id: as the file has it where it is quantised, else as `form` rounds
        it."""
        if self.packing.groups is not None:
            groups = self.tensors.groups(f"{name}.weight", (self.spec.vocab, self.spec.hidden))
            if groups is not None and self.spec.hidden % 32 == 0:
                return self.packing.groups(groups.rows(self.fit), bias)
        return form.pack(self.table(name), bias)

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

        return Block(
            spec,
            attention_norm=norm(names.attention_norm),
            mixer=self.mixer(at, index),
            attention_post_norm=norm(names.attention_post_norm),
            ffn_norm=norm(names.ffn_norm),
            ffn=self.feed(at, index),
            ffn_post_norm=norm(names.ffn_post_norm),
        )

    def mixer(self, at: str, index: int) -> SelfAttention | GatedConv:
        """Its number is that among the layers with the same kind of memory: K/V, or a state."""
        layers = self.spec.layers
        form, attends = layers[index].mixer, isinstance(layers[index].mixer, Attention)
        number = sum(isinstance(layer.mixer, Attention) == attends for layer in layers[:index])
        if isinstance(form, Attention):
            return self.attention(at, number, form)
        return self.convolution(at, number, form)

    def attention(self, at: str, number: int, form: Attention) -> SelfAttention:
        spec, names = self.spec, self.names
        q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

        apart = self.packing.groups is not None and self.values_apart(at)

        def heads(qkv: Tensor) -> Tensor:
            if self.interleaved:
                qkv = halves(qkv, spec.heads + spec.kv_heads, spec.head_dim, 2 * len(form.rope.inverse))
            return by_head(qkv, spec.heads, spec.kv_heads, not apart) if self.packing.native else qkv

        first, outs = names.qkv[: 3 - apart], (q, kv, kv)[: 3 - apart]
        return SelfAttention(
            spec,
            number,
            qkv=self.linear(at, first, outs, spec.hidden, spec.qkv_bias, heads),
            head_norm=self.head_norm(at) if spec.qk_norm else None,
            out=self.linear(at, (names.out,), (spec.hidden,), q, spec.out_bias),
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

    def feed(self, at: str, index: int) -> FeedForward | Mixture:
        names, form = self.names, self.spec.layers[index].feed
        if not isinstance(form, Experts):
            return self.dense(at, names.gate_up, names.down, form.width)
        inner = names.expert_gate_up, names.expert_down
        if names.correction and form.corrected:
            name = at + names.correction
            shape = (1, form.count) if len(self.tensors.shape(name)) == 2 else (form.count,)  # ernie has it in a row
            correction = self.keep.tensor(name, lambda: self.take_wide(name, *shape).view(-1))
        return Mixture(
            form,
            self.wide(at + names.router, form.count, form.router_bias),
            [self.expert(at, number, form.width) for number in range(form.count)],
            self.dense(at + names.shared, *inner, form.shared) if form.shared else None,
            self.wide(at + names.shared_gate, 1, False) if form.shared and form.shared_gated else None,
            correction if form.corrected else None,
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

    def dense(self, at: str, gate_up: tuple[str, ...], down: str, width: int) -> FeedForward:
        spec, pairs = self.spec, interleave if self.packing.native and self.spec.gated else None
        return FeedForward(
            spec,
            gate_up=self.linear(at, gate_up, (width,) * (1 + spec.gated), spec.hidden, spec.mlp_bias, pairs),
            down=self.linear(at, (down,), (spec.hidden,), width, spec.mlp_bias),
        )

    def linear(
        self,
        at: str,
        names: tuple[str, ...],
        outs: tuple[int, ...],
        width: int,
        bias: bool,
        order: Callable[[Tensor], Tensor] | None = None,
    ) -> Linear:
        """Matrices of one input side by side; `names` may be one matrix that the checkpoint already fused. `order`
        puts the outputs in the order of the decoder."""
        sizes = outs if len(names) == len(outs) else (sum(outs),)

        def make() -> Linear:
            offset = torch.cat([self.take(f"{at}{n}.bias", out) for n, out in zip(names, sizes)]) if bias else None
            if order is not None and offset is not None:
                offset = order(offset)
            if self.packing.groups is not None:
                found = [self.tensors.groups(f"{at}{n}.weight", (out, width)) for n, out in zip(names, sizes)]
                for name, part in zip(names, found):
                    if part is not None:
                        self.fingerprint.add(f"{at}{name}", part.codes, part.scale, part.minimum)
                if (groups := stack(found)) is not None:
                    return self.packing.groups(groups if order is None else groups.rows(order), offset)
            matrix = torch.cat([self.take(f"{at}{n}.weight", out, width) for n, out in zip(names, sizes)])
            return self.packing.pack(matrix if order is None else order(matrix), offset)

        return self.counted(self.keep.linear(at + names[0], make), sum(sizes) * (width + bias))

    def counted(self, layer: Linear, numbers: int) -> Linear:
        """Linear layer with `numbers` weights; the bytes that a pass reads of it are added up."""
        self.bytes += layer.bytes if isinstance(layer, Packed) else numbers * self.packing.dtype.itemsize
        return layer

    def norm(self, name: str, width: int) -> Norm:
        weight = self.norm_weight(name, width)
        if not self.spec.layer_norm:
            return Norm(weight, self.spec.norm_eps)
        bias = self.norm_weight(name, width, "bias") if self.spec.norm_bias else None
        return LayerNorm(weight, self.spec.norm_eps, bias)

    def head_norm(self, at: str) -> Norm:
        spec, names = self.spec, self.names
        if spec.whole_norm:
            q, k = (
                self.norm_weight(at + name, count * spec.head_dim)
                for name, count in ((names.q_norm, spec.heads), (names.k_norm, spec.kv_heads))
            )
            return WholeNorm(q, k, spec.norm_eps)
        q = self.norm_weight(at + names.q_norm, spec.head_dim)
        k = self.norm_weight(at + names.k_norm, spec.head_dim)
        return Norm(torch.stack([q] * spec.heads + [k] * spec.kv_heads), spec.norm_eps)

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
