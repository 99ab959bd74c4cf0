"""From a checkpoint to a decoder."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.attend import quickest
from paceline.attend.reference import Reference
from paceline.core.errors import CheckpointError, RefusalError
from paceline.model.blocks import Block, Norm
from paceline.model.checkpoint import DTYPES, Tensors, read_config, resolve
from paceline.model.decoder import Decoder, Weights, kv_bytes
from paceline.model.families import FAMILIES, Names
from paceline.model.footprint import Footprint, footprint
from paceline.model.linear import Linear, Packing, choose, plain, quantised
from paceline.model.malloc import exact
from paceline.model.native import NativeDecoder
from paceline.model.packed import Packed, by_head, interleave
from paceline.model.spec import ModelSpec


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
) -> Decoder:
    """Load a directory or hub id for serving texts of up to `max_len` tokens (default: the config's).

    dtype: of weights and K/V cache: float32, bfloat16, float16 (float64 for tests). quantize:
    "int8" and "int4" round the weights of all linear layers as they are loaded. kv_dtype: "int8" keeps keys and values
    in 8 bits. With `fast` false every part is its slow twin in plain PyTorch. Raises CheckpointError for what cannot
    be served, RefusalError for what this machine cannot do.
    """
    packing, target = form(dtype, quantize, device, fast, kv_dtype), torch.device(device)
    path = resolve(model, revision, token)
    spec = read_config(path, max_len)
    tensors = Tensors(path)
    with exact():
        weights = Loader(spec, FAMILIES[spec.family].names, tensors, packing, target).weights()
    if unknown := sorted(tensors.leftover()):
        raise CheckpointError(
            f"{path} holds {len(unknown)} tensors that a {spec.family} model has no place for, such as {unknown[0]}; "
            "the weights and the config are of different models."
        )
    if packing.native:
        return NativeDecoder(spec, weights, packing)
    return Decoder(spec, weights, packing, quickest(target, packing.dtype) if fast else Reference)


def form(dtype: str, quantize: str | None, device: str, fast: bool = True, kv_dtype: str | None = None) -> Packing:
    """How weights, keys and values will lie in memory."""
    if dtype not in DTYPES:
        raise CheckpointError(f"dtype {dtype!r} is not known; use one of {', '.join(DTYPES)}.")
    where = torch.device(device)
    if quantize is not None:
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


def measure(path: Path, packing: Packing, max_len: int | None = None) -> tuple[ModelSpec, Footprint]:
    """A checkpoint's spec, and what its model will take of memory, from config and headers alone."""
    spec, stored = read_config(path, max_len), Tensors(path).widest()
    return spec, footprint(spec, packing, packing.dtype.itemsize, stored, torch.get_num_threads())


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
    spec, tensors = read_config(path), Tensors(path)
    kv = kv_bytes(spec, replace(plain(DTYPES[dtype], torch.device("cpu")), kv="int8" if kv_dtype == "int8" else None))
    return Facts(path, spec, len(tensors.place), tensors.bytes(), kv)


class Loader:
    """Takes tensors by name, converts, fuses and packs them, one layer at a time to bound the memory."""

    def __init__(self, spec: ModelSpec, names: Names, tensors: Tensors, packing: Packing, device: torch.device) -> None:
        self.spec, self.names, self.tensors, self.packing, self.device = spec, names, tensors, packing, device
        self.bytes = 0

    def weights(self) -> Weights:
        spec, names = self.spec, self.names
        table = self.take(f"{names.embedding}.weight", spec.vocab, spec.hidden)
        form = self.packing.head
        embedding: Any = table if form is None else form.pack(table, None)
        blocks = []
        for index in range(len(spec.layers)):
            blocks.append(self.block(index))
            self.tensors.let_go()
        norm = self.norm(names.norm, spec.hidden)
        if spec.tied and form is not None:
            self.bytes += embedding.bytes
            head: Linear = embedding
        else:
            matrix = table if spec.tied else self.take(f"{names.head}.weight", spec.vocab, spec.hidden)
            head = self.pack(matrix, None, form)
        self.tensors.let_go()
        return Weights(embedding, blocks, norm, head, self.bytes)

    def block(self, index: int) -> Block:
        spec, names = self.spec, self.names
        at = names.layer.format(index)
        q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

        def norm(name: str) -> Norm:
            return self.norm(at + name, spec.hidden)

        def heads(qkv: Tensor) -> Tensor:
            return by_head(qkv, spec.heads, spec.kv_heads)

        return Block(
            spec,
            index,
            attention_norm=norm(names.attention_norm),
            qkv=self.linear(at, names.qkv, (q, kv, kv), spec.hidden, spec.qkv_bias, heads),
            head_norm=self.head_norm(at) if spec.qk_norm else None,
            out=self.linear(at, (names.out,), (spec.hidden,), q, spec.out_bias),
            attention_post_norm=norm(names.attention_post_norm) if spec.post_norms else None,
            ffn_norm=norm(names.ffn_norm),
            gate_up=self.linear(at, names.gate_up, (spec.ffn, spec.ffn), spec.hidden, spec.mlp_bias, interleave),
            down=self.linear(at, (names.down,), (spec.hidden,), spec.ffn, spec.mlp_bias),
            ffn_post_norm=norm(names.ffn_post_norm) if spec.post_norms else None,
        )

    def linear(
        self,
        at: str,
        names: tuple[str, ...],
        outs: tuple[int, ...],
        width: int,
        bias: bool,
        native: Callable[[Tensor], Tensor] | None = None,
    ) -> Linear:
        """Matrices of one input side by side; `names` may be one matrix that the checkpoint already fused. `native`
        puts the outputs in the order of the native decoder."""
        sizes = outs if len(names) == len(outs) else (sum(outs),)
        matrix = torch.cat([self.take(f"{at}{n}.weight", out, width) for n, out in zip(names, sizes)])
        offset = torch.cat([self.take(f"{at}{n}.bias", out) for n, out in zip(names, sizes)]) if bias else None
        if native and self.packing.native:
            matrix, offset = native(matrix), None if offset is None else native(offset)
        return self.pack(matrix, offset)

    def pack(self, matrix: Tensor, bias: Tensor | None, form: Packing | None = None) -> Linear:
        layer = (form or self.packing).pack(matrix, bias)
        self.bytes += layer.bytes if isinstance(layer, Packed) else matrix.nbytes + (0 if bias is None else bias.nbytes)
        return layer

    def norm(self, name: str, width: int) -> Norm:
        return Norm(self.norm_weight(name, width), self.spec.norm_eps)

    def head_norm(self, at: str) -> Norm:
        q = self.norm_weight(at + self.names.q_norm, self.spec.head_dim)
        k = self.norm_weight(at + self.names.k_norm, self.spec.head_dim)
        return Norm(torch.stack([q] * self.spec.heads + [k] * self.spec.kv_heads), self.spec.norm_eps)

    def norm_weight(self, name: str, width: int) -> Tensor:
        """In float32 or wider: it is small, and 1 + w would lose w in bfloat16."""
        weight = self.take(f"{name}.weight", width)
        self.bytes += weight.nbytes
        wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
        return weight.to(wide) + self.spec.norm_offset

    def take(self, name: str, *shape: int) -> Tensor:
        return self.tensors.take(name, shape).to(self.device, self.packing.dtype)
