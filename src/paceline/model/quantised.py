"""Checkpoints whose linear layers are quantised already: what each method stores under a layer's name, read exactly.

Weights are read as they are. Where a method rounds activations, too, ours are rounded as the packing does, or not.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.model.groups import FP4, Groups
from paceline.model.quantised_keys import check_keys

Config = Mapping[str, Any]
HEAD_MEMBERS = ("k_scale", "v_scale", "q_scale", "kv_scale")
SIDE_MEMBER = re.compile(
    r"(.+)[._](input_scale|input_global_scale|input_zero_point|activation_scale|output_scale"
    rf"|{'|'.join(HEAD_MEMBERS)})"
)
"""Members by which others round activations, keys or values: they say nothing of the weights."""
FLOAT8_TYPES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
SCALE_TYPES = (torch.float16, torch.bfloat16, torch.float32)
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where the n-th of eight outputs lies in a word of AWQ."""
HALVES, FLOATS, MXFP4 = 24, 64, 4.25
"""Bits of a group's scales in memory: a half and a byte, or two floats; bits per weight of MXFP4
(`grouped.ScaleForm`)."""
NVFP4_INPUTS, ROUNDED_FOURS = 16, 8.5
"""Inputs of a group of NVFP4; bits of a weight in memory, where groups have 32 (`groups.regrouped`)."""
GPTQ_FORMATS = ("gptq", "gptq_v2")
"""`checkpoint_format`: how zeros are stored."""
OTHER_ORDER = ("group", "dynamic")
"""`actorder` of compressed-tensors that puts inputs into groups in another order than they lie in."""
AS_FLOATS = "weights in FP8 are served in the model's dtype"
IN_ACT_ORDER = (
    "groups hold inputs by importance (act-order), so weights of {0} bits are put in order and served in the model's "
    "dtype, 16 bits each; a checkpoint made without desc_act or actorder keeps its {0} bits"
)
AS_BYTES = (
    "weights in NVFP4, 16 to a scale, are rounded to 8 bits, 32 to a scale, where the native library computes them; "
    "quantize none widens them to the model's dtype instead"
)


@dataclass(frozen=True, slots=True)
class QuantisedLayer:
    """One quantised layer. `take(member, shape)` is a tensor under its name; `shape`: [out, in]."""

    name: str
    shape: tuple[int, int]
    take: Callable[[str, tuple[int, ...] | None], Tensor]
    has: Callable[[str], bool]

    def typed(self, member: str, shape: tuple[int, ...], *kinds: torch.dtype) -> Tensor:
        """A tensor whose bits mean something in `kinds` alone."""
        found = self.take(member, shape)
        if found.dtype not in kinds:
            raise self.wrong(f"has its {member} as {found.dtype}, not as {' or '.join(map(str, kinds))}")
        return found

    def wrong(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.name} {what}; download the checkpoint again, or use another.")


Read = Callable[[QuantisedLayer], Groups | Tensor]
"""A layer's weights: whole numbers in groups, or floats [out, in] where they are none or lie in no order of groups."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the layers of a checkpoint are stored: `mark` is the member by which one is known."""

    mark: str
    read: Read
    word: str = ""
    """What is to be said of the method when a model is loaded."""
    bits: float | None = None
    """Bits per weight, its scales included, if the matrix is kept as packed groups; None: it becomes floats."""
    float8: bool = False
    """Weights are in FP8, also those of experts that lie in one tensor, with scales for each `block`, if any."""
    block: tuple[int, int] | None = None


def scheme_of(config: Config) -> Scheme | None:
    """Scheme of a raw config.json; None: the checkpoint is not quantised. Raises CheckpointError, which names what is
    not supported."""
    settings = config.get("quantization_config")
    if not settings:
        return None
    if not isinstance(settings, Mapping):
        raise CheckpointError("config.json: quantization_config is not an object; download the checkpoint again.")
    method = settings.get("quant_method")
    if method not in QUANTISERS:
        raise CheckpointError(
            f"this checkpoint is quantised with {method or 'an unnamed method'}, which is not served; served are "
            f"{', '.join(QUANTISERS)}, and its float16, bfloat16 or float32 original."
        )
    found = QUANTISERS[method](settings)
    check_keys(settings)
    return found


def number(settings: Config, key: str, allowed: tuple[int, ...], default: int | None = None) -> int:
    value = settings.get(key, default)
    if isinstance(value, bool) or value not in allowed:
        raise CheckpointError(
            f"config.json: quantization_config.{key} is {str(value)[:40]}, but {' or '.join(map(str, allowed))} is "
            "served."
        )
    return int(value)


