"""Heads with attention of their own: the lossless matrix, with batches, pre-emption, prefix hits, lost memories."""

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.simulate.log import Event
from paceline.simulate.record import record
from paceline.simulate.replay import replay
from tests.draft.attention import NAMES, WithHead
from tests.lossless.cases import FEATURES, check, wish_st

FAST = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
settings_st = st.builds(
    WithHead,
    model_seed=st.integers(0, 3),
    sharpness=st.sampled_from([0.5, 2.0]),
    blocks=st.integers(1, 40),
    block_size=st.sampled_from([1, 2, 4]),
    max_requests=st.integers(1, 4),
    row_budget=st.sampled_from([5, 9, 33]),
    draft_noise=st.just(0.5),
    nodes=st.fixed_dictionaries({name: st.integers(1, 20) for name in NAMES}),
    head=st.sampled_from(NAMES),
    prefix_cache=st.booleans(),
    patience_ms=st.sampled_from([0.0, 1e9]),
    clock=st.integers(0, 2**16),
)


@settings(max_examples=60, **FAST)
@given(settings_st, st.data(), st.integers(0, 2**16))
def test_mixed_batches_with_slots_dropped_and_replayed(setting: WithHead, data: st.DataObject, seed: int) -> None:
    """The cells one by one are the lossless matrix's; here with `auto`, choices, and a log that replays."""
    names = [setting.head, "auto", f"ngram|{setting.head}"]
    wishes = data.draw(st.lists(wish_st(list(FEATURES), names, adapters=[""]), min_size=1, max_size=6))
    events, engine = list[Event](), setting.engine()
    record(engine, events.append)
    setting.engine = lambda **_: engine  # type: ignore[method-assign]
    check(setting, wishes, random.Random(seed))
    assert replay(events).difference is None
