"""Parameters are checked when made; each refusal names the parameter and what it must be."""

from dataclasses import fields

import pytest

from paceline.core.errors import InputError
from paceline.core.params import SamplingParams

NAN, INF = float("nan"), float("inf")
WRONG = {
    "n": [0, -1, 1.5, True, None, "2"],
    "temperature": [-0.1, NAN, INF, True, "1"],
    "top_k": [-1, 2.5, True, "5"],
    "top_p": [0, -0.5, 1.01, NAN, "0.9", True],
    "min_p": [-0.1, 1, NAN],
    "repetition_penalty": [0, -1.0, NAN, INF],
    "presence_penalty": [-2.1, 2.1, NAN, "1", None],
    "frequency_penalty": [-2.1, 2.1, NAN],
    "allowed_tokens": [[]],
    "bad_words": ["word", ["x" * 40_000, [1], "x" * 40_000]],
    "stop": ["", [""], ["a", ""], [None]],
    "stop_token_ids": ["12"],
    "logprobs": [-1, 1.0, True],
    "prompt_logprobs": [-1],
    "max_nodes": [-1, 2.0],
    "min_tokens": [-1, 1.0, None],
    "max_tokens": [0, -1, 2.0, True],
    "seed": [-1, 2**64, 1.0, True],
    "priority": [-101, 101, 1.0, True, None],
    "deadline_ms": [0, -1.0, NAN, INF, "9", True],
    "user": [None, 7],
}
RIGHT = {
    "n": [1, 8],
    "temperature": [0, 0.0, 1e-9, 2, None],
    "top_k": [0, 1, 10**6, None],
    "top_p": [1e-9, 1, 1.0, None],
    "min_p": [0, 0.999, None],
    "repetition_penalty": [0.1, 1, None],
    "presence_penalty": [-2, 0, 2.0],
    "frequency_penalty": [-2, 2],
    "priority": [-100, 0, 100],
    "deadline_ms": [0.5, 10**6, None],
    "user": ["", "someone"],
    "stop": ["x", (), ["a", "b"]],
    "logprobs": [0, 5, None],
    "max_tokens": [1, None],
    "seed": [0, 2**64 - 1, None],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in WRONG.items() for v in values], ids=str)
def test_wrong(name, value):
    with pytest.raises(InputError, match=name) as caught:
        SamplingParams(**{name: value})
    assert str(caught.value).count(". ") == 0 and str(caught.value).endswith("."), "one sentence"


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in RIGHT.items() for v in values], ids=str)
def test_right(name, value):
    assert getattr(SamplingParams(**{name: value}), name) == value


def test_min_tokens_within_max_tokens():
    with pytest.raises(InputError, match="min_tokens is 5, but it must be at most max_tokens"):
        SamplingParams(min_tokens=5, max_tokens=4)
    assert SamplingParams(min_tokens=4, max_tokens=4).min_tokens == 4


def test_from_dict_ignores_nothing():
    assert SamplingParams.from_dict({"top_k": 3}) == SamplingParams(top_k=3)
    with pytest.raises(InputError, match="'best_of'; known are adapter, allowed_tokens"):
        SamplingParams.from_dict({"best_of": 2})


def test_resolve_fills_what_was_left_open():
    """The request's word, else the checkpoint's, else off."""
    given = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1, "repetition_penalty": 1.1, "bos_token_id": 1}
    open_, plain = SamplingParams(top_k=0, seed=4), SamplingParams()
    filled = open_.resolve(given)
    assert (filled.temperature, filled.top_k, filled.top_p, filled.min_p, filled.repetition_penalty) == (
        0.6, 0, 0.95, 0.1, 1.1,
    )  # fmt: skip
    assert filled.seed == 4 and open_.temperature is None
    bare = plain.resolve({"top_k": None})
    assert (bare.temperature, bare.top_k, bare.top_p, bare.min_p, bare.repetition_penalty) == (1.0, 0, 1.0, 0.0, 1.0)
    assert plain.resolve({"temperature": 0.7, "do_sample": False}).greedy
    assert SamplingParams(temperature=1.0).resolve({"do_sample": False}).temperature == 1.0


def test_bad_defaults_are_refused_too():
    with pytest.raises(InputError, match="top_p"):
        SamplingParams().resolve({"top_p": 1.5})


def test_stops():
    assert SamplingParams(stop="ab").stops == ("ab",)
    assert SamplingParams(stop=["a", "b"]).stops == ("a", "b")
    assert SamplingParams().stops == ()


def test_fields_are_keywords_with_defaults():
    assert len(fields(SamplingParams)) == len(fields(SamplingParams.from_dict({})))
