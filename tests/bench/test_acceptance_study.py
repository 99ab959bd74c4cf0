"""bench/studies/acceptance.py: its bootstrap, and the chance that it computes for k-SEQ, by enumeration."""

import itertools
from types import ModuleType

import numpy as np
import pytest
import torch

from paceline.verify import kseq
from tests.bench.studies import load


@pytest.fixture(scope="module")
def study() -> ModuleType:
    return load("acceptance")


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_chance_of_kseq_is_that_of_all_candidates(study: ModuleType, k: int) -> None:
    g = torch.Generator().manual_seed(k)
    for _ in range(20):
        p, q = (torch.rand(4, generator=g, dtype=torch.float64) ** 3 + 1e-3 for _ in range(2))
        p, q = p / p.sum(), q / q.sum()
        rho, chance = kseq.best_rho(p, q, k), 0.0
        accept = (p / (rho * q)).clamp_max(1.0)
        rest = kseq.select(p, q, [0] * k, [1.0] * k)[1] if float(accept[0]) < 1 else None
        if rest is None:
            continue
        for tokens in itertools.product(range(4), repeat=k):
            none = float(torch.stack([1 - accept[t] for t in tokens]).prod())
            weight = float(torch.stack([q[t] for t in tokens]).prod())
            chance += weight * (1 - none + none * float(rest[sorted(set(tokens))].sum()))
        recorded: list[float] = []
        study.recording(recorded)(p, q, [0] * k, [0.5] * k)
        assert recorded == [pytest.approx(chance, abs=1e-6)]


def test_the_bootstrap_knows_a_difference_from_none(study: ModuleType) -> None:
    rng = np.random.default_rng(0)
    passes = rng.integers(10, 20, 100)
    tokens = passes * 3 + rng.integers(-5, 6, 100)
    a, b = (study.Run(t, passes, passes) for t in (tokens + 2, tokens))
    value, low, high = study.ratio(a, b, rng)
    assert 1 < low < value < high < 1.1
    assert study.ratio(b, b, rng) == (1.0, 1.0, 1.0)
