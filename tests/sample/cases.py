"""Requests and rows for the sampler's tests."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from paceline.core.grammar import Grammar
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.sample.grammar import Grammars, vocabulary
from paceline.sample.sampler import Sampler
from tests.tiny import letters

V = 24
TOKEN = st.integers(0, V - 1)
LETTERS = ".bcdefghijklmnopqrstuvwx"
"""Token i is written as LETTERS[i]; `.` is the end of sequence."""
GRAMMARS = Grammars(lambda: vocabulary(letters(LETTERS), V, [0]), V)


def request(id: int = 0, *, output: Sequence[int] = (), **params: Any) -> Request:
    """A request over V tokens with prompt 1 2 3 and end of sequence 0."""
    return Request(id, [1, 2, 3], SamplingParams(**params), seed=id, eos=frozenset({0}), output=list(output))


def admitted(*requests: Request) -> Sampler:
    sampler = Sampler(V, grammars=GRAMMARS)
    for r in requests:
        sampler.admit(r)
    return sampler


def double_last(prompt: Any, output: Any, logits: Any) -> Any:
    """A custom processor that depends on the path."""
    logits = logits.clone()
    if output:
        logits[output[-1]] *= 2
    return logits


PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.7]),
        "top_k": st.sampled_from([0, 1, 2, 5, 20, 100]),
        "top_p": st.sampled_from([0.05, 0.5, 0.9, 0.99, 1.0]),
        "min_p": st.sampled_from([0.0, 0.02, 0.3]),
        "repetition_penalty": st.sampled_from([0.8, 1.0, 1.3]),
        "presence_penalty": st.sampled_from([-1.0, 0.0, 0.7]),
        "frequency_penalty": st.sampled_from([-0.4, 0.0, 1.1]),
        "logit_bias": st.dictionaries(TOKEN, st.sampled_from([-float("inf"), -3.0, 2.5]), min_size=1, max_size=4),
        "allowed_tokens": st.lists(TOKEN, min_size=1, max_size=12),
        "bad_words": st.lists(st.lists(TOKEN, min_size=1, max_size=3), max_size=4),
        "processors": st.just((double_last,)),
        "min_tokens": st.integers(0, 6),
        "stop_token_ids": st.lists(TOKEN, max_size=2),
        "ignore_eos": st.booleans(),
        "grammar": st.sampled_from([Grammar("regex", text) for text in ("(b|cd*)*", "[b-x]{2,4}", "b+(c[b-f]|d)")]),
    },
).map(lambda params: params if "grammar" not in params else {**params, "ignore_eos": False})
