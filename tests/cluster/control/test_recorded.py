"""A log that was recorded over two Ray actors, one of them slowed down: the simulator's dispatcher decides the same."""

from pathlib import Path
from typing import Any

import pytest

from paceline.cluster.workflow.log import Event, jobs, read, replay
from paceline.cluster.workflow.policies import DispatcherSetup
from tests.cluster.workflow.scenes import exact

LOG = Path(__file__).parent / "ray.jsonl"


@pytest.fixture
def events() -> list[Event]:
    return list(read(LOG))


def test_the_simulator_decides_as_the_controller_did(events: list[Event]) -> None:
    starts = [start for event in events for start in event.get("starts", ())]
    assert len(starts) == 30 and {where for _, where, _ in starts} == {"quick", "slow"}
    assert replay(events) is None


@pytest.mark.parametrize("change", [{"policy": "rr+fcfs"}, {"alpha": 1.0}, {"prior": {"engine": [9.0, 0.5, 10.0]}}])
def test_another_setup_decides_otherwise(events: list[Event], change: dict[str, Any]) -> None:
    assert "the replay's" in (replay([{**events[0], **change}, *events[1:]]) or "")


@pytest.mark.parametrize("policy", ["hexgen", "rr+fcfs"])
def test_the_recorded_questions_can_be_simulated_under_any_policy(events: list[Event], policy: str) -> None:
    work = jobs(events)
    calls = sum(len(stage) for job in work for stage in job.stages)
    assert len(work) == 6 and calls == 24, "six prompts were too long: refused, they used nothing"
    done = exact(DispatcherSetup.load({**events[0], "policy": policy}).dispatcher(), work)
    assert len(done.finished) == 6
