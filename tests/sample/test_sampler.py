"""The sampler against its slow twin, and the properties that the engine builds on."""

from itertools import pairwise

import pytest
import scipy.stats
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.core.errors import InputError
from paceline.core.noise import TargetNoise, mix
from paceline.core.warp import Warp
from paceline.sample.filters import boundary, law, torch_law
from paceline.sample.noise import keys_tensor
from paceline.sample.race import perturbed, race, torch_race, torch_winners, winners
from paceline.sample.sampler import Sampler
from tests.sample import slow
from tests.sample.cases import LETTERS, PARAMS, TOKEN, V, admitted, request


def logits(rows: int, seed: int = 0, dtype: torch.dtype = torch.float32, vocab: int = V) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 3


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(PARAMS, st.lists(TOKEN, max_size=6), st.lists(TOKEN, max_size=3)), min_size=1, max_size=4),
    st.integers(0, 1000),
    st.sampled_from([torch.float32, torch.float64]),
    st.booleans(),
)
def test_equals_slow_twin(cases, seed, dtype, coarse):
    """Any mixture of requests in one batch: scores, draws and distribution are those of the definitions, row by row."""
    requests = [request(i, output=out, **params) for i, (params, out, _) in enumerate(cases)]
    sampler = admitted(*requests)
    rows = [(r, tuple(path)) for r, (_, _, path) in zip(requests, cases)]
    z = logits(len(rows), seed, dtype)
    z = z.round() if coarse else z  # many ties
    before = z.clone()
    scores = sampler.scores(rows, z)
    assert torch.equal(z, before) and scores.dtype == dtype
    keys = [r.target_noise.key(r.index(len(path))) for r, path in rows]
    drawn = sampler.draw(rows, scores, keys)
    law = sampler.probs(rows, scores)
    for i, (r, path) in enumerate(rows):
        words = [tuple(w) for w in r.params.bad_words]
        expected = slow.scores(r, [*r.output, *path], z[i], words, LETTERS)
        torch.testing.assert_close(scores[i], expected, atol=1e-5, rtol=1e-5)
        assert drawn[i] == slow.draw(r, scores[i], keys[i])
        if drawn[i] < 0:
            assert law[i].sum() == 0
        else:
            assert law[i].sum().item() == pytest.approx(1, abs=1e-5) and law[i, drawn[i]] > 0


@settings(max_examples=40, deadline=None)
@given(st.lists(PARAMS, min_size=2, max_size=5), st.integers(0, 99))
def test_rows_do_not_feel_their_batch_mates(cases, seed):
    """Bit for bit: nothing a neighbour asks for may move a row's scores or its draw."""
    requests = [request(i, **params) for i, params in enumerate(cases)]
    sampler, z = admitted(*requests), logits(len(cases), seed)
    rows = [(r, ()) for r in requests]
    keys = [r.target_noise.key(3) for r in requests]
    together = sampler.scores(rows, z)
    drawn = sampler.draw(rows, together, keys)
    for i, row in enumerate(rows):
        alone = sampler.scores([row], z[i : i + 1])
        assert torch.equal(together[i], alone[0])
        assert [drawn[i]] == sampler.draw([row], alone, [keys[i]])


@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0, 20.0])
@pytest.mark.parametrize("top_p", [0.1, 0.9, 0.999999])
def test_nucleus_beyond_the_fast_path(scale, top_p):
    """Flat rows exhaust the quick look at the likeliest tokens, their sharp neighbour does not: same boundaries."""
    vocab = 3000
    r = request(top_p=top_p)
    sampler = Sampler(vocab)
    sampler.admit(r)
    z = logits(3, 5, vocab=vocab) * torch.tensor([[scale], [9.0], [scale]]) / 3
    got = sampler.scores([(r, ())] * 3, z)
    for i in range(3):
        torch.testing.assert_close(got[i], slow.scores(r, [], z[i], []))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.01, 1.0, 10.0, 60.0, 3e4]), st.sampled_from([1, 7, 1000]))
