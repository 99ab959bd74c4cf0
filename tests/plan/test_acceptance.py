"""Conditional acceptance: unbiased by selection, shrunk to the mean, and quick to notice a change."""

import random

import pytest

from paceline.plan.acceptance import DEEP, Acceptance, Record, Watch

KEY = ("m", 0)


def rounds(
    it: Acceptance, rates: list[float], count: int, rng: random.Random, request: int = 0, drawn: int = 9
) -> None:
    """`count` drafts as deep as `rates`; beyond `drawn` the drafter offers nothing."""
    for _ in range(count):
        kept = 0
        while kept < min(len(rates), drawn) and rng.random() < rates[kept]:
            kept += 1
        it.observe(request, KEY, len(rates), [1] * min(len(rates), drawn), [1] * kept)


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.8])
def test_unbiased_where_accepted_over_drafted_is_not(rate: float) -> None:
    """SmartSpec's pitfall: at 0.8 and five drafts accepted/drafted is 0.54."""
    rng, found, naive = random.Random(0), [], []
    for _ in range(40):
        it = Acceptance()
        for request in range(4):
            rounds(it, [rate] * 5, 40, rng, request=request)
        survival = it.expected(None, KEY, 5).kept
        found.append([b / a for a, b in zip([1.0, *survival], survival)])
        naive.append(sum(survival) / 5)
    for depth in range(4):
        assert sum(f[depth] for f in found) / len(found) == pytest.approx(rate, abs=0.04)
    assert sum(naive) / len(naive) < rate - 0.1


def test_each_depth_has_its_own_rate() -> None:
    it, rng = Acceptance(), random.Random(1)
    rates = [0.9, 0.3, 0.8]
    for request in range(40):
        rounds(it, rates, 30, rng, request)
    survival = it.expected(None, KEY, 3).kept
    assert survival == pytest.approx([0.9, 0.27, 0.216], abs=0.12)
    above = min(DEEP, survival[2] / survival[1])
    assert it.expected(None, KEY, 6).kept[3] == pytest.approx(survival[2] * above, rel=1e-6), "as the one above"


def test_a_request_starts_at_the_mean_and_departs_from_it() -> None:
    it, rng = Acceptance(), random.Random(2)
    for request in range(8):
        rounds(it, [0.8] * 3, 30, rng, request)
    mean = it.expected(None, KEY, 3).kept
    assert it.expected(99, KEY, 3).kept == mean
    rounds(it, [0.05] * 3, 2, rng, 99)
    few = it.expected(99, KEY, 3).kept[0]
    rounds(it, [0.05] * 3, 30, rng, 99)
    assert it.expected(99, KEY, 3).kept[0] < 0.35 < few < mean[0]
    it.drop(99)
    assert 99 not in it.own


def test_a_long_text_is_known_by_itself() -> None:
    """Also where the mean is too low for a text to be told from others: what it has shown counts for more and more."""
    it, rng = Acceptance(), random.Random(2)
    for request in range(8):
        rounds(it, [0.4] * 3, 30, rng, request)
    rounds(it, [0.0] * 3, 12, rng, 99)
    few = it.expected(99, KEY, 3).kept[0]
    rounds(it, [0.0] * 3, 60, rng, 99)
    assert not it.unlike and it.expected(99, KEY, 3).kept[0] < 0.03 < few


def test_what_a_drafter_ends_early_costs_no_row_and_is_not_kept() -> None:
    it, rng = Acceptance(), random.Random(3)
    rounds(it, [0.9] * 6, 200, rng, drawn=2)
    expected = it.expected(None, KEY, 6)
    assert expected.rows == pytest.approx([1, 1, 0, 0, 0, 0]) and expected.kept[2] < 0.15


def test_a_broken_drafter_is_not_believed_for_long() -> None:
    rng, it = random.Random(4), Acceptance()
    for request in range(20):
        rounds(it, [0.85] * 8, 20, rng, request=request)
    rounds(it, [0.0] * 8, 12, rng, request=20)  # one hard text says little of the others
    assert sum(it.expected(20, KEY, 8).kept) < 0.8 and sum(it.expected(21, KEY, 8).kept) > 2 and not it.changes
    rounds(it, [0.0] * 8, 12, rng, request=21)
    assert sum(it.expected(21, KEY, 8).kept) < 0.5 and it.changes == 1
    assert sum(it.expected(30, KEY, 8).kept) < 0.5


def test_a_mended_drafter_is_believed_and_a_text_that_repeats_itself_changes_nothing() -> None:
    rng, it = random.Random(4), Acceptance()
    for request in range(20):
        rounds(it, [0.1] * 8, 20, rng, request=request)
    rounds(it, [0.97] * 8, 12, rng, request=20)
    assert it.expected(20, KEY, 1).kept[0] > 0.5 and it.expected(21, KEY, 1).kept[0] < 0.3 and not it.changes
    rounds(it, [0.9] * 8, 12, rng, request=21)
    assert it.changes == 1 and it.expected(30, KEY, 1).kept[0] > 0.5


def test_a_text_counts_for_the_rounds_that_it_takes() -> None:
    """Half of the texts keep nothing, half keep 8 a round: the former take nine rounds in ten."""
    rng, it = random.Random(6), Acceptance()
    for request in range(80):
        rounds(it, [0.0 if request % 2 else 1.0] * 8, 40, rng, request=request)
    assert it.expected(None, KEY, 8).kept[7] == pytest.approx(0.1, abs=0.04)


def test_the_watch_weighs_likelihoods() -> None:
    rng, records = random.Random(7), [Record(), Record(), Record()]
    watch = Watch()
    for _ in range(2000):
        hit = rng.random() < 0.6
        assert not watch.better(hit, 0.6, records[0]) and not watch.broken(hit, 0.6, Record())
    assert not any(watch.better(True, 0.1, records[1]) for _ in range(50))
    assert any(watch.better(True, 0.1, records[2]) for _ in range(5))
    assert not any(watch.broken(i % 4 == 0, 0.6, Record()) for i in range(400))
    assert not any(watch.broken(False, 0.6, records[1]) for _ in range(50))
    assert any(watch.broken(False, 0.6, records[2]) for _ in range(6))
    assert not any(Watch().better(True, 0.9, record) for record in records for _ in range(500))
