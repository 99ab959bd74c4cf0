"""Heads with attention of their own: the lossless matrix, with batches, pre-emption, prefix hits, lost memories."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.core.registry import refusal
from paceline.draft import DRAFTERS
from paceline.simulate.log import Event
from paceline.simulate.record import record
from paceline.simulate.replay import replay
from paceline.verify import VERIFIERS
from tests.draft.attention import MAKE, WithHead
from tests.lossless.cases import FEATURES, Wish, check, wish_st

CELLS = [
    (d, v)
    for d in MAKE
    for v, accepts in VERIFIERS.items()
    if accepts.guarantee == "text" and refusal(d, DRAFTERS.card(d), v, accepts, set(MAKE)) is None
]
FAST = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
settings_st = st.builds(
    WithHead,
    model_seed=st.integers(0, 3),
    sharpness=st.sampled_from([0.5, 2.0]),
    blocks=st.integers(1, 40),
    block_size=st.sampled_from([1, 2, 4]),
    max_requests=st.integers(1, 4),
    row_budget=st.sampled_from([5, 9, 33]),
    nodes=st.fixed_dictionaries({name: st.integers(1, 20) for name in MAKE}),
    prefix_cache=st.booleans(),
    patience_ms=st.sampled_from([0.0, 1e9]),
    clock=st.integers(0, 2**16),
)


@pytest.mark.parametrize(("drafter", "verifier"), CELLS)
@pytest.mark.parametrize("feature", FEATURES)
def test_cell(drafter: str, verifier: str, feature: str) -> None:
    @settings(max_examples=4, **FAST)
    @given(settings_st, st.lists(wish_st([feature], [drafter], verifier), min_size=1, max_size=4))
    def cell(setting: WithHead, wishes: list[Wish]) -> None:
        check(setting, wishes)

    cell()


@settings(max_examples=40, **FAST)
@given(settings_st, st.lists(wish_st(list(FEATURES), [*MAKE, "auto", *(f"ngram|{d}" for d in MAKE)]), min_size=1,
                             max_size=6), st.integers(0, 2**16))  # fmt: skip
def test_mixed_batches_with_slots_dropped_and_replayed(setting: WithHead, wishes: list[Wish], seed: int) -> None:
    events, engine = list[Event](), setting.engine()
    record(engine, events.append)
    setting.engine = lambda **_: engine  # type: ignore[method-assign]
    check(setting, wishes, random.Random(seed))
    assert replay(events).difference is None
