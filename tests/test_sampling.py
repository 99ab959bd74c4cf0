"""The designs that sample the matrices of the suite."""

from itertools import combinations

from tests.sampling import pairwise, sampled

AXES = {"a": list("0123456"), "b": [True, False], "c": [1, 2, 3], "d": [None, 1, 2, 5]}


def test_each_pair_of_values_is_in_a_row_and_rows_are_few() -> None:
    rows = pairwise(AXES, 3)
    for first, second in combinations(AXES, 2):
        held = {(row[first], row[second]) for row in rows}
        assert held == {(x, y) for x in AXES[first] for y in AXES[second]}
    assert 28 <= len(rows) < 60 and rows == pairwise(AXES, 3) != pairwise(AXES, 4)


def test_a_sample_holds_each_value_of_each_key_and_the_rest_is_full() -> None:
    cells = [(a, b) for a in range(9) for b in range(6)]
    made = sampled(cells, lambda c: c[0], lambda c: c[1])
    chosen = [p.values for p in made if not p.marks]
    assert [p.values for p in made] == cells and len(chosen) == 9
    assert {a for a, _ in chosen} == set(range(9)) and {b for _, b in chosen} == set(range(6))