def test_race_equals_full_computation(seed, scale, vocab):
    """The pruned race names the token that noise for every token would."""
    scores = (logits(5, seed % 1000, vocab=vocab) * scale).log_softmax(-1)
    scores[1, ::2] = float("-inf")
    keys = keys_tensor([mix(seed + i) for i in range(5)])
    expected = winners(perturbed(scores, keys))
    for form in race, torch_race:
        assert form(scores, keys) == expected and form(scores, keys, sparse=True) == expected


FILTERS = st.builds(
    Warp,
    st.sampled_from([1e-40, 0.3, 1.0, 2.0]),
    st.sampled_from([0, 1, 5, 70, 1 << 40]),
    st.sampled_from([0.1, 0.9, 0.999, 1.0, 1.0]),
    st.sampled_from([0.0, 0.0, 0.02, 1.0]),
)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 1000),
    st.sampled_from([0.0, 0.01, 1.0, 60.0, 3e4]),
    st.sampled_from([1, 7, 33, 1000, 5000]),
    st.lists(FILTERS, min_size=6, max_size=6),
)
@example(1, 0.3, 5000, [Warp(1.0, top_p=p) for p in (0.3, 0.5, 0.9, 0.99, 0.999, 1 - 1e-9)])
def test_law_equals_its_slow_twin(seed, scale, vocab, warps):
    """Rows with and without filters mixed, ties among them, and each the same alone, bit for bit; empty ones and broken
    ones are NaN. What is left where a number stands at a boundary is the last digit's."""
    z = logits(6, seed, vocab=vocab).float() * scale
    z[1, ::2], z[3], z[4, -1] = float("-inf"), float("-inf"), (float("nan"), float("inf"))[seed % 2]
    z[5] = z[5].round()
    got, expected = law(z, warps), torch_law(z, warps)
    clear = [margin > 2e-5 for margin in boundary(z[[0, 1, 2, 5]], [warps[i] for i in (0, 1, 2, 5)])]
    for i, sure in zip((0, 1, 2, 5, 3, 4), (*clear, True, True)):
        if sure:  # a difference of large numbers is as exact as they are
            atol = 3e-6 * max(1.0, scale / max(warps[i].temperature, 1e-30))
            torch.testing.assert_close(got[i], expected[i], rtol=3e-6, atol=atol, equal_nan=True)
        assert torch.equal(got[i : i + 1].view(torch.int32), law(z[i : i + 1], [warps[i]]).view(torch.int32))


