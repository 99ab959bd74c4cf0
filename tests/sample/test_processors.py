"""Each processor against its definition, and states as values."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.grammar import Grammar
from paceline.core.params import SamplingParams
from paceline.sample.history import Custom, Penalties
from paceline.sample.processors import AllowedTokens, BadWords, LogitBias, MinTokens
from paceline.sample.sampler import Sampler
from tests.sample.cases import GRAMMARS, PARAMS, TOKEN, V, admitted, request

INF = float("inf")
EVERYTHING = {
    "grammar": Grammar("regex", "(b|cd*|[e-x])*"),
    "allowed_tokens": range(20),
    "bad_words": [[1, 2], [4]],
    "min_tokens": 3,
    "stop_token_ids": [6],
    "logit_bias": {3: 1.5},
    "repetition_penalty": 1.5,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
    "processors": [lambda prompt, output, z: z * 2 + len(output)],
}


def ones(rows: int = 1) -> torch.Tensor:
    return torch.ones(rows, V)


def run(processor, path=(), *, z=None, **params):
    """The row after one processor at the end of `path`."""
    state = processor.start(request(**params))
    for token in path:
        state = processor.advance(state, token)
    return processor.apply([state], ones() if z is None else z)[0]


def removed(row):
    return {t for t, value in enumerate(row.tolist()) if value == -INF}


def test_allowed_tokens():
    assert removed(run(AllowedTokens(), allowed_tokens=[3, 9, 3])) == set(range(V)) - {3, 9}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ((), {4}),
        ((1,), {2, 4}),
        ((1, 1), {2, 4}),
        ((1, 2), {3, 4}),
        ((9, 1, 2), {3, 4}),
        ((2, 1, 9), {4}),
        ((9, 2), {4}),
        ((2,), {4}),
    ],
)
def test_bad_words(path, expected):
    """A word's last token goes where the output ends with the others; the prompt (1, 2, 3) does not count."""
    assert removed(run(BadWords(), path, bad_words=[[4], [1, 2], [1, 2, 3]])) == expected


def test_bad_words_as_text_come_in_two_spellings():
    words = BadWords(lambda text: [len(text), 7] if text.startswith(" ") else [5])
    assert words.words(request(bad_words=["ab", " ab", [9]])) == ((5,), (3, 7), (9,))


@pytest.mark.parametrize(("ignore", "expected"), [(False, {0, 6}), (True, {6})])
def test_min_tokens(ignore, expected):
    """Until that many tokens, nothing that would stop the request; afterwards nothing at all."""
    want = {"min_tokens": 2, "stop_token_ids": [6], "ignore_eos": ignore}
    rows = [run(MinTokens(), (1, 2, 3)[:n], **want) for n in range(4)]
    assert [removed(row) for row in rows] == [expected, expected, set(), set()]


def test_logit_bias():
    row = run(LogitBias(), logit_bias={2: 0.5, 3: -INF})
    assert row[2] == 1.5 and removed(row) == {3} and (row[4:] == 1).all()


def test_penalties():
    """Repetition sees prompt (1, 2, 3) and output once each, presence and frequency the output only."""
    z = ones()
    z[0, 3] = -1.0
    row = run(Penalties(), (7, 7, 1), z=z, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    expected = ones()[0]
    expected[1], expected[2], expected[3], expected[7] = 0.5 - 0.75, 0.5, -2.0, 0.5 - 0.5 - 0.5
    assert torch.equal(row, expected)


def test_custom_sees_prompt_and_path():
    calls = []
    row = run(Custom(), (8, 9), processors=[lambda p, o, z: calls.append((p, o)) or z * 3, lambda p, o, z: z + 1])
    assert calls == [((1, 2, 3), (8, 9))] and (row == 4).all()


@pytest.mark.parametrize("place", range(7))
@settings(max_examples=25, deadline=None)
@given(st.lists(TOKEN, max_size=5), TOKEN, TOKEN)
def test_states_are_values(place, path, left, right):
    """Advancing one branch changes neither its parent nor its sibling, and repeats give the same."""
    processor = Sampler(V, grammars=GRAMMARS)._chain[place]
    r = request(**EVERYTHING)
    state = processor.start(r)
    for token in path:
        state = processor.advance(state, token)
    before = processor.apply([state], ones())
    one = processor.apply([processor.advance(state, left)], ones())
    other = processor.apply([processor.advance(state, right)], ones())
    assert torch.equal(processor.apply([state], ones()), before)
    assert torch.equal(processor.apply([processor.advance(state, left)], ones()), one)
    assert torch.equal(processor.apply([processor.advance(state, right)], ones()), other)


@pytest.mark.parametrize("place", range(7))
def test_rows_without_the_processor_stay(place):
    processor = Sampler(V, grammars=GRAMMARS)._chain[place]
    assert processor.start(request()) is None
    state = processor.start(request(**EVERYTHING))
    z = processor.apply([None, state, None], ones(3))
    assert torch.equal(z[0], ones()[0]) and torch.equal(z[2], ones()[0]) and not torch.equal(z[1], ones()[0])


def test_the_order_of_the_chain():
    """Bias before the repetition penalty, penalties before a callable, a callable before temperature and filters."""
    z = torch.zeros(1, V)
    z[0, 1] = 2.0
    seen = []
    r = request(
        logit_bias={1: 2.0},
        repetition_penalty=2.0,
        processors=[lambda p, o, x: seen.append(x[1].item()) or x],
        temperature=0.5,
        allowed_tokens=[1, 5],
    )
    scores = admitted(r).scores([(r, ())], z)
    assert seen == [(2.0 + 2.0) / 2.0]
    assert scores[0, 1] - scores[0, 5] == pytest.approx(2.0 / 0.5)


@settings(max_examples=60, deadline=None)
@given(PARAMS, st.lists(TOKEN, min_size=1, max_size=4))
def test_a_draft_path_reads_like_committed_text(params, path):
    """No processor knows whether it works on a draft: a node's row equals the row once the node is committed."""
    draft, plain = request(0, **params), request(1, output=path, **params)
    sampler, z = admitted(draft, plain), torch.linspace(-3, 3, V)[None] ** 3
    assert torch.equal(sampler.scores([(draft, tuple(path))], z), sampler.scores([(plain, ())], z))


def test_unset_parameters_mean_off():
    r = request()
    assert r.params == SamplingParams()
    z = torch.randn(1, V)
    torch.testing.assert_close(admitted(r).scores([(r, ())], z), z.log_softmax(-1), rtol=2e-6, atol=2e-6)
