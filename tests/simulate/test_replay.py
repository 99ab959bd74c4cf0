"""A log replays to identical decisions, whatever befell; a log that was tampered with does not."""

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.errors import InputError
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.simulate.log import Arrival, Event, Step, dump, read
from paceline.simulate.record import LogFile, record, setup
from paceline.simulate.replay import replay
from tests.lossless.cases import Setting, Wish
from tests.simulate.runs import drive, recorded, settings_st, some, wish_st


@settings(max_examples=30, deadline=None)
@given(settings_st, st.lists(wish_st(), min_size=1, max_size=8), st.integers(0, 2**16), st.booleans())
def test_decisions_repeat(setting: Setting, wishes: list[Wish], seed: int, faults: bool) -> None:
    events = recorded(setting, wishes, seed, faults)
    done = replay(events)
    assert done.difference is None
    assert done.steps == sum(isinstance(event, Step) for event in events)
    done.twin.desk.cache.check_integrity()
    assert not done.twin.requests
    assert not any(belief.own for belief in done.twin.desk.policy.beliefs.of.values())


def pressed(**setting: object) -> list[Event]:
    """Pre-emptions, choices, shared prompts."""
    base = {"blocks": 14, "block_size": 2, "max_requests": 4, "clock": 5, **setting}
    wishes = [*some(5, 6, drafter="auto", n=2), *some(6, 4, drafter="ngram", n=2)]
    return recorded(Setting(**base), wishes, 1)  # type: ignore[arg-type]


def test_the_run_has_what_the_property_is_about() -> None:
    steps = [e for e in recorded(Setting(blocks=14, block_size=2, clock=5), some(3, 8, drafter="auto", n=2), 1, True)
             if isinstance(e, Step)]  # fmt: skip
    assert any(step.decision.preempted for step in steps)
    named = recorded(Setting(blocks=14, block_size=2, clock=5), some(3, 8, drafter="model", n=2), 1, True)
    assert any(step.failed for step in named if isinstance(step, Step))
    assert any(step.outcome is None and step.decision.items for step in steps)
    assert any(step.outcome and step.outcome.advanced for step in steps)
    patient = Setting(blocks=14, block_size=2, clock=5, patience_ms=1e9)
    steps += [e for e in recorded(patient, some(3, 8, drafter="none"), 1) if isinstance(e, Step)]
    several = [step for step in steps if step.decision.passes > 1]
    assert several and all(step.outcome and len(step.outcome.results[0].tokens) > 1 for step in several)
    steps += [e for e in recorded(patient, some(4, 8, drafter="model"), 1) if isinstance(e, Step)]
    ran = [s for s in steps if s.outcome and s.decision.passes > 1]
    rounds = [r for step in ran if step.outcome for result in step.outcome.results for r in result.rounds]
    assert {0, 1} <= {round.depth for round in rounds if round.offered}
    steps += [e for e in recorded(patient, some(3, 8, drafter="ngram"), 1) if isinstance(e, Step)]
    drafters = {item.drafter for step in steps for item in step.decision.items if item.nodes}
    assert len(drafters) > 1


@pytest.mark.parametrize("schedule", ["prefill_first", "decode_first"])
def test_other_schedules_repeat(schedule: str) -> None:
    assert replay(pressed(schedule=schedule)).difference is None


def test_times_reach_the_account() -> None:
    events = pressed()
    where, changed = next(found for i, event in enumerate(events) if (found := change("times", i, event)) is not None)
    one, two = replay(events), replay([*events[:where], changed, *events[where + 1 :]])
    assert one.twin.desk.totals.saved_s != two.twin.desk.totals.saved_s


@pytest.mark.parametrize("what", ["accepted", "advanced", "arrival"])
def test_one_changed_line_is_noticed(what: str) -> None:
    """Three times at least: what nobody uses later, as K/V of a draft or the length of a text that ends, changes no
    decision."""
    events = pressed()
    found = [it for i, event in enumerate(events) if (it := change(what, i, event)) is not None]
    told = [replay([*events[:where], changed, *events[where + 1 :]]).difference for where, changed in found[:8]]
    differences = [it for it in told if it is not None]
    assert len(differences) >= 3 and all(it.startswith(("Step", "After step")) for it in differences)