@pytest.mark.parametrize("form", [winners, torch_winners])
@pytest.mark.parametrize("vocab", [1, 15, 16, 33, 100])
def test_winners(form, vocab):
    stream = torch.Generator().manual_seed(vocab)
    scores = torch.randn(40, vocab, generator=stream).mul(2).round()  # many ties
    scores[3], scores[4, vocab // 2], scores[5, vocab - 1] = float("-inf"), float("nan"), float("inf")
    expected = [row.index(max(row)) if 3 != i != 4 else -1 for i, row in enumerate(scores.tolist())]
    assert form(scores) == expected
    assert form(scores.T.contiguous().T) == expected


def test_race_takes_the_lowest_id_at_ties_and_refuses_empty_rows():
    keys = keys_tensor([5, 5])
    noise = perturbed(torch.zeros(2, V, dtype=torch.float64), keys)
    level = noise.max() - noise  # every token now ties, up to rounding, with the best
    level[:, :4] = float("-inf")
    level[1] = float("-inf")
    for form in race, torch_race:
        assert form(level, keys, sparse=True) == winners(perturbed(level, keys))
        assert form(level, keys, sparse=True)[1] == form(torch.full((2, V), float("nan")), keys)[1] == -1


@pytest.mark.parametrize("params", [{}, {"temperature": 0.6, "top_k": 6}, {"top_p": 0.8}], ids=str)
def test_draw_follows_the_law(params):
    """Chi-square of 6,000 draws at successive indices."""
    r = request(**params)
    sampler, z = admitted(r), logits(1, 3)
    scores = sampler.scores([(r, ())], z)
    p = sampler.probs([(r, ())], scores)[0]
    noise, n = TargetNoise(11), 6000
    drawn = sampler.draw([(r, ())] * n, scores.expand(n, V), [noise.key(i) for i in range(n)])
    counts = torch.bincount(torch.tensor(drawn), minlength=V)
    assert counts[p == 0].sum() == 0
    often = p * n >= 5
    observed, expected = counts[often].tolist(), (p[often] * n).tolist()
    if n - sum(observed) > 0:
        observed.append(n - sum(observed))
        expected.append(n - sum(expected))
    assert scipy.stats.chisquare(observed, expected, sum_check=False).pvalue > 1e-3


def test_greedy_needs_no_work():
    """All greedy without history: the very logits, no copy."""
    r = request(temperature=0)
    sampler, z = admitted(r), logits(1)
    assert sampler.scores([(r, ())], z) is z
    z[0, 4] = z[0, 9] = 99.0
    assert sampler.draw([(r, ())], z, [0]) == [4]
    assert sampler.probs([(r, ())], z)[0].tolist() == [float(t == 4) for t in range(V)]


def test_tiny_temperature_is_greedy_not_nan():
    r = request(temperature=1e-300)
    sampler, z = admitted(r), logits(1)
    scores = sampler.scores([(r, ())], z)
    assert not scores.isnan().any() and sampler.draw([(r, ())], scores, [7]) == [z.argmax().item()]


def test_emptied_row_fails_alone():
    """Two features that leave nothing: -1 for that request, its batch mate is served."""
    empty = request(0, allowed_tokens=[5], bad_words=[[5]])
    greedy = request(1, temperature=0, allowed_tokens=[5], logit_bias={5: -float("inf")})
    fine = request(2, top_p=0.5)
    sampler, z = admitted(empty, greedy, fine), logits(3)
    rows = [(empty, ()), (greedy, ()), (fine, ())]
    scores = sampler.scores(rows, z)
    drawn = sampler.draw(rows, scores, [1, 2, 3])
    assert drawn[:2] == [-1, -1] and drawn[2] >= 0
    assert (scores[:2] == float("-inf")).all()
    assert sampler.probs(rows, scores)[:2].sum() == 0
    assert "allowed_tokens and bad_words" in sampler.empty_message(empty)
    assert "allowed_tokens and logit_bias" in sampler.empty_message(greedy)


def test_broken_logits_fail_rather_than_draw():
    plain, greedy = request(0), request(1, temperature=0)
    sampler, rows = admitted(plain, greedy), [(plain, ()), (greedy, ())]
    z = logits(2)
    z[:, 3] = float("nan")
    assert sampler.draw(rows, sampler.scores(rows, z), [1, 1]) == [-1, -1]
    assert "not finite" in sampler.empty_message(plain)
    tiny = request(0, repetition_penalty=1e-300)
    assert "repetition_penalty 1e-300" in admitted(tiny).empty_message(tiny)


@pytest.mark.parametrize(
    "custom", [lambda p, o, z: z[:3], lambda p, o, z: z / 0 * 0, lambda p, o, z: 1 / 0, lambda p, o, z: None]
)
def test_failing_callable_fails_its_request_alone(custom):
    broken, fine = request(0, processors=[custom]), request(1)
    sampler, rows = admitted(broken, fine), [(broken, ()), (fine, ())]
    drawn = sampler.draw(rows, sampler.scores(rows, logits(2)), [1, 2])
    assert drawn[0] == -1 and drawn[1] >= 0
    assert "custom processor failed" in sampler.empty_message(broken)
    sampler.drop(broken)
    assert "custom" not in sampler.empty_message(request(0))


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"logit_bias": {V: 1.0}}, "logit_bias has token id 24"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias of token 1"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias of token 1"),
        ({"allowed_tokens": [-1]}, "allowed_tokens has token id -1"),
        ({"stop_token_ids": [10**9]}, "stop_token_ids has token id"),
        ({"bad_words": [[1, V]]}, "bad_words has token id 24"),
        ({"bad_words": [[]]}, "is empty"),
        ({"bad_words": ["no"]}, "no tokenizer"),
        ({"allowed_tokens": [True]}, "allowed_tokens has token id True"),
    ],
)
def test_admit_refuses(params, words):
    sampler = Sampler(V)
    r = request(**params)
    with pytest.raises(InputError, match=words):
        sampler.admit(r)
    with pytest.raises(KeyError):
        sampler.commit(r, [1])


