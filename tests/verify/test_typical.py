"""Typical acceptance: the threshold, the longest path, and greedy decoding."""

from math import exp, log

import pytest
import torch

from paceline.core.forest import ROOT, Forest, Law, join
from paceline.core.noise import TargetNoise
from paceline.core.params import SamplingParams
from paceline.core.plan import Item
from paceline.core.registry import refusal
from paceline.core.request import Request
from paceline.core.verdict import Verdict
from paceline.draft import DRAFTERS
from paceline.sample.sampler import Sampler
from paceline.verify import VERIFIERS, Case
from paceline.verify.typical import DELTA, EPSILON, Typical
from tests.lossless.cases import HAVE, Setting, Wish, run

TREES = [d for d, o in DRAFTERS.items() if refusal(d, o, "typical", VERIFIERS.card("typical"), HAVE) is None]


def judged(nodes: list[tuple[int, int]], laws: list[list[float]], temperature: float = 1.0) -> Verdict:
    """The verdict on a tree of (token, parent) below one root, `laws[0]` after the root and `laws[1 + i]` after
    node i."""
    params = SamplingParams(temperature=temperature, top_k=0, top_p=1.0, seed=5).resolve({})
    request = Request(0, [0], params, 5)
    sampler = Sampler(len(laws[0]))
    sampler.admit(request)
    part = Forest()
    for token, parent in nodes:
        part.add(0, token, parent, law=Law.POINT)
    forest = join([[0]], [part], [len(nodes)])
    refs = [(request, path) for path in forest.paths(range(len(forest))).values()]
    scores = sampler.scores(refs, torch.tensor(laws, dtype=torch.float64).log())
    children: dict[int, list[int]] = {}
    for node in range(1, len(forest)):
        children.setdefault(forest.parent[node], []).append(node)
    line = {node: node for node in range(len(forest))}
    verdict = Verdict([[]], [None], [[]])
    case = Case(
        forest,
        [Item(request, 1, len(nodes), "user", "typical")],
        [0],
        {0: 0},
        children,
        line,
        refs,
        scores,
        sampler,
        verdict,
    )
    Typical().judge(case)
    return verdict


@pytest.mark.parametrize(
    "law", [[0.5, 0.3, 0.2], [0.91, 0.06, 0.03], [0.8, 0.1, 0.1], [0.25, 0.25, 0.5], [0.35, 0.05, 0.6]]
)
def test_threshold(law: list[float]) -> None:
    """Token x stands where p(x) > min(EPSILON, DELTA e^-H)."""
    least = min(EPSILON, DELTA * exp(sum(x * log(x) for x in law)))
    for token, chance in enumerate(law):
        assert judged([(token, ROOT)], [law, law]).path == [[1] if chance > least else []]


def test_a_flat_law_has_a_lower_threshold() -> None:
    """Distributions of 20 equal tokens: each is typical, since e^-H = 1/20, so the threshold is 0.015."""
    assert judged([(3, ROOT)], [[0.05] * 20] * 2).path == [[1]]


def test_the_longest_path_wins_then_the_most_probable() -> None:
    law = [0.4, 0.35, 0.25]
    assert judged([(0, ROOT), (2, ROOT), (2, 1)], [law] * 4).path == [[2, 3]]
    assert judged([(2, ROOT), (0, ROOT), (1, ROOT)], [law] * 4).path == [[2]]
    assert judged([(0, ROOT), (1, ROOT), (2, 0), (1, 1)], [law] * 5).path == [[2, 4]]


def test_what_follows_is_plain_decodings_draw() -> None:
    law = [0.4, 0.35, 0.25]
    verdict = judged([(0, ROOT)], [law, [0.1, 0.2, 0.7]])
    sampler = Sampler(3)
    request = Request(0, [0, 0], SamplingParams(temperature=1.0, top_k=0, top_p=1.0).resolve({}), 5)
    sampler.admit(request)
    row = [(request, ())]
    scores = sampler.scores(row, torch.tensor([[0.1, 0.2, 0.7]], dtype=torch.float64).log())
    assert verdict.next_token == sampler.draw(row, scores, [TargetNoise(5).key(2)])
    assert verdict.score_rows == [[0, 1]]


@pytest.mark.parametrize("drafter", TREES)
def test_greedy_is_exact(drafter: str) -> None:
    texts = []
    for verifier in ("exact", "typical"):
        params = SamplingParams(
            temperature=0.0, max_tokens=24, seed=1, drafter=drafter, verifier=verifier, ignore_eos=True
        )
        engine = Setting(draft_noise=0.5).engine()
        texts.append([g[0].output for g in run(engine, [Wish([1, 2, x], params.resolve({})) for x in range(6)])])
        assert engine.drafters.errors == []
    assert texts[0] == texts[1]
