"""Conditional acceptance: unbiased by selection, shrunk to the mean, and quick to notice a change."""

import random

import pytest

from paceline.plan.acceptance import DEEP, Acceptance, Watch

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
    for seed in range(40):
        it = Acceptance()
        rounds(it, [rate] * 5, 80, rng, request=seed)
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


def test_what_a_drafter_ends_early_costs_no_row_and_is_not_kept() -> None:
    it, rng = Acceptance(), random.Random(3)
    rounds(it, [0.9] * 6, 200, rng, drawn=2)
    expected = it.expected(None, KEY, 6)
    assert expected.rows == pytest.approx([1, 1, 0, 0, 0, 0]) and expected.kept[2] < 0.15


def test_a_change_is_noticed_in_both_directions_and_noise_is_not() -> None:
    rng = random.Random(4)
    for before, after in ((0.85, 0.02), (0.1, 0.9)):
        it = Acceptance()
        rounds(it, [before] * 8, 300, rng)
        calm = it.changes
        steps = 0
        while it.changes == calm and steps < 200:
            rounds(it, [after] * 8, 1, rng)
            steps += 1
        assert steps <= 30 and calm <= 1, (before, after, steps, calm)
        rounds(it, [after] * 8, 20, rng)
        assert it.expected(None, KEY, 1).kept[0] == pytest.approx(after, abs=0.25)


def test_the_watch_counts_in_standard_deviations() -> None:
    watch = Watch()
    assert not any(watch.rings(kept, [0.5]) for kept in [0, 1] * 200)
    assert any(watch.rings(3, [0.1, 0.01, 0.001]) for _ in range(5))
