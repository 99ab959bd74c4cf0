"""In distribution: rules that look at q keep the joint distribution of the first three tokens (G-test, five fixed
seeds)."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import chi2

from paceline.core.params import SamplingParams
from paceline.core.plan import MinChance
from paceline.core.registry import refusal
from paceline.core.request import Request
from paceline.draft import DRAFTERS, dyspec, model
from paceline.engine.loop import Engine
from paceline.sample.sampler import Sampler
from paceline.verify import VERIFIERS
from tests.lossless.cases import EOS, FEATURES, GRAMMARS, HAVE, Setting
from tests.sampling import sampled
from tests.toy import VOCAB

SEEDS = range(5)
DRAWS, DRAWS_FULL = 1000, 1500
MUTANT_DRAWS = 1000
"""Draws of a mutant between two looks at its p-value."""
NODES = 7
WIDE = 16
"""Nodes with which `rsd_s` has a beam of two."""
ROOM = 8
"""Tokens that the requests could still grow by: no tree is cut by the end of its text."""
CELLS = [
    (d, v)
    for v, accepts in VERIFIERS.items()
    for d, offers in DRAFTERS.items()
    if accepts.guarantee == "distribution" and refusal(d, offers, v, accepts, HAVE) is None
]
SAMPLED = [name for name, params in FEATURES.items() if params["temperature"] > 0]
PROMPT = [1, 2, 3, 1, 2, 3, 1]


def joint_law(setting: Setting, params: SamplingParams, length: int = 3) -> dict[tuple[int, ...], float]:
    """The exact joint distribution of the first `length` tokens by enumeration."""
    toy, law = setting.target(), {(): 1.0}
    for _ in range(length):
        longer: dict[tuple[int, ...], float] = {}
        for path, mass in law.items():
            if path and path[-1] in (*params.stop_token_ids, *((EOS,) if not params.ignore_eos else ())):
                longer[path] = mass
                continue
            sampler, request = (
                Sampler(VOCAB, grammars=GRAMMARS),
                Request(0, list(PROMPT), params, 0, eos=frozenset({EOS})),
            )
            sampler.admit(request)
            row = [(request, path)]
            p = sampler.probs(row, sampler.scores(row, toy.next_logits(PROMPT + list(path))[None]))[0]
            for token, q in enumerate(p.tolist()):
                if q > 0:
                    longer[(*path, token)] = mass * q
        law = longer
    return law


def g_test(counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """p-value of the G-test; outcomes are pooled, the rarest together, until each cell expects at least 5.
    0 for an impossible outcome."""
    if any(path not in law for path in counts):
        return 0.0
    total, g, cells = sum(counts.values()), 0.0, 0
    seen, mass, rest = 0, 0.0, sum(law.values())
    for path in sorted(law, key=law.__getitem__):
        seen, mass, rest = seen + counts[path], mass + law[path], rest - law[path]
        if mass * total >= 5 and (rest * total >= 5 or rest < 1e-12):
            g += 2 * seen * math.log(seen / (mass * total)) if seen else 0.0
            cells, seen, mass = cells + 1, 0, 0.0
    return float(chi2.sf(g, max(1, cells - 1)))


def sample(
    setting: Setting, drafter: str, verifier: str, feature: str, seed: int, draws: int = DRAWS, length: int = 3
) -> Counter[Any]:
    """First `length` tokens of `draws` requests, each ended once it has them. Nodes and passes of the draft are free,
    so that drafts are as deep as they may be: this draft is too often wrong for deep ones to pay."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "CHAIN_MIN_CHANCE", MinChance(0.0))
        patch.setattr(dyspec, "prices", lambda item: (1e-9, 1e-12))
        return _sample(setting.engine(), drafter, verifier, feature, seed, draws, length)


def _sample(
    engine: Engine, drafter: str, verifier: str, feature: str, seed: int, draws: int, length: int
) -> Counter[Any]:
    base = {"top_p": 1.0, "top_k": 0, "ignore_eos": True, **FEATURES[feature], "max_tokens": length + ROOM}
    requests = [
        engine.submit(
            PROMPT, SamplingParams(seed=seed * 10**6 + i, drafter=drafter, verifier=verifier, **base).resolve({})
        )[0]
        for i in range(draws)
    ]
    while engine.busy:
        for request in engine.step():
            if len(request.output) >= length:
                engine.abort(request)
    assert engine.drafters.errors == []
    return Counter(tuple(request.output[:length]) for request in requests)


