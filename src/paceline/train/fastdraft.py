"""`fastdraft`: a small draft model made from nothing for a target's vocabulary (FastDraft, Zafrir et al. 2024, arXiv
2411.11055).

Three runs, each beginning with what the one before made (`--set draft=DIR`):

    1. pre-training        on texts as they are            --as-given --data texts.jsonl
    2. continued           on texts and code               --as-given --data texts.jsonl --data code.jsonl
    3. alignment           on the target's own answers     --answers --data prompts.jsonl

Plain cross entropy throughout. `fit` chooses the shape (`paceline train fit`): at equal bytes a deep model is slower
than a wide one.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch

from paceline.core.errors import InputError
from paceline.model.linear import Packing, choose
from paceline.train import TRAINERS, Trains
from paceline.train.student import DraftMethod

CANDIDATE_WIDTHS = (128, 192, 256, 320, 384, 512, 640, 768, 1024)
HEAD_SIZE = 64
"""Numbers in a head of attention."""


@TRAINERS.register("fastdraft", Trains("a small draft model from nothing, for a vocabulary", drafter="model"))
class FastDraft(DraftMethod):
    name = "fastdraft"
    preset: ClassVar = {"objective": "ce", "rollout": "data"}


@dataclass(frozen=True)
class FittedShape:
    """A shape, and seconds of one of its passes over one row, by the parts' measured times."""

    layers: int
    width: int
    seconds: float
    parameters: int

    @property
    def settings(self) -> dict[str, int]:
        """For `--set`."""
        heads = self.width // HEAD_SIZE
        return {
            "layers": self.layers, "hidden": self.width, "heads": heads,
            "kv_heads": heads // 2 if heads % 2 == 0 else heads, "ffn": ffn(self.width),
        }  # fmt: skip


def ffn(width: int) -> int:
    return (8 * width // 3 + 15) // 16 * 16


def weights(width: int, vocab: int) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """(out, in) of one layer's matrices, and of the head."""
    layer = [(width, width), (width // 2, width), (width // 2, width), (width, width)]
    return [*layer, (ffn(width), width), (ffn(width), width), (width, ffn(width))], (vocab, width)


@cache
def packing() -> Packing:
    return choose(torch.bfloat16, torch.device("cpu"))


def measured(shape: tuple[int, int]) -> float:
    """Seconds of one row through a bfloat16 matrix of this shape, packed as it will serve: the median of some."""
    linear = packing().pack(torch.randn(shape, dtype=torch.bfloat16), None)
    row = torch.randn(1, shape[1], dtype=packing().compute)
    times = []
    for _ in range(15):
        start = time.perf_counter()
        linear(row)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def fit(
    vocab: int, seconds: float, *, most: int = 8, overhead: float = 1e-5,
    cost: Callable[[tuple[int, int]], float] = measured,
) -> FittedShape:  # fmt: skip
    """The shape with the most parameters whose pass takes at most `seconds`; of equal ones the shallower. `overhead`:
    seconds of a layer apart from its matrices: the price of depth. Raises InputError where nothing
    fits."""
    found: FittedShape | None = None
    for width in CANDIDATE_WIDTHS:
        layer, head = weights(width, vocab)
        each, top = sum(map(cost, layer)) + overhead, cost(head)
        depth = min(most, int((seconds - top) / each)) if seconds > top else 0
        if depth < 1:
            continue
        size = depth * sum(a * b for a, b in layer) + head[0] * head[1]
        made = FittedShape(depth, width, top + depth * each, size)
        if found is None or (made.parameters, -made.layers) > (found.parameters, -found.layers):
            found = made
    if found is None:
        raise InputError(f"No draft model for {vocab} tokens has a pass within {seconds:.2g} s; allow more time.")
    return found
