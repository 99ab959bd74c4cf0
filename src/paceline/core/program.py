"""`Program`: which layers a pass runs through, and what stands behind them. `Entry`: rows that come to it half done."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from paceline.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

Part = Literal["attention", "ffn"]


@dataclass(frozen=True, slots=True)
class Program:
    """Layers `first` .. `last` in order. A pass that does not begin at layer 0 enters with hidden states
    (`Rows.hidden`); one without a head leaves with them (`Out.leave`)."""

    first: int = 0
    last: int | None = None
    """Layer before which the pass ends; None: it runs to the last."""
    skip: frozenset[tuple[int, Part]] = frozenset()
    """(layer, part) of those that are left out; their K/V stay as they are (SWIFT, Xia et al. 2024)."""
    groups: tuple[tuple[int, ...], ...] = ()
    """Layers whose attention reads one input, that of the first of them (EasySpec, arXiv 2502.02493): each group is a
    run of neighbours."""
    head: bool = True
    """Final norm and logits behind the last layer that runs: of an early exit, too."""
    narrow: bool = False
    """Logits of the model's draft vocabulary alone, where it has one (`Narrows`); those of other tokens are -inf."""

    def check(self, layers: int) -> None:
        """Raise InputError unless a model with `layers` layers can run this."""
        last = layers if self.last is None else self.last
        if not 0 <= self.first <= last <= layers:
            raise InputError(f"A program of layers {self.first} to {last} does not fit a model of {layers} layers.")
        outside = [layer for layer, _ in self.skip if not 0 <= layer < layers]
        outside += [layer for group in self.groups for layer in group if not self.first <= layer < last]
        if outside:
            raise InputError(f"A program names layer {outside[0]}, but it has the layers {self.first} to {last - 1}.")
        flat = [layer for group in self.groups for layer in group]
        if any(list(group) != list(range(group[0], group[-1] + 1)) for group in self.groups if group):
            raise InputError(f"The groups {self.groups} of a program must be runs of neighbouring layers.")
        if len(set(flat)) < len(flat) or any(not group for group in self.groups):
            raise InputError(f"The groups {self.groups} of a program must be disjoint and not empty.")

    def order(self, layers: int) -> list[tuple[int, ...]]:
        """The groups in order, with every other layer as a group of its own."""
        starts = {group[0]: group for group in self.groups}
        inner = {layer for group in self.groups for layer in group[1:]}
        last = layers if self.last is None else self.last
        return [starts.get(layer, (layer,)) for layer in range(self.first, last) if layer not in inner]


WHOLE = Program()


class Entry(NamedTuple):
    """The first N rows of a text in a pass have run through the layers below `layer` already, in the same slots: their
    K/V is there, and they go on from the hidden states that they left with."""

    layer: int
    hidden: "Tensor"
    """[N, H]"""
    taps: "Mapping[str, Tensor]"
    """{tap: [N, H]} of those below `layer` that are read."""


def inputs(places: Collection[str]) -> int:
    """Layers of a model with these hidden states (`Model.places`): each has one input."""
    return sum(place.startswith("input:") for place in places)


def under(tap: str, layer: int) -> bool:
    """Is this hidden state the input of a layer below this one?"""
    return tap.startswith("input:") and int(tap.removeprefix("input:")) < layer


def exits(layers: int, most: int) -> tuple[int, ...]:
    """Up to `most` layers, evenly spread, before which a pass may end (and never before the first): numbers of the
    layers that a pass up to there runs through."""
    count = min(most, layers - 1)
    return tuple(sorted({max(1, round(layers * (i + 1) / (count + 1))) for i in range(count)}))
