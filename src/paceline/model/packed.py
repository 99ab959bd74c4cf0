"""Weights in the order in which the native decoder reads them: bfloat16, or int8 with a scale for each output. Those
in groups: grouped.py."""

from collections.abc import Mapping
from ctypes import c_int64
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.model import pages
from paceline.model.family import Names
from paceline.model.spec import Delta, ModelSpec
from paceline.native.build import library, unit
from paceline.native.structs import CLinear, CModel

ROUNDING_OUTPUTS = 4096
"""Outputs that are rounded at once."""
BLOCK_OUTPUTS = 32
"""Outputs of a block, two tiles of 16; inputs go by steps of 64 bytes."""


@dataclass(slots=True, weakref_slot=True)
class Packed:
    """One matrix [out, in] as blocks of 32 outputs x 64 bytes of input. int8 (W8A8): `scale` of each output, `sums` of
    its quantised weights. In groups: see grouped.py. `c` is the structure that points here."""

    weight: Tensor
    bias: Tensor | None
    scale: Tensor | None
    sums: Tensor | None
    c: CLinear = field(repr=False)

    @property
    def bytes(self) -> int:
        """Bytes that one pass reads."""
        return sum(part.nbytes for part in (self.weight, self.bias, self.scale, self.sums) if part is not None)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out] in float32: the layer on its own, for tests and measurements."""
        it = library()
        assert it is not None
        x = x.float().contiguous()
        out = torch.empty(len(x), self.c.outputs)
        rows = 2 if self.c.form else int(self.scale is not None)
        model = CModel(int8=rows, threads=torch.get_num_threads(), unit=unit(), head=self.c)
        it.paceline_linear(model, x.data_ptr(), len(x), out.data_ptr())
        return out


def shown(packed: Packed) -> tuple[dict[str, Tensor], dict[str, int]]:
    """All that it is made of: tensors by name, and the numbers of its structure."""
    names = ("weight", "bias", "scale", "sums")
    tensors = {name: part for name in names if (part := getattr(packed, name)) is not None}
    return tensors, {pair[0]: getattr(packed.c, pair[0]) for pair in CLinear._fields_ if pair[1] is c_int64}


def restored(tensors: Mapping[str, Tensor], numbers: Mapping[str, int]) -> Packed:
    """From what `shown` gave."""
    weight, bias, scale, sums = (tensors.get(name) for name in ("weight", "bias", "scale", "sums"))
    assert weight is not None
    c = CLinear(address(weight), address(scale), address(sums), address(bias), **numbers)
    return Packed(weight, bias, scale, sums, c)


def size(outputs: int, inputs: int, quantised: bool) -> int:
    """Bytes of a packed matrix with its bias, known without it."""
    outputs = -(-outputs // BLOCK_OUTPUTS) * BLOCK_OUTPUTS
    if quantised:
        return outputs * (-(-inputs // 64) * 64 + 12)
    return outputs * (-(-inputs // 32) * 64 + 4)


def pack_bfloat16(weight: Tensor, bias: Tensor | None) -> Packed:
    return packed(weight.to(torch.bfloat16), bias, None)


def pack_int8(weight: Tensor, bias: Tensor | None) -> Packed:
    """Symmetric, each output by its largest weight. Activations are quantised by row as they come."""
    scale = torch.empty(len(weight))
    whole = torch.empty(weight.shape, dtype=torch.int8)
    for first in range(0, len(weight), ROUNDING_OUTPUTS):  # a head in float32 at once would be half of a model's memory
        some = slice(first, first + ROUNDING_OUTPUTS)
        wide = weight[some].float()
        scale[some] = torch.maximum(wide.amax(1), -wide.amin(1)) / 127
        whole[some] = wide.div_(scale[some].clamp(min=1e-30)[:, None]).round_()
    return packed(whole, bias, scale)


def packed(weight: Tensor, bias: Tensor | None, scale: Tensor | None) -> Packed:
    outputs, inputs = weight.shape
    each = 4 // weight.itemsize
    step, missing = 16 * each, -outputs % BLOCK_OUTPUTS
    if missing or inputs % step:
        weight = torch.nn.functional.pad(weight, (0, -inputs % step, 0, missing))
    sums = None if scale is None else weight.sum(1, dtype=torch.int32)
    blocks = weight.view(len(weight) // BLOCK_OUTPUTS, 2, 16, -1, 16, each)
    tiles = pages.take(weight.nbytes).view(weight.dtype).view(*(blocks.shape[i] for i in (0, 3, 1, 4, 2, 5)))
    tiles.copy_(blocks.permute(0, 3, 1, 4, 2, 5))
    bias = None if bias is None else torch.nn.functional.pad(bias.float(), (0, missing))
    scale = None if scale is None else torch.nn.functional.pad(scale, (0, missing))
    c = CLinear(address(tiles), address(scale), address(sums), address(bias), inputs, outputs)
    return Packed(tiles, bias, scale, sums, c)


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def interleave(gate_up: Tensor) -> Tensor:
    """Rows [gates, ups] -> blocks of 16 gates and their 16 ups, with zero rows where the last block lacks some."""
    half = len(gate_up) // 2
    pairs = gate_up.view(2, half, -1)
    if half % 16:
        pairs = torch.nn.functional.pad(pairs, (0, 0, 0, -half % 16))
    return pairs.view(2, -1, 16, pairs.shape[-1]).transpose(0, 1).reshape(-1, *gate_up.shape[1:])


def by_head(qkv: Tensor, heads: int, kv_heads: int, values: bool = True) -> Tensor:
    """Rows [queries, keys], or [queries, keys, values] -> the queries and the key of each kv head, then the values."""
    each = len(qkv) // (heads + 2 * kv_heads) if values else len(qkv) // (heads + kv_heads)
    queries, keys, rest = torch.split(qkv, [heads * each, kv_heads * each, values * kv_heads * each])
    turned = torch.cat([part.view(kv_heads, -1, each, *qkv.shape[1:]) for part in (queries, keys)], 1)
    return torch.cat((turned.reshape(-1, *qkv.shape[1:]), rest))


def halves(qkv: Tensor, turned: int, head_dim: int, rotated: int) -> Tensor:
    """Rows of heads, of which the first `turned` are rotated: from pairs side by side to pairs half of `rotated` apart.
    Scores stay the same, since queries and keys are put in order alike."""
    first = torch.arange(rotated).view(-1, 2).t().flatten()
    within = torch.cat((first, torch.arange(rotated, head_dim)))
    rows = (torch.arange(turned)[:, None] * head_dim + within).flatten()
    return torch.cat((qkv[: len(rows)][rows], qkv[len(rows) :]))


def attention_inputs(spec: ModelSpec, names: Names, apart: bool) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names and outputs of the matrices that one product computes in attention; `apart`: without the values'."""
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    first, outs = names.qkv[: 3 - apart], (q * (1 + spec.gated_attention * (not names.gate)), kv, kv)[: 3 - apart]
    if not spec.gated_attention or not names.gate:
        return first, outs
    return (*first, names.gate), (*outs, spec.heads if spec.head_gates else q)


