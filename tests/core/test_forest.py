"""Forests: joined from several drafters, cut by rows and never by token."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.errors import InputError, IntegrityError
from paceline.core.forest import MAX_CANDIDATES, NO_ROW, ROOT, Forest, Law, Role, join


def test_chain_hangs_below_the_last_given_token():
    part = Forest()
    part.add_chain(0, [7, 8], Law.POINT)
    forest = join([[1, 2, 3]], [part], [8])
    assert forest.token == [1, 2, 3, 7, 8]
    assert forest.parent == [ROOT, 0, 1, 2, 3]
    assert forest.depth == [0, 0, 0, 1, 2]
    assert forest.row == [0, 1, 2, 3, 4]
    assert forest.role == [Role.GIVEN] * 3 + [Role.CANDIDATE] * 2
    assert forest.paths(range(5)) == {0: (), 1: (), 2: (), 3: (7,), 4: (7, 8)}
    assert forest.by_request(1) == [[0, 1, 2, 3, 4]]


def test_siblings_keep_their_order_and_paths():
    part = Forest()
    a = part.add(0, 5, ROOT, law=Law.SAMPLED)
    b = part.add(0, 5, ROOT, law=Law.SAMPLED)  # an i.i.d. duplicate is a node of its own
    part.add(0, 6, a, law=Law.SAMPLED)
    part.add(0, 7, b, law=Law.SAMPLED)
    forest = join([[1]], [part], [8])
    assert forest.token == [1, 5, 5, 6, 7] and forest.parent == [ROOT, 0, 0, 1, 2]
    assert forest.paths(range(5))[4] == (5, 7)


def test_requests_and_parts_are_kept_apart():
    """Two drafters over two requests: nodes follow their request, q rows follow their table."""
    one, two = Forest(q=torch.full((2, 3), 1.0)), Forest(q=torch.full((1, 3), 2.0))
    one.add_chain(1, [4, 5], Law.SAMPLED, q_rows=[0, 1])
    two.add_chain(0, [6], Law.SAMPLED, q_rows=[0])
    two.add(1, 9, ROOT, law=Law.POINT)
    forest = join([[1], [2, 3]], [one, Forest(), two], [4, 4])
    assert forest.request == [0, 0, 1, 1, 1, 1, 1]
    assert forest.token == [1, 6, 2, 3, 4, 5, 9]
    assert forest.parent == [ROOT, 0, ROOT, 2, 3, 4, 3]
    assert forest.row == [0, 1, 0, 1, 2, 3, 4]
    assert forest.q_row == [-1, 2, -1, -1, 0, 1, -1]
    assert forest.q is not None and forest.q[:, 0].tolist() == [1.0, 1.0, 2.0]


def test_beyond_the_budget_siblings_stay_and_descendants_go():
    part = Forest()
    a = part.add(0, 5, ROOT, law=Law.SAMPLED)
    b = part.add(0, 6, ROOT, law=Law.SAMPLED)
    part.add(0, 7, a, law=Law.SAMPLED)
    part.add(0, 8, b, law=Law.SAMPLED)
    forest = join([[1, 2]], [part], [1])
    assert forest.token == [1, 2, 5, 6, 7], "the child of a node without a row cannot be reached"
    assert forest.row == [0, 1, 2, NO_ROW, NO_ROW]
    assert join([[1]], [part], [0]).row == [0, NO_ROW, NO_ROW]


def test_never_more_candidate_rows_than_a_tree_word_has_bits():
    part = Forest()
    part.add_chain(0, list(range(100)), Law.POINT)
    forest = join([[1]], [part], [100])
    assert sum(row != NO_ROW for row in forest.row) == 1 + MAX_CANDIDATES


TREES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 9)), max_size=12)


@settings(max_examples=200, deadline=None)
@given(st.lists(TREES, max_size=3), st.lists(st.integers(1, 3), min_size=3, max_size=3), st.integers(0, 10))
def test_invariants(trees, given_counts, budget):
    """For any drafters: parents precede children in the same request, rows are dense, and the tokens decide nothing."""
    joined = []
    for relabel in (lambda t: t, lambda t: 9 - t):
        parts = []
        for tree in trees:
            part = Forest()
            for request, pick, token in tree:
                mine = [ROOT, *(i for i, r in enumerate(part.request) if r == request)]
                part.add(request, relabel(token), mine[pick % len(mine)], law=Law.POINT)
            parts.append(part)
        joined.append(join([[0] * n for n in given_counts], parts, [budget] * 3))
    forest, other = joined
    assert (forest.parent, forest.row, forest.request) == (other.parent, other.row, other.request)
    for nodes, given_count in zip(forest.by_request(3), given_counts):
        rows = [forest.row[i] for i in nodes if forest.row[i] != NO_ROW]
        assert rows == list(range(len(rows))) and given_count <= len(rows) <= given_count + budget
        for i in nodes[given_count:]:
            parent = forest.parent[i]
            assert parent in nodes and parent < i and forest.row[parent] != NO_ROW
            assert forest.depth[i] == forest.depth[parent] + 1 == len(forest.paths(nodes)[i])


def test_a_probe_without_a_row_goes_with_all_below_it():
    """A candidate without a row is still judged from its parent's logits; nothing judges a probe."""
    part = Forest()
    a = part.add(0, 5, ROOT, law=Law.POINT)
    p = part.add(0, 6, ROOT, law=Law.POINT, role=Role.PROBE)
    q = part.add(0, 7, p, law=Law.POINT, role=Role.PROBE)
    part.add(0, 8, q, law=Law.POINT, role=Role.PROBE)
    part.add(0, 9, a, law=Law.POINT)
    forest = join([[1, 2]], [part], [2])
    assert forest.token == [1, 2, 5, 6, 9]
    assert forest.row == [0, 1, 2, 3, NO_ROW]
    assert forest.role[2:] == [Role.CANDIDATE, Role.PROBE, Role.CANDIDATE]


