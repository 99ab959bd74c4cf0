"""Which layers of a fine-tune could be those of its base: by their parameters, and by what the model says with them.

Parameters of fine-tunes are alike as vectors whatever they do, for the base outweighs what was learned. So the
length of the difference is measured, too, and outputs decide: a layer is equivalent where the next-token distributions
of a probe text stay within a bound, as the mean Jensen-Shannon divergence in bits, from 0 (the same) to 1. Layers that
are each within the bound may not be together; so they are taken one after the other, the most alike first, as long as
the model with all of them is within it (BlockLLM, arXiv 2404.18322, section 4.2: a threshold on each).
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.core.errors import InputError
from paceline.core.rows import RowsBuilder
from paceline.model.chain import Link
from paceline.model.chained import check_alike, check_base, composed

if TYPE_CHECKING:
    from paceline.model.decoder import Decoder

PROBE_WINDOW = 256
"""Tokens of a probe text that are read at once."""
EQUIVALENCE_LAYOUT = 1


@dataclass(frozen=True, slots=True)
class Likeness:
    """Two versions of a layer."""

    layer: int
    cosine: float
    """Cosine of the parameters, of the matrix that differs most: 1 where they are equal."""
    delta: float
    """Length of the difference as a share of the base's, of the matrix in which it is largest."""
    divergence: float
    """Mean Jensen-Shannon divergence in bits of the fine-tune's next tokens with the base's layer in place of its own;
    0 where the layers are equal."""
    agree: float
    """Share of probe tokens after which the likeliest next token stays the same."""
    own: str = ""
    """Digest of the fine-tune's layer."""
    base: str = ""
    """Digest of the base's."""

    @property
    def same(self) -> bool:
        return self.own == self.base


@dataclass(frozen=True, slots=True)
class EquivalenceReport:
    """Report of a fine-tune and its base."""

    bound: float
    """Largest mean divergence."""
    least_cosine: float
    tokens: int
    """Probe tokens."""
    layers: tuple[Likeness, ...]
    substitutes: tuple[int, ...] = ()
    """Layers whose places the base's can take together."""
    divergence: float = 0.0
    """With all of these."""
    agree: float = 1.0

    def pairs(self) -> dict[str, str]:
        """{digest of a layer: that of the base's layer that may take its place}"""
        return {it.own: it.base for it in self.layers if it.layer in self.substitutes}

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({"layout": EQUIVALENCE_LAYOUT, **asdict(self)}, indent=1), encoding="utf-8")


def read_report(path: Path) -> EquivalenceReport:
    """InputError for a file that is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found.pop("layout") != EQUIVALENCE_LAYOUT:
            raise ValueError("its layout is another")
        layers = tuple(Likeness(**each) for each in found.pop("layers"))
        made = EquivalenceReport(layers=layers, **{**found, "substitutes": tuple(found["substitutes"])})
        if not all(isinstance(it.own, str) and isinstance(it.base, str) for it in layers):
            raise ValueError("a digest is no text")
        return made
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is no report of paceline zoo compare ({error}).") from None


@dataclass(slots=True)
class Probe:
    """Next-token distributions of one decoder over a text, to compare others with."""

    base: "Decoder"
    ids: Sequence[int]
    block: int = 16
    said: list[Tensor] = field(default_factory=list)

    def windows(self) -> list[list[int]]:
        return [list(self.ids[i : i + PROBE_WINDOW]) for i in range(0, len(self.ids), PROBE_WINDOW)]

    def scores(self, decoder: "Decoder") -> list[Tensor]:
        """Log-probabilities [T, V] of each window."""
        return [log_probabilities(decoder, window, self.block) for window in self.windows()]

    def beside(self, decoder: "Decoder") -> tuple[float, float]:
        """(mean divergence in bits, share of equal likeliest tokens) next to `said`."""
        apart, same, rows = 0.0, 0, 0
        for mine, its in zip(self.said, self.scores(decoder), strict=True):
            apart += float(divergence(mine, its).sum())
            same += int((mine.argmax(-1) == its.argmax(-1)).sum())
            rows += len(mine)
        return apart / rows, same / rows


def log_probabilities(decoder: "Decoder", ids: list[int], block: int) -> Tensor:
    """[T, V], of the token after each of these."""
    builder, count = RowsBuilder(), len(ids)
    builder.add(ids, list(range(count)), list(range(-(-count // block))), 0, want=list(range(count)))
    return decoder.computed(builder.build(decoder.device)).logits.double().log_softmax(-1)


def divergence(one: Tensor, other: Tensor) -> Tensor:
    """Jensen-Shannon divergence in bits [T] of log-probabilities [T, V]."""
    middle = torch.logaddexp(one, other) - math.log(2)
    halves = [(it.exp() * (it - middle)).nan_to_num(0).sum(-1) for it in (one, other)]
    return ((halves[0] + halves[1]) / 2 / math.log(2)).clamp(0, 1)


def compare(
    base: "Decoder",
    tuned: "Decoder",
    parameters: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
    names: Sequence[str],
    ids: Sequence[int],
    bound: float,
    least_cosine: float,
) -> EquivalenceReport:
    """`parameters`: the tensors of base and fine-tune by name; `names`: how those of each layer begin. The decoders
    must have no pool yet."""
    check_base(base)
    check_alike("The fine-tune", tuned, base)
    blocks = -(-PROBE_WINDOW // 16)
    base.allocate(blocks, 16)
    tuned.share_pool(base)
    probe, layers = Probe(base, ids), len(base.spec.layers)
    probe.said = probe.scores(tuned)

    def with_base(which: Sequence[int]) -> "Decoder":
        chain = [Link("base" if i in which else "tuned", i, i + 1) for i in range(layers)]
        whole = composed(base, {"base": base, "tuned": tuned}, tuple(chain)).decoder
        ends = replace(whole.weights, embedding=tuned.weights.embedding, norm=tuned.weights.norm,
                       head=tuned.weights.head)  # fmt: skip
        made = base.alike(ends, "")
        made.share_pool(base)
        return made

    found = list[Likeness]()
    for layer in range(layers):
        own, its = tuned.weights.sections[layer + 1], base.weights.sections[layer + 1]
        if own == its:
            found.append(Likeness(layer, 1.0, 0.0, 0.0, 1.0, own, its))
            continue
        cosine, delta = likeness(*parameters, names[layer])
        found.append(Likeness(layer, cosine, delta, *probe.beside(with_base([layer])), own, its))
    taken, apart, agree = list[int](), 0.0, 1.0
    for it in sorted((it for it in found if not it.same), key=lambda it: it.divergence):
        if it.divergence > bound or it.cosine < least_cosine:
            continue
        more = probe.beside(with_base([*taken, it.layer])) if taken else (it.divergence, it.agree)
        if more[0] <= bound:
            taken.append(it.layer)
            apart, agree = more
    return EquivalenceReport(bound, least_cosine, len(ids), tuple(found), tuple(sorted(taken)), apart, agree)


def likeness(base: Mapping[str, Tensor], tuned: Mapping[str, Tensor], begin: str) -> tuple[float, float]:
    """(least cosine, largest relative length of a difference) over the tensors whose names begin so."""
    cosines, deltas = [1.0], [0.0]
    for name, one in base.items():
        if name.startswith(begin) and name in tuned and one.is_floating_point():
            mine, its = one.double().flatten(), tuned[name].double().flatten()
            if torch.equal(mine, its):
                continue
            length = float(mine.norm()) or 1.0
            cosines.append(float(mine @ its) / (length * (float(its.norm()) or 1.0)))
            deltas.append(float((its - mine).norm()) / length)
    return min(cosines), max(deltas)
