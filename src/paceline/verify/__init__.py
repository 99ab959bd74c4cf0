"""Verifiers: one file per rule. They see a forest, processed scores and noise, and know nothing of the cache."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

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

    def q(self, node: int) -> Tensor:
        """The law [V] that a drawn node was drawn from (of the first draw at its parent)."""
        assert self.forest.q is not None
        return self.forest.q[self.forest.q_row[node]]

    def has_row(self, node: int) -> bool:
        return self.forest.row[node] != NO_ROW


class Verifier(Protocol):
    """One rule: fills `case.verdict` for `case.places`. It may use each request's target noise (rules that emit
    the target's own draw) or accept noise (rules that look at q), never both."""

    def judge(self, case: Case) -> None: ...


VERIFIERS: Registry[type[Verifier]] = Registry("verifier", "paceline.verify")
