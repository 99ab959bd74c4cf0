"""Noise is a pure function of its key, uniform, and the streams never meet."""

import math

import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.noise import AcceptNoise, DraftNoise, TargetNoise, mix, uniform
from paceline.sample.noise import counts, gumbel, keys_tensor, uniforms

U64 = st.integers(0, 2**64 - 1)
GOLDEN = 0x9E3779B97F4A7C15


@settings(max_examples=200, deadline=None)
@given(st.lists(U64, min_size=1, max_size=4), st.lists(st.integers(0, 300_000), min_size=1, max_size=8))
def test_equals_python_integers(keys, tokens):
    """The tensors' 64-bit wrap-around is the definition's, bit for bit; logarithms to the last place or so."""
    expected = [[mix(key + (token + 1) * GOLDEN) >> 12 for token in tokens] for key in keys]
    k, t = keys_tensor(keys), torch.tensor(tokens)
    assert counts(k, t).tolist() == expected
    assert counts(k, t.expand(len(keys), -1)).tolist() == expected
    assert uniforms(k, t).tolist() == [[(n + 0.5) * 2.0**-52 for n in row] for row in expected]
    noise = [-math.log(-math.log((n + 0.5) * 2.0**-52)) for row in expected for n in row]
    assert gumbel(k, t).flatten().tolist() == pytest.approx(noise, rel=1e-12, abs=1e-14)


def test_mix_is_splitmix64():
    """First outputs of the reference generator seeded with 0 and with 1234567."""
    state = [mix(GOLDEN * i) for i in (1, 2, 3)]
    assert state == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert mix(1234567 + GOLDEN) == 6457827717110365317


def test_repeated_calls_draw_the_same():
    keys, tokens = keys_tensor([3, 2**63 + 5]), torch.arange(50)
    first = gumbel(keys, tokens)
    assert torch.equal(gumbel(keys, tokens), first)
    assert torch.equal(gumbel(keys[1:], tokens[[7]]), first[1:, [7]]), "a value depends on its key and token only"
    assert keys.tolist() == [3, 5 - 2**63] and tokens.tolist() == list(range(50)), "arguments stay"


def test_open_interval():
    """No uniform is 0 or 1, not even at the ends of the counter, so every Gumbel value is finite."""
    ends = torch.tensor([0, 2**52 - 1], dtype=torch.int64).to(torch.float64)
    u = (ends + 0.5) * 2.0**-52
    assert 0 < u[0] < u[1] < 1
    assert torch.isfinite(-torch.log(-torch.log(u))).all()


@pytest.mark.parametrize("stream", [TargetNoise, DraftNoise, AcceptNoise])
def test_uniform_across_tokens_and_indices(stream):
    noise = stream(12345, (2,))
    u = uniforms(keys_tensor([noise.key(i) for i in range(40)]), torch.arange(500))
    for values in (u[0], u[:, 0], u.flatten()):
        assert scipy.stats.kstest(values.numpy(), "uniform").pvalue > 1e-3
    neighbours = [(u[:-1], u[1:]), (u[:, :-1], u[:, 1:])]
    assert all(abs(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]) < 0.03 for a, b in neighbours)
    singles = [uniform(noise.key(i)) for i in range(5000)]
    assert scipy.stats.kstest(singles, "uniform").pvalue > 1e-3


def test_every_part_of_the_key_separates():
    """Purpose, seed, lineage, counters and how many there are of each: no two rows share a key."""
    streams = [
        kind(seed, lineage)
        for kind in (TargetNoise, DraftNoise, AcceptNoise)
        for seed in (0, 1, 2**64 - 1, GOLDEN)
        for lineage in ((), (0,), (1,), (0, 0), (0, 1), (1, 0))
    ]
    counters = [(), *[(i,) for i in range(20)], *[(i, j) for i in range(5) for j in range(5)], (0, 0, 0), (0, 0, 1)]
    keys = [stream.key(*counter) for stream in streams for counter in counters]
    assert len(set(keys)) == len(keys) and all(0 <= key < 2**64 for key in keys)


def test_streams_are_types():
    """Equal numbers for another purpose are another stream, also to `==`."""
    assert TargetNoise(1, (2,)) == TargetNoise(1, (2,))
    assert TargetNoise(1, (2,)) != DraftNoise(1, (2,))
    assert TargetNoise(1).key(5) == TargetNoise(1).key(5) != AcceptNoise(1).key(5)