def worst_p(
    drafter: str, verifier: str, feature: str, seeds: Any = SEEDS, draws: int = DRAWS, length: int = 3
) -> float:
    """Smallest p-value over the seeds."""
    setting = law_setting()
    base = {"top_p": 1.0, "top_k": 0, "ignore_eos": True, **FEATURES[feature]}
    law = joint_law(setting, SamplingParams(**base, seed=0).resolve({}), length)
    return min(g_test(sample(setting, drafter, verifier, feature, seed, draws, length), law) for seed in seeds)


def p_of_a_mutant(drafter: str, verifier: str, feature: str, draws: int, length: int = 3, below: float = 1e-6) -> float:
    """p-value of up to `draws` draws, which are made 1,000 at a time and end where it is `below` already."""
    setting, counts, p = law_setting(), Counter[Any](), 1.0
    base = {"top_p": 1.0, "top_k": 0, "ignore_eos": True, **FEATURES[feature]}
    law = joint_law(setting, SamplingParams(**base, seed=0).resolve({}), length)
    for seed, first in enumerate(range(0, draws, MUTANT_DRAWS)):
        counts += sample(setting, drafter, verifier, feature, seed, min(MUTANT_DRAWS, draws - first), length)
        p = g_test(counts, law)
        if p < below:
            break
    return p


def law_setting() -> Setting:
    """A draft that is often wrong, trees that branch, rows for everybody; no integrity walk (it is tested
    elsewhere)."""
    return Setting(
        model_seed=4, sharpness=1.0, draft_noise=2.0, blocks=1600, block_size=2, max_requests=60, row_budget=2048,
        nodes={name: NODES if card.shape == "tree" else 2 for name, card in DRAFTERS.items()} | {"rsd_s": WIDE},
        tbt_target_ms=0.0, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("drafter", "verifier", "feature"),
    sampled(
        [(d, v, ("temperature", "top-k", "penalties", "grammar")[i % 4]) for i, (d, v) in enumerate(CELLS)],
        lambda cell: cell[0],
        lambda cell: cell[1:],
    ),
)
def test_the_law_is_kept(drafter: str, verifier: str, feature: str) -> None:
    """One seed a cell: every drafter, and every rule with four features; all cells and features in the full run."""
    assert worst_p(drafter, verifier, feature, range(1)) > 1e-4


@pytest.mark.full
@pytest.mark.parametrize(("drafter", "verifier"), CELLS)
@pytest.mark.parametrize("feature", SAMPLED)
def test_the_law_is_kept_full(drafter: str, verifier: str, feature: str) -> None:
    """About 1,600 tests in all, so each may be unlucky; a mutant falls below this bound, too."""
    assert worst_p(drafter, verifier, feature, draws=DRAWS_FULL) > 1e-6


@pytest.mark.parametrize(
    ("drafter", "verifier"), [("model", "chain"), ("rsd_c", "rrs"), ("spectr", "kseq"), ("dyspec", "rrs")]
)
def test_the_law_is_kept_with_a_draft_vocabulary(drafter: str, verifier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are made of four of the seven tokens, of other four after each step."""
    narrow = replace(law_setting(), words=4)
    monkeypatch.setattr("tests.lossless.test_law.law_setting", lambda: narrow)
    assert worst_p(drafter, verifier, "temperature", range(1)) > 1e-4


def test_greedy_is_plain() -> None:
    """At temperature 0 every rule is exact match: the text equals plain decoding."""
    setting = law_setting()
    counts = [sample(setting, d, v, "greedy", 0, 3) for d, v in (*CELLS, ("none", "exact"))]
    assert all(count == counts[-1] for count in counts)


def test_exact_samples_the_law() -> None:
    """Plain decoding by argmax(log p + noise) draws from p, and so does every text that equals it."""
    assert worst_p("model", "exact", "temperature", range(2)) > 1e-4


def test_the_g_test_can_fail() -> None:
    """The uniform distribution is not the distribution of the toy."""
    setting = law_setting()
    law = joint_law(setting, SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=0, ignore_eos=True).resolve({}))
    counts = sample(setting, "none", "exact", "temperature", 0, 1000)
    assert g_test(counts, dict.fromkeys(law, 1 / len(law))) < 1e-6
    assert torch.tensor(list(law.values())).sum() == pytest.approx(1.0)