def test_resumed_request_has_the_state_it_had():
    """Admitting with output equals admitting without and committing, in any portions."""
    params = {"repetition_penalty": 1.4, "frequency_penalty": 0.5, "bad_words": [[7, 8, 9]], "min_tokens": 3}
    output, z = (7, 9, 7, 8), logits(1)
    whole, parts = request(0, output=output, **params), request(1, **params)
    sampler = admitted(whole, parts)
    sampler.commit(parts, output[:1])
    sampler.scores([(parts, output[1:])], z)  # the draft looked ahead; the commit below reuses what it learned
    sampler.commit(parts, output[1:])
    assert torch.equal(sampler.scores([(whole, ())], z), sampler.scores([(parts, ())], z))


def test_each_path_token_is_followed_once(monkeypatch):
    """Draft and verification ask for the same paths, of the processors one by one; a rejected path leaves nothing
    behind."""
    r = request(presence_penalty=1.0)
    sampler, z = admitted(r), logits(3).double()
    steps = []
    penalties = sampler._chain[5]
    advance = penalties.advance
    monkeypatch.setattr(penalties, "advance", lambda s, t: steps.append(t) or advance(s, t), raising=False)
    rows = [(r, ()), (r, (4,)), (r, (4, 5))]
    sampler.scores(rows, z)
    sampler.scores(rows, z)
    assert steps == [4, 5]
    sampler.commit(r, [4, 6])
    assert steps == [4, 5, 6] and list(sampler._slots[0].paths) == [()]


def test_margins():
    """The draw's margin is the gap of the top two perturbed scores; filters add their boundary's distance."""
    r, g = request(0), request(1, temperature=0)
    sampler, z = admitted(r, g), logits(2)
    rows = [(r, ()), (g, ())]
    scores = sampler.scores(rows, z)
    sampled, greedy = sampler.margin(rows, scores, [77, 77])
    top = perturbed(scores[:1], keys_tensor([77]))[0].sort(descending=True).values
    assert sampled == pytest.approx((top[0] - top[1]).item())
    best = z[1].sort(descending=True).values
    assert greedy == pytest.approx((best[0] - best[1]).item())
    assert sampler.boundary_margin(rows, z) == [float("inf")] * 2


def test_boundary_margins():
    """Where a boundary is near, and only there, the margin is small."""
    z = torch.tensor([3.0, 2.0, 1.9, 0.0] + [-9.0] * (V - 4)).repeat(4, 1)
    k1, k2, mass, floor = (
        request(0, top_k=1),
        request(1, top_k=2),
        request(2, top_p=z[0].double().softmax(-1)[:2].sum().item() + 1e-4),
        request(3, min_p=torch.tensor(-1.1).exp().item()),
    )
    sampler = admitted(k1, k2, mass, floor)
    got = sampler.boundary_margin([(k1, ()), (k2, ()), (mass, ()), (floor, ())], z)
    assert got == pytest.approx([1.0, 0.1, 1e-4, 0.0], abs=1e-6)


def test_boundary_margin_bounds_what_can_move():
    """Perturbing the logits by less than half the margin keeps every surviving set."""
    generator = torch.Generator().manual_seed(0)
    for seed in range(40):
        params = [{"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 9, "top_p": 0.6, "temperature": 1.2}]
        requests = [request(i, **p) for i, p in enumerate(params)]
        sampler, z = admitted(*requests), logits(4, seed, torch.float64)
        rows = [(r, ()) for r in requests]
        margin = torch.tensor(sampler.boundary_margin(rows, z))[:, None]
        push = (torch.rand(4, V, generator=generator, dtype=torch.float64) * 2 - 1) * margin * 0.24
        alive = [(sampler.scores(rows, x) > float("-inf")) for x in (z, z + push)]
        assert torch.equal(*alive)


def test_keys_decide():
    """Same keys, same tokens; other keys, other tokens."""
    r = request()
    sampler, z = admitted(r), logits(1).expand(50, V) * 0.1
    rows = [(r, ())] * 50
    scores = sampler.scores(rows, z)
    draws = [sampler.draw(rows, scores, [TargetNoise(s).key(i) for i in range(50)]) for s in (1, 1, 2)]
    same, other = (sum(a == b for a, b in zip(x, y)) for x, y in pairwise(draws))
    assert same == 50 and other < 20