def group_size(settings: Config, default: int = -1) -> int:
    """Inputs that share a scale in the file; below 1: the whole row."""
    value = settings.get("group_size")
    if value is not None and type(value) is not int:
        raise CheckpointError(
            f"config.json: quantization_config.group_size is {str(value)[:40]!r}, but it must be a whole number; "
            "download the checkpoint again."
        )
    return default if value is None else value


def count_of(layer: QuantisedLayer, size: int) -> int:
    """How many groups of `size` a row has: a whole number."""
    inputs = layer.shape[1]
    if size > 0 and inputs % size and inputs > size:
        raise layer.wrong(f"has {inputs} inputs, no whole number of groups of {size}")
    return 1 if size < 1 else max(1, inputs // size)


def unpacked(words: Tensor, bits: int, dim: int) -> Tensor:
    """int32 words to the numbers in them, uint8, the lowest bits first, along `dim`."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    each = words.unsqueeze(dim + 1).bitwise_right_shift(shifts.view(-1, *[1] * (words.dim() - dim - 1)))
    return each.bitwise_and_((1 << bits) - 1).to(torch.uint8).flatten(dim, dim + 1)


def of_zeros(codes: Tensor, scale: Tensor, zero: Tensor, bits: int) -> Groups:
    """codes uint8 [out, in]; scale, zero [out, groups]: scale * (code - zero)."""
    scale, middle = scale.float().contiguous(), 1 << (bits - 1)
    if bool((zero == middle).all()):
        return Groups((codes.to(torch.int16) - middle).to(torch.int8), scale, None, bits)
    return Groups(codes.contiguous().view(torch.int8), scale, -zero.float() * scale, bits)


def ordered(groups: Groups, index: Tensor | None, name: str) -> Groups | Tensor:
    """Groups with the group of each input given by `index` [in]: in order they are groups; else they are put in order
    as floats."""
    inputs, count = groups.codes.shape[1], groups.scale.shape[1]
    if index is None or bool((index == torch.arange(inputs) // (inputs // count)).all()):
        return groups
    if int(index.min()) < 0 or int(index.max()) >= count:
        raise CheckpointError(f"{name}: g_idx names a group beyond the {count} there are; download it again.")
    of = index.long()
    codes = groups.codes if groups.minimum is None else groups.codes.view(torch.uint8)
    wide = codes.float().mul_(groups.scale[:, of])
    return wide if groups.minimum is None else wide.add_(groups.minimum[:, of])


def span(size: int) -> int:
    """Inputs that share a scale in memory, for groups of `size` in the file (below 1: the whole row)."""
    return 256 if size < 1 else next((n for n in (256, 128, 64) if size % n == 0), 32)


def gptq(settings: Config) -> Scheme:
    bits, size, act = number(settings, "bits", (4, 8)), group_size(settings), bool(settings.get("desc_act"))
    older_name, form = settings.get("format"), settings.get("checkpoint_format") or settings.get("format") or "gptq"
    if older_name and older_name != form:
        raise CheckpointError(
            f"config.json: quantization_config says format {str(older_name)[:40]} and checkpoint_format "
            f"{str(form)[:40]}, by which zeros mean different numbers; keep the right one."
        )
    if form not in GPTQ_FORMATS:
        raise CheckpointError(
            f"config.json: GPTQ of the format {str(form)[:40]} is not served; {' and '.join(GPTQ_FORMATS)} are."
        )
    for pattern, own in of_modules(settings.get("dynamic")).items():
        if not pattern.startswith("-:") and changes_form(own, settings):
            raise CheckpointError(
                f"config.json: quantization_config.dynamic gives the layers {pattern[:60]!r} a form of their own "
                f"({str(own)[:60]}), which is not served; layers with one form, and layers left out (-:), are."
            )
    older = form == "gptq"  # its zeros are stored less one

    def read(layer: QuantisedLayer) -> Groups | Tensor:
        outputs, inputs = layer.shape
        each, groups = 32 // bits, count_of(layer, size)
        codes = unpacked(layer.typed("qweight", (inputs // each, outputs), torch.int32), bits, 0).t()
        zero = unpacked(layer.typed("qzeros", (groups, outputs // each), torch.int32), bits, 1).t().int() + older
        scale = layer.typed("scales", (groups, outputs), *SCALE_TYPES).t()
        index = layer.take("g_idx", (inputs,)) if layer.has("g_idx") else None
        if index is None and act and groups > 1:
            raise layer.wrong("has no g_idx, although desc_act says that its inputs lie in another order")
        return ordered(of_zeros(codes, scale, zero, bits), index, layer.name)

    word = IN_ACT_ORDER.format(bits) if act and size > 0 else ""
    return Scheme("qweight", read, word, None if act else bits + HALVES / span(size))


def of_modules(dynamic: Any) -> Mapping[str, Any]:
    """GPTQModel's `dynamic`: what differs, by a pattern of names."""
    if dynamic and not isinstance(dynamic, Mapping):
        raise CheckpointError(
            "config.json: quantization_config.dynamic is not an object; download the checkpoint again."
        )
    return dynamic or {}


def changes_form(own: Any, settings: Config) -> bool:
    """Does it say anything else of how a layer is stored than the settings of all do?"""
    return not isinstance(own, Mapping) or any(settings.get(key) != value for key, value in own.items())


def awq(settings: Config) -> Scheme:
    number(settings, "bits", (4,))
    if (version := str(settings.get("version", "gemm")).lower()) != "gemm":
        raise CheckpointError(f"config.json: AWQ of version {version[:40]} is not served; version gemm is.")
    size = group_size(settings, 128)

    def columns(words: Tensor) -> Tensor:
        return unpacked(words, 4, 1).view(len(words), -1, 8)[:, :, list(AWQ_ORDER)].flatten(1).t()

    def read(layer: QuantisedLayer) -> Groups | Tensor:
        outputs, inputs = layer.shape
        groups = count_of(layer, size)
        codes = columns(layer.typed("qweight", (inputs, outputs // 8), torch.int32))
        zero = columns(layer.typed("qzeros", (groups, outputs // 8), torch.int32))
        if settings.get("zero_point") is False and not bool((zero == 8).all()):
            raise layer.wrong("has zero points, although the settings say zero_point false")
        return of_zeros(codes, layer.typed("scales", (groups, outputs), *SCALE_TYPES).t(), zero.int(), 4)

    return Scheme("qweight", read, bits=4 + HALVES / span(size))


def fp8(settings: Config) -> Scheme:
    """Blocks with `weight_scale_inv`, or a scale for each output or for all."""
    block = settings.get("weight_block_size")
    read = floating(block, settings.get("scale_fmt") == "ue8m0")
    return Scheme("weight", read, AS_FLOATS, float8=True, block=None if block is None else (block[0], block[1]))


def floating(block: Any = None, exponents: bool = False) -> Read:
    """FP8 with a scale for each `block` (outputs, inputs), or without blocks for each output, or for all. The config
    says which: as many scales may be either. `exponents`: scales may lie as bytes that are powers of 2."""
    sound = isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block)
    if block is not None and not sound:
        raise CheckpointError(
            f"config.json: blocks of FP8 weights are {str(block)[:40]}, but they must be two whole numbers above 0."
        )

    def read(layer: QuantisedLayer) -> Tensor:
        outputs, inputs = layer.shape
        weight = layer.typed("weight", layer.shape, *FLOAT8_TYPES).float()
        scale = scale_floats(layer, "weight_scale_inv" if layer.has("weight_scale_inv") else "weight_scale", exponents)
        if block is None:
            if scale.numel() == 1:
                return weight.mul_(scale.view(()))
            if scale.shape not in ((outputs,), (outputs, 1)):
                raise layer.wrong(f"has scales of shape {tuple(scale.shape)} for weights of {layer.shape}")
            return weight.mul_(scale.view(outputs, 1))
        if scale.shape != (-(-outputs // block[0]), -(-inputs // block[1])):
            raise layer.wrong(f"has scales of shape {tuple(scale.shape)}, which are not those of blocks of {block}")
        spread = scale.repeat_interleave(block[0], 0)[:outputs].repeat_interleave(block[1], 1)
        return weight.mul_(spread[:, :inputs])

    return read


def scale_floats(layer: QuantisedLayer, member: str, exponents: bool = False) -> Tensor:
    """Scales, which are floats; `exponents`: or bytes that are powers of 2."""
    found = layer.take(member, None)
    if exponents and found.dtype == torch.uint8:
        found = found.view(torch.float8_e8m0fnu)
    if not found.dtype.is_floating_point:
        raise layer.wrong(f"has its {member} as {found.dtype}, not as floats")
    return found.float()


def compressed(settings: Config) -> Scheme:
    """compressed-tensors, one group of settings for all linear layers."""
    for key in ("transform_config", "sparsity_config"):
        if (own := settings.get(key)) and not (isinstance(own, Mapping) and own.get("format") == "dense"):
            raise CheckpointError(
                f"config.json: compressed-tensors with {key} ({str(own)[:60]}) is not served; a checkpoint without is."
            )
    groups = settings.get("config_groups") or {}
    sound = isinstance(groups, Mapping) and all(isinstance(group, Mapping) for group in groups.values())
    kinds = [group.get("weights") for group in groups.values()] if sound else []
    if not kinds or any(not isinstance(kind, Mapping) or kind != kinds[0] for kind in kinds):
        raise CheckpointError("config.json: compressed-tensors with several kinds of weights is not served yet.")
    kind: Config = dict(kinds[0] or {})
    forms = {str(group.get("format") or settings.get("format")) for group in groups.values()}
    if len(forms) > 1:
        raise CheckpointError(
            f"config.json: compressed-tensors with several formats ({', '.join(sorted(forms))[:80]}) is not served yet."
        )
    (form,), size = forms, group_size(kind)
    if form == "pack-quantized" and kind.get("type", "int") == "int":
        bits = number(kind, "num_bits", (4, 8))
        return Scheme(
            "weight_packed", packed_numbers(bits, kind), by_importance(kind, bits), bits + FLOATS / span(size)
        )
    if form in ("int-quantized", "naive-quantized") and kind.get("type") == "int":
        number(kind, "num_bits", (8,))
        return Scheme("weight", whole_bytes(kind), by_importance(kind, 8), 8 + FLOATS / span(size))
    if form in ("float-quantized", "naive-quantized") and kind.get("type") == "float":
        number(kind, "num_bits", (8,))
        return Scheme("weight", floating(kind.get("block_structure")), AS_FLOATS)
    if form == "mxfp4-pack-quantized":
        return Scheme("weight_packed", mxfp4, bits=MXFP4)
    if form == "nvfp4-pack-quantized":
        return Scheme("weight_packed", fours("weight_packed", "weight_global_scale", size), AS_BYTES, ROUNDED_FOURS)
    raise CheckpointError(
        f"this checkpoint is quantised with compressed-tensors in the format {form[:40]} "
        f"({str(kind.get('type'))[:20]}), which is not served; served are "
        "pack-quantized, int-quantized, float-quantized, mxfp4-pack-quantized and nvfp4-pack-quantized."
    )


def by_importance(kind: Config, bits: int) -> str:
    """What is to be said of the order of inputs in these settings of compressed-tensors."""
    return IN_ACT_ORDER.format(bits) if kind.get("actorder") in (True, *OTHER_ORDER) else ""


def in_groups(layer: QuantisedLayer, kind: Config) -> Tensor:
    """The scales [out, groups] of whole numbers, as many as the settings `kind` say. Raises CheckpointError, also where
    a member is missing without which the numbers mean something else."""
    outputs, inputs = layer.shape
    scale, size = scale_floats(layer, "weight_scale"), group_size(kind)
    wide = scale.expand(outputs, 1) if scale.numel() == 1 else scale[:, None] if scale.dim() == 1 else scale
    groups = wide.shape[-1]
    if wide.dim() != 2 or wide.shape[0] != outputs or groups < 1 or inputs % groups:
        raise layer.wrong(f"has scales of shape {tuple(scale.shape)} for weights of {layer.shape}")
    if size > 0 and groups != count_of(layer, size):
        raise layer.wrong(f"has scales of shape {tuple(scale.shape)} for {inputs} inputs in groups of {size}")
    if kind.get("symmetric") is False and not layer.has("weight_zero_point"):
        raise layer.wrong("has no weight_zero_point, although its weights are not symmetric")
    if kind.get("actorder") in (True, *OTHER_ORDER) and groups > 1 and not layer.has("weight_g_idx"):
        raise layer.wrong("has no weight_g_idx, although actorder says that its inputs lie in another order")
    return wide


def packed_numbers(bits: int, kind: Config) -> Read:
    def read(layer: QuantisedLayer) -> Groups | Tensor:
        outputs, inputs = layer.shape
        each = 32 // bits
        if layer.has("weight_shape") and (found := layer.take("weight_shape", None).tolist()) != [outputs, inputs]:
            raise layer.wrong(f"has weight_shape {found} for weights of {layer.shape}")
        codes = unpacked(layer.typed("weight_packed", (outputs, -(-inputs // each)), torch.int32), bits, 1)[:, :inputs]
        scale = in_groups(layer, kind)
        zero = zero_points(layer, scale, bits, words=True)
        return ordered(of_zeros(codes, scale, zero, bits), order_of(layer), layer.name)

    return read


def order_of(layer: QuantisedLayer) -> Tensor | None:
    """The group of each input [in]; None: they lie in order, of which -1 in all places is a sign, too."""
    index = layer.take("weight_g_idx", (layer.shape[1],)) if layer.has("weight_g_idx") else None
    return None if index is None or bool((index == -1).all()) else index


def zero_points(layer: QuantisedLayer, scale: Tensor, bits: int, words: bool) -> Tensor:
    """[out, groups], of codes from 0 on; stored from the middle on, or in int32 as `words` of `bits` each."""
    middle = 1 << (bits - 1)
    if not layer.has("weight_zero_point"):
        return torch.full(scale.shape, middle)
    stored = layer.take("weight_zero_point", None)
    if words and stored.dtype == torch.int32:
        zero = unpacked(stored, bits, 0)[: len(scale)].int()
    else:
        zero = (stored.view(1, 1) if stored.numel() == 1 else stored.view(len(stored), -1)).int() + middle
        zero = zero.expand(scale.shape) if zero.numel() == 1 else zero
    if zero.shape != scale.shape:
        raise layer.wrong(f"has zero points of shape {tuple(stored.shape)} for scales of {tuple(scale.shape)}")
    return zero


def whole_bytes(kind: Config) -> Read:
    def read(layer: QuantisedLayer) -> Groups | Tensor:
        codes, scale = layer.take("weight", layer.shape), in_groups(layer, kind).float()
        if codes.dtype != torch.int8:
            raise layer.wrong(f"is stored as {codes.dtype}, not in int8")
        groups = Groups(codes, scale.contiguous(), None, 8)
        if layer.has("weight_zero_point"):
            shifted = (codes.to(torch.int16) + 128).to(torch.uint8)
            groups = of_zeros(shifted, scale, zero_points(layer, scale, 8, words=False), 8)
        return ordered(groups, order_of(layer), layer.name)

    return read


def mxfp4(layer: QuantisedLayer) -> Groups:
    outputs, inputs = layer.shape
    words = layer.typed("weight_packed", (outputs, inputs // 2), torch.uint8)
    kinds = (torch.uint8, torch.float8_e8m0fnu)
    exponent = layer.typed("weight_scale", (outputs, inputs // 32), *kinds).view(torch.uint8)
    codes = torch.stack((words & 15, words >> 4), 2).flatten(1)
    return Groups(codes.view(torch.int8), torch.exp2(exponent.float() - 128), None, 4, FP4)


def fours(member: str, whole: str, size: int) -> Read:
    """NVFP4: numbers of four bits with a scale in FP8 for each 16, and one for all, by which those of
    compressed-tensors are divided."""
    if size not in (-1, NVFP4_INPUTS):
        raise CheckpointError(f"config.json: NVFP4 in groups of {size} is not served; groups of {NVFP4_INPUTS} are.")

    def read(layer: QuantisedLayer) -> Groups:
        outputs, inputs = layer.shape
        words = layer.typed(member, (outputs, inputs // 2), torch.uint8)
        scale = layer.typed("weight_scale", (outputs, inputs // NVFP4_INPUTS), torch.float8_e4m3fn)
        every = layer.take(whole, None).float()
        if inputs % NVFP4_INPUTS or every.numel() != 1 or not bool(every > 0):
            raise layer.wrong(f"has {inputs} inputs and a {whole} of {every.flatten()[:2].tolist()}")
        codes = torch.stack((words & 15, words >> 4), 2).flatten(1)
        wide = scale.float() / every if whole == "weight_global_scale" else scale.float() * every
        return Groups(codes.view(torch.int8), wide.contiguous().mul_(0.5), None, 4, FP4)

    return read


def modelopt(settings: Config) -> Scheme:
    """NVIDIA's ModelOpt: FP8 with one scale, or NVFP4."""
    kind = settings.get("quant_algo")
    if kind == "FP8":
        return Scheme("weight", floating(), AS_FLOATS)
    if kind == "NVFP4":
        return Scheme(
            "weight_scale_2", fours("weight", "weight_scale_2", group_size(settings)), AS_BYTES, ROUNDED_FOURS
        )
    raise CheckpointError(
        f"config.json: quantization_config.quant_algo is {str(kind)[:40]}, which is not served; FP8 and NVFP4 are."
    )


QUANTISERS: dict[str, Callable[[Config], Scheme]] = {
    "compressed-tensors": compressed,
    "gptq": gptq,
    "awq": awq,
    "fp8": fp8,
    "fbgemm_fp8": fp8,
    "modelopt": modelopt,
    "mxfp4": lambda settings: Scheme("blocks", mxfp4, bits=MXFP4),  # of experts alone: stacked.py
}
