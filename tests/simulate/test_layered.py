"""Logs of runs whose prompts went through the layers in groups replay, and the simulator decides by the same code."""

import random
from dataclasses import replace

from paceline.simulate.log import Outcome, Step
from paceline.simulate.record import record
from paceline.simulate.replay import replay
from paceline.simulate.simulator import simulate
from paceline.simulate.workload import Workload
from tests.lossless.cases import Setting
from tests.simulate.runs import drive, fail_at_times, recorded, some

LAYERED = Setting(schedule="layered", layer_groups=2, row_budget=64, clock=5, max_requests=4)


def partial(events: list[object]) -> int:
    """Items whose rows waited between two layers."""
    steps = [event for event in events if isinstance(event, Step) and isinstance(event.outcome, Outcome)]
    return sum(item.last is not None for step in steps for item in step.decision.items)


def test_a_log_with_rows_that_wait_between_layers_replays() -> None:
    events = recorded(LAYERED, some(3, 10, drafter="auto"), 1)
    assert partial([*events]) > 3
    done = replay(events)
    assert done.difference is None and not done.twin.requests
    done.twin.desk.cache.check_integrity()


def test_so_does_one_with_aborts_pre_emptions_and_passes_that_failed_meanwhile() -> None:
    waited = 0
    for seed in range(8):
        engine, rng, events = replace(LAYERED, blocks=14, block_size=2).engine(), random.Random(seed), list[object]()
        record(engine, events.append)
        fail_at_times(engine, rng)
        drive(engine, some(seed, 10, drafter="auto", n=2), rng, aborts=0.2)
        waited += partial(events)
        done = replay(events)  # type: ignore[arg-type]
        assert done.difference is None
    assert waited > 10


def test_another_number_of_groups_is_a_difference() -> None:
    events = recorded(LAYERED, some(3, 10, drafter="none"), 1)
    at = next(i for i, e in enumerate(events) if isinstance(e, Step) and any(x.last for x in e.decision.items))
    step = events[at]
    assert isinstance(step, Step)
    items = [replace(item, last=None) if item.last else item for item in step.decision.items]
    events[at] = replace(step, decision=replace(step.decision, items=items))
    assert "items is" in (replay(events).difference or "")


def test_the_simulator_advances_by_layers_too() -> None:
    events = recorded(LAYERED, some(3, 10, drafter="none"), 1)
    again = simulate(Workload.of(events), clients=4)
    assert partial([*again]) > 3 and replay(again).difference is None
