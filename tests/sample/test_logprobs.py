"""Reported log-probabilities are those of the distribution that was drawn from."""

import pytest
import torch

from paceline.sample.logprobs import prompt_logprobs, token_logprobs
from tests.sample.cases import V, admitted, request


def test_token_logprobs():
    sampled = request(0, temperature=0.5, top_k=2, logprobs=5)
    greedy = request(1, temperature=0, logit_bias={3: 1.0}, logprobs=1)
    bare = request(2, logprobs=0)
    sampler = admitted(sampled, greedy, bare)
    rows = [(sampled, ()), (greedy, ()), (bare, ())]
    z = torch.zeros(3, V)
    z[:, 3], z[:, 4] = 2.0, 1.0
    scores = sampler.scores(rows, z)
    kept = scores.clone()
    first, second, third = token_logprobs(rows, scores, [3, 4, 9])
    assert torch.equal(scores, kept)
    of_two = torch.tensor([4.0, 2.0]).log_softmax(-1).tolist()
    assert first.top == pytest.approx(dict(zip([3, 4], of_two))) and first.logprob == first.top[3]
    biased = torch.tensor([3.0, 1.0] + [0.0] * (V - 2)).log_softmax(-1)
    assert second.logprob == pytest.approx(biased[1].item()) and second.top == pytest.approx({3: biased[0].item()})
    assert third.token == 9 and third.top == {} and third.logprob == pytest.approx(z[2].log_softmax(-1)[9].item())


def test_prompt_logprobs_ignore_the_parameters():
    z = torch.randn(2, V)
    entries = prompt_logprobs(z, [5, 6], 3)
    for i, entry in enumerate(entries):
        expected = z[i].log_softmax(-1)
        assert entry.logprob == pytest.approx(expected[entry.token].item())
        assert list(entry.top) == expected.topk(3).indices.tolist()
    assert prompt_logprobs(z[:0], [], 3) == []