def test_a_candidate_below_a_probe_is_refused():
    part = Forest()
    probe = part.add(0, 6, ROOT, law=Law.POINT, role=Role.PROBE)
    with pytest.raises(IntegrityError, match="make it a probe"):
        part.add(0, 7, probe, law=Law.POINT)


def test_twins_share_a_row_or_lose_it_together():
    part = Forest()
    a = part.add(0, 5, ROOT, law=Law.SAMPLED)
    b = part.add(0, 5, ROOT, law=Law.SAMPLED, twin=a)
    c = part.add(0, 6, b, law=Law.SAMPLED)
    part.add(0, 6, a, law=Law.SAMPLED, twin=c)
    part.add(0, 5, ROOT, law=Law.POINT, role=Role.PROBE, twin=a)
    assert join([[1]], [part], [2]).row == [0, 1, 1, 2, 2, 1]
    assert join([[1]], [part], [1]).row == [0, 1, 1, NO_ROW, NO_ROW, 1]
    assert join([[1]], [part], [0]).row == [0, NO_ROW, NO_ROW], "nor is the probe there"


def test_probes_count_among_the_rows_of_a_tree_word():
    part = Forest()
    for _ in range(40):
        part.add(0, 1, ROOT, law=Law.POINT, role=Role.PROBE)
    part.add_chain(0, list(range(40)), Law.POINT)
    forest = join([[1]], [part], [100])
    assert sum(row != NO_ROW for row in forest.row) == 1 + MAX_CANDIDATES
    assert forest.role.count(Role.PROBE) == 40 and forest.row[-1] == NO_ROW and len(forest) == 1 + 64 + 1


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("token", 50, "token 50"),
        ("token", -1, "token -1"),
        ("token", 1.0, "token 1.0"),
        ("request", 2, "place 2"),
        ("parent", 1, "hangs below 1"),
        ("parent", -2, "hangs below -2"),
        ("role", Role.GIVEN, "is given"),
        ("q_row", 0, "row of q"),
    ],
)
def test_what_a_drafter_made_wrong_is_named(field: str, value: object, words: str) -> None:
    forest = Forest()
    forest.add(1, 7, ROOT, law=Law.POINT)
    forest.add(1, 8, 0, law=Law.POINT)
    forest.check({1}, 50)
    getattr(forest, field)[1] = value
    with pytest.raises(InputError, match=words):
        forest.check({1}, 50)


def test_a_parent_is_of_the_same_request() -> None:
    forest = Forest()
    forest.add(0, 7, ROOT, law=Law.POINT)
    forest.add(1, 8, 0, law=Law.POINT)
    with pytest.raises(InputError, match="hangs below 0"):
        forest.check({0, 1}, 50)
