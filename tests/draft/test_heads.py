"""The touch test: a drafter that needs everything is one file (tests/draft/heads.py), and loses nothing by it."""

import random
from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.core.errors import InputError, RefusalError
from paceline.core.params import SamplingParams
from paceline.engine.loop import Engine
from paceline.plan.choose import Goodput
from paceline.simulate.log import Event, Step
from paceline.simulate.record import record
from paceline.simulate.replay import replay
from tests.draft.heads import Heads, HeadsDrafter, HeadsProposer, WithHeads, Witness, fold, registered
from tests.engine.test_keeping_up import Deaf
from tests.lossless.cases import FEATURES, Wish, check, plain, run, wish_st
from tests.toy import Toy, table


@pytest.fixture(autouse=True, scope="module")
def plugged_in() -> Iterator[None]:
    with registered():
        yield


settings_st = st.builds(
    WithHeads,
    model_seed=st.integers(0, 3),
    blocks=st.integers(1, 40),
    block_size=st.sampled_from([1, 2, 4]),
    max_requests=st.integers(1, 4),
    row_budget=st.sampled_from([5, 9, 33]),
    prefix_cache=st.booleans(),
    patience_ms=st.sampled_from([0.0, 1e9]),
    clock=st.integers(0, 2**16),
)
FAST = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


HEADED = ["heads", "auto", "ngram|heads", "model|heads"]


def wish(prompt: list[int], drafter: str = "heads", **changes: object) -> Wish:
    params = {"temperature": 0.0, "seed": 1, "max_tokens": 24, "ignore_eos": True, "drafter": drafter, **changes}
    return Wish(prompt, SamplingParams(**params).resolve({}))  # type: ignore[arg-type]


@pytest.mark.parametrize("feature", FEATURES)
def test_lossless(feature: str) -> None:
    @settings(max_examples=6, **FAST)
    @given(
        settings_st,
        st.lists(wish_st([feature], HEADED, adapters=[""]), min_size=1, max_size=4),
    )
    def cell(setting: WithHeads, wishes: list[Wish]) -> None:
        check(setting, wishes)

    cell()


@settings(max_examples=25, **FAST)
@given(settings_st, st.lists(wish_st(list(FEATURES), HEADED, adapters=[""]), min_size=1, max_size=6),
       st.integers(0, 2**16))  # fmt: skip
def test_lossless_with_slots_dropped_and_replayed(setting: WithHeads, wishes: list[Wish], seed: int) -> None:
    events, engine = list[Event](), setting.engine()
    record(engine, events.append)
    setting.engine = lambda **_: engine  # type: ignore[method-assign]
    check(setting, wishes, random.Random(seed))
    assert replay(events).difference is None


@pytest.mark.parametrize("patience", [0.0, 1e9])
def test_it_drafts_well_in_steps_and_in_runs(patience: float) -> None:
    engine = WithHeads(patience_ms=patience, block_size=4).engine()
    events = list[Event]()
    record(engine, events.append)
    [[request]] = run(engine, [wish([1, 2, 3, 4, 5])])
    assert request.stats.acceptance_rate > 0.4 and request.authors.count("heads") > 8
    several = [e for e in events if isinstance(e, Step) and e.decision.passes > 1]
    assert bool(several) == (patience > 0)


def test_a_proposer_that_fails_in_a_run_costs_its_drafts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: HeadsProposer, turns: object) -> None:
        raise RuntimeError("no draft today")

    monkeypatch.setattr(HeadsProposer, "propose", fail)
    engine = WithHeads(patience_ms=1e9).engine()
    [[request]] = run(engine, [wish([1, 2, 3, 4, 5])])
    assert request.output == plain(Toy(table(0), 48), [1, 2, 3, 4, 5], wish([0]).params)
    assert [str(error) for error in engine.drafters.errors] == ["no draft today"] and request.drafter == "none"
    assert engine.desk.totals.drafter_errors == {"heads": 1}


def test_its_pool_holds_the_states_of_the_text() -> None:
    """Also of rows that others drafted, that moved, and that were found in the prefix cache."""
    engine = WithHeads(nodes={"heads": 3, "user": 6}, block_size=2, max_requests=3).engine()
    requests = [engine.submit(w.prompt, w.params)[0] for w in (wish([1, 2, 3, 4, 5, 6]), wish([1, 2, 3, 4, 0], seed=2))]
    heads, checked = engine.components["heads"], 0
    assert isinstance(heads, Heads)
    for again in range(2):
        while engine.busy:
            engine.step()
            for request in requests:
                lease = request.lease
                if lease is None:
                    continue
                state = HeadsDrafter.blank()
                for token, slot in zip(request.tokens, lease.slots(0, lease.frontier["heads"])):  # type: ignore[attr-defined]
                    state = fold(state, token)
                    assert heads.pool[slot] == state
                    checked += 1
        if not again:
            requests = engine.submit([1, 2, 3, 4, 5, 6], wish([0]).params)
    assert checked > 100 and requests[0].stats.cached == 4


def test_auto_chooses_it() -> None:
    """Next to prompt lookup alone: among all heads of the toy it would have one try in ten."""
    made = WithHeads(clock=3).engine()
    engine = Engine(made.model, made.config, components={"heads": Heads()}, clock=made.clock)
    policy = cast(Goodput, engine.desk.policy)
    policy.governor = Deaf(policy.times)  # the clock's times are drawn at random
    [[request]] = run(engine, [wish([1, 2, 3, 4, 5], "auto", max_tokens=40)])
    assert request.arms == ("ngram", "heads") and request.authors.count("heads") > 4


def test_a_verifier_reads_hidden_states() -> None:
    before = Witness.seen
    engine = WithHeads().engine()
    [[request]] = run(engine, [wish([1, 2, 3], verifier="witness")])
    assert request.output == plain(Toy(table(0), 48), [1, 2, 3], wish([0]).params)
    assert Witness.seen > before + 20 and not engine.drafters.errors


def test_hidden_states_that_were_dropped_are_computed_again() -> None:
    """A drafter that lags behind rows whose states are gone: they become given rows again. It replays."""
    again = 0
    for seed in range(12):
        engine, events = WithHeads(block_size=2, sharpness=0.3, clock=seed).engine(), list[Event]()
        record(engine, events.append)
        params = wish([0], "ngram|heads", temperature=1.5, max_tokens=40, seed=seed).params
        [request] = engine.submit([1, 2, 3, 4, 5], params)
        engine.drafters.hidden.budget = 0
        while engine.busy:
            engine.step()
            again += request.pending > 1 and request.finish is None
        assert request.output == plain(Toy(table(0, 0.3), 48), [1, 2, 3, 4, 5], params)
        assert replay(events).difference is None and not engine.drafters.errors
    assert again


def test_what_it_needs_is_said() -> None:
    from tests.lossless.cases import Setting

    with pytest.raises(RefusalError, match="'heads' needs a head"):
        Setting().engine().submit([1], wish([1]).params)
    heads = Heads()
    for change, message in (
        ({"vocab_size": 9}, "vocabulary of 9"),
        ({"width": 3}, "hidden states of 3"),
        ({"taps": ("input:7",)}, "input:7"),
    ):
        for name, value in change.items():
            setattr(heads, name, value)
        with pytest.raises(InputError, match=message):
            Engine(Toy(table(0)), Setting().engine().config, components={"heads": heads})
        heads = Heads()
