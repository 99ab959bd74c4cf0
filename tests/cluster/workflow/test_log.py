"""The log: it replays to the same decisions, names the first that differs, and gives the workloads for tuning."""

import json
from pathlib import Path

import numpy as np
import pytest

from paceline.cluster.control.controller import rehearse
from paceline.cluster.control.pace import RehearsalStopped, SparePace
from paceline.cluster.workflow.hexgen import HexGen
from paceline.cluster.workflow.log import Event, WorkflowRecorder, jobs, read, replay, write
from paceline.cluster.workflow.policies import DISPATCHER_NAMES, DispatcherSetup, policy
from paceline.cluster.workflow.predict import SecondsTable
from paceline.cluster.workflow.simulate import Fault
from paceline.cluster.workflow.text2sql import base, questions
from paceline.cluster.workflow.tune import GRID, Tuner, best
from paceline.core.errors import InputError
from tests.cluster.workflow.scenes import play, setup


def recorded(name: str, seed: int = 0) -> tuple[list[Event], list[float]]:
    made, events = setup(name).dispatcher(), list[Event]()
    made.watchers.append(WorkflowRecorder(setup(name), events.append))
    work = questions(25, 0.05, np.random.default_rng(seed), 6.0 * base())
    done = play(made, work, [Fault(200.0, "L40S-1"), Fault(500.0, "L40S-1", True)])
    return events, sorted(done.finished.values())


@pytest.mark.parametrize("name", [name for name in DISPATCHER_NAMES if name != "learned"])
def test_a_log_replays_to_the_same_decisions(name: str, tmp_path: Path) -> None:
    events, _ = recorded(name)
    sink = write(tmp_path / "log.jsonl")
    for event in events:
        sink(event)
    assert list(read(tmp_path / "log.jsonl")) == json.loads(json.dumps(events)), "floats read back equal"
    assert replay(list(read(tmp_path / "log.jsonl"))) is None


def test_the_first_difference_is_named() -> None:
    events, _ = recorded("hexgen")
    at = [n for n, event in enumerate(events) if event.get("starts")][40]
    events[at]["starts"][0][1] = "elsewhere"
    assert f"Line {at + 1}: the log's starts" in (replay(events) or "")


def test_another_alpha_decides_otherwise() -> None:
    events, _ = recorded("hexgen")
    assert replay([{**events[0], "alpha": 1.0}, *events[1:]]) is not None


def test_workloads_come_back_from_the_log() -> None:
    events, took = recorded("balanced+fcfs")
    again = jobs(events)
    assert len(again) == 25 and sum(len(stage) for job in again for stage in job.stages) == sum(
        event["event"] == "finish" for event in events
    )
    same = play(setup("balanced+fcfs").dispatcher(), again, [Fault(200.0, "L40S-1"), Fault(500.0, "L40S-1", True)])
    assert sorted(same.finished.values()) == pytest.approx(took)


def test_the_tuner_takes_the_best_of_its_window_and_the_same_each_time() -> None:
    events, _ = recorded("hexgen", seed=5)
    planner = HexGen(SecondsTable({}))
    tuner = Tuner(planner, window=20, every=10)
    for event in events:
        tuner.sink(event)
    assert tuner.due
    work = tuner.take()
    assert len(work) == 20 and not tuner.due
    tried = {alpha: play(setup("hexgen", alpha=alpha).dispatcher(), work) for alpha in GRID}
    found = best(lambda alpha, each: play(setup("hexgen", alpha=alpha).dispatcher(), each), work)
    most = max(done.attainment() for done in tried.values())
    assert tried[found].attainment() == most
    assert found == best(lambda alpha, each: play(setup("hexgen", alpha=alpha).dispatcher(), each), work)


def test_a_rehearsal_rests_and_stops_when_told() -> None:
    events, _ = recorded("hexgen", seed=5)
    made, work, pace = setup("hexgen").dispatcher(), jobs(events)[:8], SparePace()
    assert rehearse(made, 0.2, work, pace).finished == rehearse(made, 0.2, work).finished, "the same, later"
    pace.stop()
    with pytest.raises(RehearsalStopped):
        while True:
            rehearse(made, 0.2, work, pace)


def test_files_and_names_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        list(read(tmp_path / "absent"))
    (tmp_path / "bad").write_text('{"event": "setup"}\n[]\n')
    with pytest.raises(InputError, match="line 2"):
        list(read(tmp_path / "bad"))
    with pytest.raises(InputError, match="begins with its setup"):
        replay([])
    with pytest.raises(InputError, match="damaged"):
        DispatcherSetup.load({"policy": "hexgen"})
    with pytest.raises(InputError, match="known are hexgen"):
        policy("best", SecondsTable({}))
    with pytest.raises(InputError, match="needs a trained order"):
        policy("learned", SecondsTable({}))
    with pytest.raises(InputError, match="alpha is 2"):
        policy("hexgen", SecondsTable({}), alpha=2.0)
