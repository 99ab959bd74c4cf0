"""The lossless matrix: for every legal cell the text equals plain decoding with the same seed."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.core.params import SamplingParams
from paceline.core.registry import refusal
from paceline.draft import DRAFTERS
from paceline.schedule.policies import ORDERS, SCHEDULES
from paceline.verify import VERIFIERS
from tests.lossless.cases import FEATURES, HAVE, TURNS, Setting, Wish, check, settings_st, wish_st
from tests.sampling import pairwise
from tests.toy import VOCAB

CELLS = [
    (d, v)
    for d, offers in DRAFTERS.items()
    for v, accepts in VERIFIERS.items()
    if accepts.guarantee == "text" and refusal(d, offers, v, accepts, HAVE) is None
]
FAST = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


AXES: dict[str, Sequence[Any]] = {
    "feature": list(FEATURES), "model_seed": range(6), "sharpness": [0.5, 2.0, 4.0], "draft_noise": [0.0, 0.3, 1.0],
    "blocks": [1, 6, 40], "block_size": [1, 2, 3, 8], "max_requests": [1, 2, 5], "row_budget": [1, 5, 9, 33],
    "nodes": [1, 2, 3, 5, 8, 12], "prefix_cache": [True, False], "schedule": SCHEDULES, "order": list(ORDERS),
    "group_size": [None, 1, 2], "layer_groups": [None, 2, 99],
    "patience_ms": [0.0, 1e9], "words": [0, 1, 3, 5], "n": [1, 3],
    "ignore_eos": [True, False], "logprobs": [None, None, 1], "adapter": list(TURNS), "max_loras": [1, 4],
}  # fmt: skip
"""Of the engine, and of the requests."""
WISHED = ("feature", "nodes", "n", "ignore_eos", "logprobs", "adapter")


@cache
def design() -> list[dict[str, Any]]:
    """Rows that hold each pair of values of two axes, the cell among them: every drafter meets every feature and every
    setting, every feature every setting, and so on."""
    return pairwise({"cell": CELLS, **AXES}, seed=0)


def wish(rng: random.Random, drafter: str, verifier: str, feature: str, **drawn: Any) -> Wish:
    params: dict[str, Any] = {"top_k": 0, "top_p": 1.0, **drawn, **FEATURES[feature]}
    params |= {"seed": rng.getrandbits(64), "drafter": drafter, "verifier": verifier}
    params["max_tokens"] = rng.randint(max(1, params.get("min_tokens", 0)), 24)
    prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 20))]
    return Wish(prompt, SamplingParams(**params).resolve({}))


@pytest.mark.parametrize(("drafter", "verifier"), CELLS)
def test_cells(drafter: str, verifier: str) -> None:
    """One drafter and one rule: its rows of the design, two requests each, often with the same prompt, of which one
    may have another adapter. In half of them arrivals are spread and slots dropped. Drafts were made and requests
    pre-empted."""
    rng, preempted, drafted = random.Random(drafter), 0, 0
    for row in (dict(row) for row in design() if row["cell"] == (drafter, verifier)):
        del row["cell"]
        if tight := row["blocks"] == 1:  # both are admitted while they are short, and push each other out
            row |= {"max_requests": max(2, row["max_requests"]), "ignore_eos": True}
        wished = {name: row.pop(name) for name in WISHED}
        nodes = wished.pop("nodes")
        setting = Setting(**row, nodes={drafter: nodes} if drafter != "none" else {}, clock=rng.getrandbits(16))
        whose = [wished["adapter"], rng.choice([*TURNS])]
        wishes = [wish(rng, drafter, verifier, **{**wished, "adapter": name}) for name in whose]
        if rng.random() < 0.5:
            wishes[1].prompt = wishes[0].prompt
        if tight:
            wishes = [replace(it, prompt=it.prompt[:4], params=replace(it.params, max_tokens=40)) for it in wishes]
        totals = check(setting, wishes, rng if rng.random() < 0.5 else None).desk.totals
        preempted += totals.preemptions
        drafted += sum(stats.drafted for stats in totals.drafters.values())
    assert preempted and (drafted or drafter == "none"), (preempted, drafted)


@pytest.mark.full
@pytest.mark.parametrize(("drafter", "verifier"), CELLS)
@pytest.mark.parametrize("feature", FEATURES)
def test_cell_full(drafter: str, verifier: str, feature: str) -> None:
    """One drafter, one rule, one feature: batches, prompts, seeds, block sizes and budgets drawn."""

    @settings(max_examples=8, **FAST)
    @given(settings_st, st.lists(wish_st([feature], [drafter], verifier), min_size=1, max_size=4))
    def cell(setting: Setting, wishes: list) -> None:
        check(setting, wishes)

    cell()


@settings(max_examples=40, **FAST)
@given(
    settings_st,
    st.lists(wish_st(list(FEATURES), [d for d, v in CELLS]), min_size=1, max_size=8),
    st.integers(0, 2**32),
)
def test_mixed_batches(setting: Setting, wishes: list, seed: int) -> None:
    """Drafters and features mixed in one batch, arrivals spread, pre-emptions, drafter slots dropped at any step."""
    check(setting, wishes, random.Random(seed))


@pytest.mark.full
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    settings_st,
    st.lists(wish_st(list(FEATURES), [d for d, v in CELLS]), min_size=1, max_size=8),
    st.integers(0, 2**32),
)
def test_mixed_batches_full(setting: Setting, wishes: list, seed: int) -> None:
    check(setting, wishes, random.Random(seed))