def change(what: str, place: int, event: Event) -> tuple[int, Event] | None:
    """An event with one thing changed, if it has it."""
    if what == "arrival" and getattr(event, "event", "") == "arrival" and place > 3:
        return place, replace(event, prompt=[*event.prompt, 0])  # type: ignore[call-arg, union-attr]
    if not isinstance(event, Step) or event.outcome is None:
        return None
    outcome = event.outcome
    for i, result in enumerate(outcome.results):
        if what == "accepted" and result.ranks and result.finish is None:
            less = replace(result, tokens=result.tokens[1:], ranks=result.ranks[1:], emitted=result.emitted - 1)
            results = [*outcome.results[:i], less, *outcome.results[i + 1 :]]
            return place, replace(event, outcome=replace(outcome, results=results))
    if what == "times" and outcome.parts:
        times = replace(outcome.times, drafts=dict.fromkeys(outcome.times.drafts, 1e-6), rest=1e-6)
        return place, replace(event, outcome=replace(outcome, times=times))
    if what == "advanced" and outcome.advanced:
        number, group, length = outcome.advanced[0]
        return place, replace(event, outcome=replace(outcome, advanced=[(number, group, length + 9)]))
    return None


def test_a_file_reads_back_equal(tmp_path: Path) -> None:
    engine, events = Setting(clock=4).engine(), list[Event]()
    file = LogFile(tmp_path / "log")
    record(engine, lambda event: (events.append(event), file(event)))
    lines = len(events)
    drive(engine, some(1, 4, drafter="auto"), random.Random(0))
    file.close()
    assert len(events) > lines
    assert list(read(tmp_path / "log")) == events


def test_an_arrival_keeps_what_decisions_read() -> None:
    params = SamplingParams(
        max_nodes=3, prompt_logprobs=0, priority=2, deadline_ms=5.5, user="a", stop="secret", seed=8
    )
    request = Request(4, [1, 2], params, 8, group=3, drafter="a|b", arms=("a", "b"), max_tokens=9, arrival=1.5, key="a")
    arrival = Arrival.of(request)
    line = dump(arrival)
    again = arrival.request()
    for name in ("id", "prompt", "group", "drafter", "arms", "verifier", "max_tokens", "arrival", "key"):
        assert getattr(again, name) == getattr(request, name)
    assert again.params == replace(params, user="", stop=(), seed=None)
    assert b"secret" not in line


def test_another_process_decides_alike(tmp_path: Path) -> None:
    """Nothing may hang on the order of a set of names, which differs from process to process."""
    path = tmp_path / "log"
    path.write_bytes(b"".join(map(dump, pressed())))
    code = (
        "import sys; from pathlib import Path; from paceline.simulate.log import read;"
        "from paceline.simulate.replay import replay; print(replay(read(Path(sys.argv[1]))).difference)"
    )
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code, str(path)], env=env, capture_output=True, text=True)
        assert done.stdout.strip() == "None", done.stderr


def test_a_log_begins_before_the_first_request() -> None:
    engine = Setting().engine()
    setup(engine)
    drive(engine, some(1, 1), random.Random(0))
    with pytest.raises(InputError, match="before an engine's first request"):
        record(engine, lambda event: None)


@pytest.mark.parametrize(
    ("line", "says"),
    [(b"{}\n", "line 1 of"), (b"\xff\n", "line 1 of"), (b'{"event": "abort", "id": 3}\n', "one setup")],
)
def test_what_is_no_log_is_refused(tmp_path: Path, line: bytes, says: str) -> None:
    (tmp_path / "log").write_bytes(line)
    with pytest.raises(InputError, match=says):
        list(read(tmp_path / "log"))
    with pytest.raises(InputError, match="cannot be read"):
        list(read(tmp_path / "none"))


def test_a_disk_that_refuses_ends_the_log_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        LogFile(tmp_path / "no" / "log")
    file = LogFile(Path("/dev/full"))
    engine = Setting().engine()
    record(engine, file)
    drive(engine, some(1, 2), random.Random(0))
    assert [r.message for r in caplog.records if "decision log ends here" in r.message]
    assert len(caplog.records) == 1


def test_prompts_that_are_scored_match_the_cache_once_they_are() -> None:
    """A request with prompt log-probabilities that is pre-empted finds its own blocks only if they are all known."""
    setting = Setting(blocks=16, block_size=2, max_requests=4, clock=5)
    events = recorded(setting, some(3, 12, prompt_logprobs=0), 1)
    assert any(event.decision.preempted for event in events if isinstance(event, Step))
    assert replay(events).difference is None
