"""Mutated bodies of every wire model over HTTP: never a 500, never a death (bench/attacks/fuzz.py)."""

import pytest

from bench.attacks.fuzz import BASES, bodies, doors, fuzzed


def test_every_door_has_valid_bodies() -> None:
    assert {path for path, _ in doors()} <= set(BASES)


def test_the_same_seed_gives_the_same_bodies() -> None:
    assert list(bodies(20, 3)) == list(bodies(20, 3)) != list(bodies(20, 4))


@pytest.mark.parametrize("count", [150, pytest.param(100_000, marks=[pytest.mark.full, pytest.mark.timeout(3600)])])
def test_no_body_makes_the_server_fail(url: str, count: int) -> None:
    statuses, bad = fuzzed(url, count, seed=11)
    assert not bad, bad[:3]
    assert sum(statuses.values()) == count and statuses[200] and statuses[400]
