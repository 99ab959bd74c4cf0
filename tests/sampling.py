"""A matrix is too long for every run: a seeded design samples it, and `-m full` runs what the sample leaves out.

`pairwise` draws rows that hold each pair of values of two axes at least once. `sampled` picks cells of a given list, so
that each value of each key is there, and marks the others `full`.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest

ATTEMPTS = 12
"""Rows that are drawn for each one that is taken: the one with the most new pairs."""


def pairs(row: Mapping[str, Any]) -> set[tuple[str, int, str, int]]:
    """The pairs of values that a row {axis: index of its value} holds."""
    return {(a, row[a], b, row[b]) for a, b in combinations(sorted(row), 2)}


def pairwise(axes: Mapping[str, Sequence[Any]], seed: int) -> list[dict[str, Any]]:
    """Rows {axis: value} that hold each pair of values of two axes."""
    rng, rows = random.Random(seed), list[dict[str, Any]]()
    sizes = {name: len(values) for name, values in axes.items()}
    missing = {(a, i, b, j) for a, b in combinations(sorted(axes), 2) for i in range(sizes[a]) for j in range(sizes[b])}
    while missing:
        a, i, b, j = min(missing)
        tries = [{**{n: rng.randrange(size) for n, size in sizes.items()}, a: i, b: j} for _ in range(ATTEMPTS)]
        best = max(tries, key=lambda row: len(pairs(row) & missing))
        missing -= pairs(best)
        rows.append({name: axes[name][index] for name, index in best.items()})
    return rows


def sampled(cells: Sequence[tuple[Any, ...]], *keys: Callable[[tuple[Any, ...]], Any], seed: int = 0) -> list[Any]:
    """The cells as parameters of a test: a sample with each value of each key, and the others marked `full`."""
    rng, chosen = random.Random(seed), set[int]()
    missing = {(k, key(cell)) for cell in cells for k, key in enumerate(keys)}
    while missing:
        order = rng.sample(range(len(cells)), len(cells))
        news = {at: missing & {(k, key(cells[at])) for k, key in enumerate(keys)} for at in order}
        best = max(order, key=lambda at: len(news[at]))
        missing -= news[best]
        chosen.add(best)
    return [pytest.param(*cell, marks=() if at in chosen else pytest.mark.full) for at, cell in enumerate(cells)]
