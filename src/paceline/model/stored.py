"""Bits per weight of a quantised checkpoint, from its headers."""

import re
from collections.abc import Iterator
from math import prod

from paceline.model.checkpoint import Tensors
from paceline.model.families import FAMILIES
from paceline.model.family import Names
from paceline.model.footprint import layer_matrices
from paceline.model.gguf import GgufTensors
from paceline.model.gguf.types import PACKED
from paceline.model.spec import Delta, Experts, Layer, Mamba, ModelSpec

ROUNDED = 8.5
"""Bits of a weight that was stored as a float and is rounded in groups (`rounding.pack_bytes`)."""
TABLE = re.compile(r"(token_embd|per_layer_token_embd|output)\.weight")
"""Names of matrices in GGUF files that are no layer's."""
FUSED_FLOAT_BITS = 2
"""Bits that two floats for each 32 weights take: of matrices that are fused and not of one kind."""


def stored_bits(tensors: Tensors | GgufTensors, spec: ModelSpec) -> float | None:
    """Bits per weight, its scales included, averaged over all linear layers as they are packed; None: no more than half
    of the weights are in groups."""
    if not spec.common:
        return loose_bits(tensors)
    found = list(matrices(tensors, spec))
    whole = sum(count for count, _ in found)
    if 2 * sum(count for count, bits in found if bits is not None) <= whole:
        return None
    return sum(count * (ROUNDED if bits is None else bits) for count, bits in found) / whole


def loose_bits(tensors: Tensors | GgufTensors) -> float | None:
    """As `stored_bits`, of a model with layers of other kinds, by what its checkpoint says of all of them."""
    if isinstance(tensors, GgufTensors):
        entries = [(name, it) for name, it in tensors.place.items() if len(it.shape) > 1 and not TABLE.match(name)]
        kinds = [(prod(it.shape), PACKED.get(it.kind)) for _, it in entries]
        whole = sum(count for count, _ in kinds)
        if 2 * sum(count for count, bits in kinds if bits is not None) <= whole:
            return None
        return sum(count * (ROUNDED if bits is None else bits) for count, bits in kinds) / whole
    if tensors.scheme is None:
        return None
    found = {tensors.bits(name.removesuffix(tensors.scheme.mark) + "weight") for name in tensors.place}
    return max((it for it in found if it is not None), default=None)


def hot_bytes(tensors: Tensors | GgufTensors, spec: ModelSpec) -> tuple[int, int] | None:
    """Bytes of all linear layers and the head, which a pass reads: in the file, and packed as they are stored. None:
    not all of a GGUF file's matrices are in groups."""
    if not isinstance(tensors, GgufTensors) or not spec.common:
        return None
    names = tensors.renamed or FAMILIES[spec.family].names
    head = names.embedding if spec.tied else names.head
    found = [f"{head}.weight"]
    for index in range(len(spec.layers)):
        at = names.layer.format(index)
        found += [f"{at}{name}.weight" for fused in matrix_names(names, spec.layers[index]) for name in fused]
    file = [tensors.file_bits(name) for name in found]
    kept = list(matrices(tensors, spec))
    last = tensors.bits(found[0])
    if None in file or last is None or any(bits is None for _, bits in kept):
        return None
    numbers = [*kept, (spec.vocab * spec.hidden, last)]
    return sum(it for it in file if it is not None) // 8, int(sum(n * (bits or 0) for n, bits in numbers) / 8)


def matrices(tensors: Tensors | GgufTensors, spec: ModelSpec) -> Iterator[tuple[int, float | None]]:
    """Weights of each fused matrix, and the bits of one; None: stored as floats."""
    names = tensors.renamed or FAMILIES[spec.family].names
    for index, layer in enumerate(spec.layers):
        at = names.layer.format(index)
        parts = matrix_names(names, layer)
        for number, ((outputs, inputs), fused) in enumerate(zip(layer_matrices(spec, layer), parts, strict=True)):
            kinds = [tensors.bits(f"{at}{name}.weight") for name in fused]
            if (
                number == 0
                and layer.attends
                and len(kinds) == 3
                and None not in kinds
                and kinds[0] == kinds[1] != kinds[2]
            ):
                values = spec.kv_heads * spec.head_dim  # these lie apart (load.py)
                yield (outputs - values) * inputs, kinds[0]
                yield values * inputs, kinds[2]
                continue
            yield outputs * inputs, together(kinds)


def matrix_names(names: Names, layer: Layer) -> Iterator[tuple[str, ...]]:
    """What is fused into each of a layer's matrices, in the order of `layer_matrices`."""
    yield from mixer_names(names, layer)
    feed = layer.feed
    if feed is None:
        return
    if not isinstance(feed, Experts):
        yield names.gate_up
        yield (names.down,)
        return
    for number, below in enumerate((*map(names.expert.format, range(feed.count)), *[names.shared] * (feed.shared > 0))):
        yield tuple(below + name.format(number) for name in names.expert_gate_up)
        yield (below + names.expert_down.format(number),)


def mixer_names(names: Names, layer: Layer) -> tuple[tuple[str, ...], ...]:
    """As of `matrix_names`, of attention or a recurrence."""
    form = layer.recurs
    if form is None:
        return names.qkv, (names.out,)
    if isinstance(form, Mamba):
        return (f"{names.mamba}in_proj",), (f"{names.mamba}out_proj",)
    if isinstance(form, Delta):
        return tuple(names.delta + name for name in names.inner(form)), (f"{names.delta}out_proj",)
    return (names.conv_in,), (names.conv_out,)


def together(bits: list[float | None]) -> float | None:
    """Bits per weight of matrices that are fused: different kinds get the codes of the widest, with floats as
    scales."""
    known = [each for each in bits if each is not None]
    if len(known) < len(bits):
        return None
    return known[0] if len({*known}) == 1 else max(8 if each > 6 else int(each) for each in known) + FUSED_FLOAT_BITS
