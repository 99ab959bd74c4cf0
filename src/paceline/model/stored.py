"""Bits per weight of a quantised checkpoint, from its headers."""

from collections.abc import Iterator

from paceline.model.checkpoint import Tensors
from paceline.model.families import FAMILIES
from paceline.model.footprint import layer_matrices
from paceline.model.gguf import GgufTensors
from paceline.model.spec import ModelSpec

ROUNDED = 8.75
"""Bits of a weight that was stored as a float and is rounded in groups (`grouped.pack_bytes`)."""
FUSED_FLOAT_BITS = 2
"""Bits that two floats for each 32 weights take: of matrices that are fused and not of one kind."""


def stored_bits(tensors: Tensors | GgufTensors, spec: ModelSpec) -> float | None:
    """Bits per weight, its scales included, averaged over all linear layers as they are packed; None: no more than half
    of the weights are in groups."""
    found = list(matrices(tensors, spec))
    whole = sum(count for count, _ in found)
    if 2 * sum(count for count, bits in found if bits is not None) <= whole:
        return None
    return sum(count * (ROUNDED if bits is None else bits) for count, bits in found) / whole


def matrices(tensors: Tensors | GgufTensors, spec: ModelSpec) -> Iterator[tuple[int, float | None]]:
    """Weights of each fused matrix, and the bits of one; None: stored as floats."""
    names = FAMILIES[spec.family].names
    for index, layer in enumerate(spec.layers):
        at = names.layer.format(index)
        parts = names.qkv, (names.out,), names.gate_up, (names.down,)
        for (outputs, inputs), fused in zip(layer_matrices(spec, layer), parts):
            yield outputs * inputs, together([tensors.bits(f"{at}{name}.weight") for name in fused])


def together(bits: list[float | None]) -> float | None:
    """Bits per weight of matrices that are fused: different kinds get the codes of the widest, with floats as
    scales."""
    known = [each for each in bits if each is not None]
    if len(known) < len(bits):
        return None
    return known[0] if len({*known}) == 1 else max(int(each) // 4 * 4 for each in known) + FUSED_FLOAT_BITS