def gates_last(spec: ModelSpec, beside: bool, qkv: Tensor) -> Tensor:
    """Rows of each head's query and its gate, then keys and values -> queries, keys, values, gates, one for each number
    of a head. `beside`: the gates are last already."""
    heads, head_dim = spec.heads, spec.head_dim
    if beside:
        if not spec.head_gates:
            return qkv
        rest, gates = qkv.tensor_split([-heads])
        return torch.cat((rest, gates.repeat_interleave(head_dim, 0)))
    both = qkv[: 2 * heads * head_dim].view(heads, 2, head_dim, *qkv.shape[1:])
    return torch.cat((both[:, 0].flatten(0, 1), qkv[2 * heads * head_dim :], both[:, 1].flatten(0, 1)))


def by_kind(rows: Tensor, form: Delta) -> Tensor:
    """Rows of a delta rule's two fused projections, which lie head by head, or of three, of which only the last does ->
    gates, queries, keys, values, rates and decays."""
    if form.paired:
        wide, small = rows.split_with_sizes([sum(form.inner[:2]), form.inner[2]])
        rate, decay = small.view(form.key_heads, 2, -1, rows.shape[1]).unbind(1)
        return torch.cat((wide, rate.flatten(0, 1), decay.flatten(0, 1)))
    heads, each, (wide, small) = form.key_heads, form.width // form.key_heads, rows.split_with_sizes(form.inner)
    sizes = [form.key_dim, form.key_dim, each, each]
    query, key, value, gate = wide.view(heads, -1, rows.shape[1]).split_with_sizes(sizes, 1)
    rate, decay = small.view(heads, 2, -1, rows.shape[1]).unbind(1)
    return torch.cat([part.flatten(0, 1) for part in (gate, query, key, value, rate, decay)])
