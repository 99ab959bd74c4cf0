"""Layers of heads as decoders: their spec, and their matrices as the native library takes them."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.core.rows import Rows
from paceline.draft.layers import DraftLayer, RMSNorm
from paceline.model.blocks import Block, FeedForward, SelfAttention
from paceline.model.decoder import Weights
from paceline.model.linear import Packing
from paceline.model.native import NativeDecoder
from paceline.model.norms import Norm
from paceline.model.packed import Packed, by_head, interleave
from paceline.model.rope import rope
from paceline.model.spec import Attention, Dense, Layer, ModelSpec
from paceline.native.structs import CModel


class LayerSizes(Protocol):
    """What the shape of a head says of its layers."""

    @property
    def width(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def ffn(self) -> int: ...
    @property
    def max_len(self) -> int: ...
    @property
    def eps(self) -> float: ...
    @property
    def theta(self) -> float: ...


def layer_spec(
    name: str, of: LayerSizes, layers: int = 1, scaling: Mapping[str, Any] | None = None, window: int | None = None
) -> ModelSpec:
    """A head's layers as a decoder. `scaling`: of their rotation, as a config has it; `window`: of their attention."""
    if (scaling or {}).get("rope_type") == "dynamic":
        raise CheckpointError("a head whose rope scaling is 'dynamic' is not served: it changes with a text's length.")
    turn = rope({**(scaling or {}), "rope_theta": of.theta}, of.head_dim, of.max_len, of.max_len)
    layer = Layer(Attention(turn, window), Dense(of.ffn))
    return ModelSpec(
        family=name, layers=(layer,) * layers, vocab=of.vocab, hidden=of.width, heads=of.heads,
        kv_heads=of.kv_heads, head_dim=of.head_dim, max_len=of.max_len, activation="silu", norm_eps=of.eps,
        norm_offset=0.0, tied=False, qkv_bias=False, out_bias=False, mlp_bias=False, qk_norm=False,
        post_norms=False, attention_scale=of.head_dim**-0.5, attention_softcap=None, logit_softcap=None,
        embedding_scale=1.0, eos=(),
    )  # fmt: skip


def kv_numbers(of: LayerSizes, layers: int = 1) -> int:
    """Most numbers that K/V of these layers take for each token: natively a head's are padded to 32."""
    return 2 * layers * of.kv_heads * -(-of.head_dim // 32) * 32


def packed(packing: Packing, weight: Tensor) -> Packed:
    """One matrix [out, in], of a packing that is native."""
    return cast(Packed, packing.pack(weight.detach().to(packing.dtype).contiguous(), None))


def native_block(
    spec: ModelSpec, index: int, packing: Packing, qkv: Tensor, out: Tensor, gate_up: Tensor, down: Tensor,
    attention_norm: Norm | None, ffn_norm: Norm,
) -> Block:  # fmt: skip
    """A layer of `spec` with its rows in the order of the native library."""
    rows = by_head(qkv, spec.heads, spec.kv_heads), out, interleave(gate_up), down
    first, second, third, last = (packed(packing, it) for it in rows)
    mixer = SelfAttention(spec, index, first, None, second)
    return Block(spec, attention_norm, mixer, None, ffn_norm, FeedForward(spec, third, last), None)


def native_decoder(spec: ModelSpec, blocks: list[Block], norm: Norm, head: Packed, packing: Packing) -> NativeDecoder:
    """A decoder of these layers without an embedding: its rows enter with hidden states."""
    weights = Weights(torch.empty(0, dtype=packing.dtype), blocks, norm, head, 0)
    return NativeDecoder(spec, weights, replace(packing, kv=None))


def rounding(matrix: Any) -> int:
    """How rows are rounded for a packed matrix, as `Model.int8` in base.h."""
    return 2 if matrix.c.form else int(matrix.scale is not None)


class NativeText:
    """Layers of a head over the text's hidden states, and the norm behind them."""

    def __init__(self, sizes: LayerSizes, layers: Sequence[DraftLayer], norm: RMSNorm, packing: Packing) -> None:
        spec = layer_spec("head", sizes, len(layers))
        blocks = [
            native_block(
                spec, index, packing,
                torch.cat([part.weight for part in (it.q_proj, it.k_proj, it.v_proj)]), it.o_proj.weight,
                torch.cat([it.gate_proj.weight, it.up_proj.weight]), it.down_proj.weight,
                Norm(it.input_layernorm.weight.detach().float(), sizes.eps),
                Norm(it.post_attention_layernorm.weight.detach().float(), sizes.eps),
            )
            for index, it in enumerate(layers)
        ]  # fmt: skip
        last: Any = blocks[-1].ffn
        behind = Norm(norm.weight.detach().float(), sizes.eps)
        self.decoder = native_decoder(spec, blocks, behind, last.down, packing)  # no pass asks for logits
        self.bytes = sum(part.bytes for matrices in self.decoder.matrices()[:-1] for part in matrices)

    def contexts(self, rows: Rows, hidden: Tensor) -> Tensor:
        """Contexts [T, H] of rows whose hidden states [T, H] the layers read; none of them is wanted."""
        entering = replace(rows, hidden=hidden.float(), taps=("post_norm",))
        return self.decoder.forward(entering).taps["post_norm"]

    def model(self) -> "ctypes._Pointer[CModel]":
        self.decoder.model.threads = torch.get_num_threads()
        return ctypes.pointer(self.decoder.model)
