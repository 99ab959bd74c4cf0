"""What is pruned before it costs a row, and what must stay."""

from typing import Any

import pytest

from paceline.core.forest import ROOT, Forest, Law, Role
from paceline.core.grammar import Grammar
from paceline.core.plan import Item
from paceline.core.request import Request
from paceline.engine.prune import prune
from paceline.sample.sampler import Sampler
from tests.sample.cases import LETTERS, admitted, request

B, C, D = (LETTERS.index(letter) for letter in "bcd")
GRAMMAR = Grammar("regex", "b(c|b)?")


def setting(verifier: str, *grammars: Grammar | None) -> tuple[list[Item], Sampler]:
    requests: list[Request] = [request(i, grammar=grammar) for i, grammar in enumerate(grammars)]
    return [Item(r, 1, 8, "user", verifier) for r in requests], admitted(*requests)


def tree(law: Law = Law.POINT, place: int = 0, role: Role = Role.CANDIDATE) -> Forest:
    """b ─┬─ c ── 0 ── b,  beside  d ── b;  `0` ends the sequence.
    └─ d
    """
    forest = Forest()
    b = forest.add(place, B, ROOT, law=law)
    d = forest.add(place, D, ROOT, law=law, role=role)
    c = forest.add(place, C, b, law=law)
    forest.add(place, D, b, law=law, role=role)
    forest.add(place, B, d, law=law, role=role)
    end = forest.add(place, 0, c, law=law)
    forest.add(place, B, end, law=law, role=role)
    return forest


def shape(forest: Forest) -> list[tuple[int, ...]]:
    return sorted(forest.paths(range(len(forest))).values())


POSSIBLE = [(B,), (B, C), (B, C, 0)]


@pytest.mark.parametrize(
    ("law", "verifier"),
    [
        (Law.POINT, "exact"),
        (Law.POINT, "rrs"),
        (Law.POINT, "chain"),
        (Law.POINT, "typical"),
        (Law.SHARED_NOISE, "exact"),
        (Law.WITHOUT_REPLACEMENT, "exact"),
    ],
)
def test_what_cannot_be_goes_with_what_hangs_below(law: Law, verifier: str) -> None:
    assert shape(prune(tree(law), *setting(verifier, GRAMMAR))) == POSSIBLE


@pytest.mark.parametrize(
    ("law", "verifier"),
    [
        (Law.WITHOUT_REPLACEMENT, "rrs"),
        (Law.SAMPLED, "rrs"),
        (Law.SAMPLED, "chain"),
        (Law.SAMPLED, "kseq"),
        (Law.SAMPLED, "typical"),
    ],
)
def test_drawn_nodes_stay_under_a_rule_that_looks_at_q(law: Law, verifier: str) -> None:
    forest = tree(law)
    assert prune(forest, *setting(verifier, GRAMMAR)) == forest


def test_probes_stay() -> None:
    forest = tree(role=Role.PROBE)
    assert shape(prune(forest, *setting("exact", GRAMMAR))) == shape(forest)


def test_only_requests_with_a_grammar_are_pruned() -> None:
    items, sampler = setting("exact", None, GRAMMAR)
    assert prune(tree(), items, sampler) == tree()
    both, other = tree(), tree(place=1)
    for i in range(len(other)):
        above = other.parent[i]
        both.add(1, other.token[i], ROOT if above == ROOT else above + len(other), law=Law.POINT)
    out = prune(both, items, sampler)
    assert [shape_of(out, place) for place in (0, 1)] == [shape(tree()), POSSIBLE]


def shape_of(forest: Forest, place: int) -> list[tuple[int, ...]]:
    paths = forest.paths(range(len(forest)))
    return sorted(path for i, path in paths.items() if forest.request[i] == place)


def test_what_is_left_is_as_it_was() -> None:
    """Rows that twins share, distributions, rows of q and the draw order of siblings."""
    forest = Forest()
    first = forest.add(0, D, ROOT, law=Law.POINT)
    b = forest.add(0, B, ROOT, law=Law.POINT, q_row=3)
    twin = forest.add(0, B, ROOT, law=Law.SHARED_NOISE, q_row=4, twin=b)
    forest.add(0, C, twin, law=Law.POINT)
    forest.add(0, B, b, law=Law.POINT)
    out = prune(forest, *setting("exact", GRAMMAR))
    kept: list[Any] = [i for i in range(len(forest)) if i != first]
    assert out.token == [forest.token[i] for i in kept] and out.row == [forest.row[i] for i in kept]
    assert out.law == [forest.law[i] for i in kept] and out.q_row == [forest.q_row[i] for i in kept]
    assert out.parent == [ROOT, ROOT, 1, 0] and out.depth == [1, 1, 2, 2]
