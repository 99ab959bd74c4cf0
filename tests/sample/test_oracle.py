"""The warpers of transformers as oracle: the same survivors and the same probabilities."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tests.sample.cases import TOKEN, V, admitted, request

VALUES = {
    "temperature": (0.3, 1.7),
    "min_p": (0.02, 0.4),
    "top_k": (1, 7),
    "top_p": (0.1, 0.6, 0.95),
    "repetition_penalty": (0.7, 1.5),
}
MAKE = {
    "repetition_penalty": RepetitionPenaltyLogitsProcessor,
    "temperature": TemperatureLogitsWarper,
    "min_p": MinPLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
}
"""In the order of our chain."""


@settings(max_examples=150, deadline=None)
@given(
    st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in VALUES.items()}),
    st.lists(TOKEN, max_size=4),
    st.integers(0, 10_000),
)
def test_same_law_as_transformers(params, output, seed):
    z = torch.randn(1, V, generator=torch.Generator().manual_seed(seed)) * 3
    chain = LogitsProcessorList([make(params[name]) for name, make in MAKE.items() if name in params])
    r = request(output=output, **params)
    expected = chain(torch.tensor([r.tokens]), z.clone())[0].softmax(-1)
    sampler = admitted(r)
    got = sampler.probs([(r, ())], sampler.scores([(r, ())], z))[0]
    assert (got > 0).tolist() == (expected > 0).tolist()
    assert got.tolist() == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-7)


def test_ties_at_the_boundary_stay_together():
    """As in transformers for top-k; for top-p too, so that no id is preferred to its equal."""
    z = torch.tensor([[2.0, 1.0, 1.0, 1.0] + [-5.0] * (V - 4)])
    for params in ({"top_k": 2}, {"top_p": 0.5}):
        r = request(**params)
        alive = admitted(r).scores([(r, ())], z)[0] > float("-inf")
        assert alive.nonzero()[:, 0].tolist() == [0, 1, 2, 3]
