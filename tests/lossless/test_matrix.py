"""The lossless matrix: for every legal cell the text equals plain decoding with the same seed."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.core.registry import refusal
from paceline.draft import DRAFTERS
from paceline.verify import VERIFIERS
from tests.lossless.cases import FEATURES, HAVE, Setting, check, settings_st, wish_st

CELLS = [
    (d, v)
    for d, offers in DRAFTERS.items()
    for v, accepts in VERIFIERS.items()
    if accepts.guarantee == "text" and refusal(d, offers, v, accepts, HAVE) is None
]
FAST = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


@pytest.mark.parametrize(("drafter", "verifier"), CELLS)
@pytest.mark.parametrize("feature", FEATURES)
def test_cell(drafter: str, verifier: str, feature: str) -> None:
    """One drafter, one rule, one feature: batches, prompts, seeds, block sizes and budgets drawn."""

    @settings(max_examples=8, **FAST)
    @given(settings_st, st.lists(wish_st([feature], [drafter], verifier), min_size=1, max_size=4))
    def cell(setting: Setting, wishes: list) -> None:
        check(setting, wishes)

    cell()


@settings(max_examples=80, **FAST)
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
