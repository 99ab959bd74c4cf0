"""Verifiers: one file per rule. They see a forest, processed scores and noise, and know nothing of the cache."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from paceline.core.component import Component
from paceline.core.forest import NO_ROW, Forest
from paceline.core.plan import Item
from paceline.core.registry import Registry
from paceline.core.verdict import Verdict
from paceline.sample.sampler import RowRef, Sampler


@dataclass(slots=True)
class Case:
    """Everything one rule judges in a step.

    places: the plan places (requests) under this rule that complete their text in this step.
    roots[place]: the forest index of each one's root; children[node]: its candidates in draw order
    (of nodes that share a row, all children stand under the first).
    line[node]: the row of `scores` [L, V] (processed log-probabilities, `Sampler.scores`) that judges the node's
    children; refs[l]: whose path that row continues.
    """

    forest: Forest
    items: Sequence[Item]
    places: Sequence[int]
    roots: dict[int, int]
    children: dict[int, list[int]]
    line: dict[int, int]
    refs: Sequence[RowRef]
    scores: Tensor
    sampler: Sampler
    verdict: Verdict = field(default_factory=lambda: Verdict([], []))
    taps: Mapping[str, Tensor] = field(default_factory=dict)
    """Hidden states [T, H] of all rows of the pass, of the taps on the rule's card and of its components."""
    starts: Sequence[int] = ()
    """The first row of each place in the pass."""

    def hidden(self, node: int) -> dict[str, Tensor]:
        """Hidden states [H] of a node that has a row, by tap; given nodes have one, too."""
        row = self.starts[self.forest.request[node]] + self.forest.row[node]
        return {tap: states[row] for tap, states in self.taps.items()}

    def q(self, node: int) -> Tensor:
        """The distribution [V] that a drawn node was drawn from (of the first draw at its parent)."""
        assert self.forest.q is not None
        return self.forest.q[self.forest.q_row[node]]

    def has_row(self, node: int) -> bool:
        return self.forest.row[node] != NO_ROW


class Verifier(Protocol):
    """One rule: fills `case.verdict` for `case.places`. It may use each request's target noise (rules that emit
    the target's own draw) or accept noise (rules that look at q), never both. It is made with the engine's components,
    by name."""

    def judge(self, case: Case) -> None: ...


class Rule:
    """A rule that needs no components."""

    def __init__(self, components: Mapping[str, Component] | None = None) -> None:
        self.components = components or {}


VERIFIERS: Registry[Callable[[Mapping[str, Component]], Verifier]] = Registry("verifier", "paceline.verify")
