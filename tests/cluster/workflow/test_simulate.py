"""The virtual clock against what is known in closed form, and against a token-by-token twin."""

import numpy as np
import pytest

from paceline.cluster.workflow.baselines import ArrivalOrder, Balanced, ShortestQueue
from paceline.cluster.workflow.dispatch import Dispatcher
from paceline.cluster.workflow.models import Batched, Predicted, Speed
from paceline.cluster.workflow.predict import SecondsTable
from paceline.cluster.workflow.simulate import SimulatedCall, SimulatedJob, Simulation
from paceline.cluster.workflow.tasks import CallWork, Instance, Task, Workflow
from tests.cluster.workflow.scenes import exact, pair, stages, table


def test_one_instance_and_one_stage_wait_as_an_m_d_1_queue_does() -> None:
    rng, rate, jobs, at = np.random.default_rng(0), 0.7, [], 0.0
    for _ in range(8_000):
        at += float(rng.exponential(1 / rate))
        jobs.append(SimulatedJob(at, stages(("a", 1))))
    only = SecondsTable({"fast": {"a": 1.0}})
    made = Dispatcher({"f": Instance("f", "fast")}, Balanced(only), ArrivalOrder(), only)
    expected = 1.0 + rate / (2 * (1 - rate))
    assert exact(made, jobs).mean() == pytest.approx(expected, rel=0.1)


def test_a_stage_begins_when_all_of_the_one_before_ended() -> None:
    made = Dispatcher(pair(), Balanced(table()), ArrivalOrder(), table())
    done = exact(made, [SimulatedJob(0.0, stages(("a", 2), ("c", 1)))])
    assert done.finished == {"w0": 2.0 + 4.0}, "the two a take 1 and 2 s, then c 4 s"


def test_batches_are_those_of_steps_one_by_one() -> None:
    """Whole runs of steps at once against single steps: a prefill, else a token for each."""
    speed, rng = Speed(0.001, 0.02, 0.1), np.random.default_rng(1)
    sizes = [(int(rng.integers(50, 900)), int(rng.integers(1, 60))) for _ in range(12)]
    calls = [(f"{n}", float(rng.uniform(0, 3)), *size) for n, size in enumerate(sizes)]
    calls.sort(key=lambda call: call[1])
    fast = _batched(speed, calls)
    slow = _stepwise(speed, calls)
    assert fast.keys() == slow.keys()
    longest = speed.decode * (1 + speed.crowd * len(calls)) * 2
    assert all(abs(fast[id] - slow[id]) < longest for id in fast), "steps are not cut by arrivals"


def _batched(speed: Speed, calls: list[tuple[str, float, int, int]]) -> dict[str, float]:
    model, waiting, out = Batched(speed), list(calls), dict[str, float]()
    while len(out) < len(calls):
        end, id = model.next()
        if waiting and waiting[0][1] <= end:
            id, at, prompt, output = waiting.pop(0)
            work = CallWork("s", prompt, output)
            model.start(Task(id, Workflow("w", 0.0), work), SimulatedCall(work, prompt, output), at)
        else:
            model.end(id, end)
            out[id] = end
    return out


def _stepwise(speed: Speed, calls: list[tuple[str, float, int, int]]) -> dict[str, float]:
    now, waiting, running, out = 0.0, list(calls), dict[str, int](), dict[str, float]()
    while len(out) < len(calls):
        if waiting and waiting[0][1] <= now:
            id, _, prompt, output = waiting.pop(0)
            now += prompt * speed.prefill
            running[id] = output
        elif running:
            now += speed.decode * (1 + speed.crowd * (len(running) - 1))
            running = {id: left - 1 for id, left in running.items()}
            out.update({id: now for id, left in running.items() if not left})
            running = {id: left for id, left in running.items() if left}
        else:
            now = waiting[0][1]
    return out


def test_late_work_is_cancelled_where_that_is_asked_for() -> None:
    """One slow instance, three workflows of two calls of 2 s: the late ones end at their deadline."""
    jobs = [SimulatedJob(0.0, stages(("a", 1), ("a", 1)), 3.0) for _ in range(2)]
    jobs.append(SimulatedJob(6.5, stages(("a", 1), ("a", 1)), 6.0))

    def run(cancels: bool) -> Simulation:
        only = SecondsTable({"slow": {"a": 2.0}})
        instances = {"s": Instance("s", "slow")}
        made = Dispatcher(instances, Balanced(only), ArrivalOrder(), only)
        simulation = Simulation(made, {"s": Predicted(only, instances["s"])}, jobs, cancels=cancels)
        simulation.run()
        return simulation

    plain, cancelled = run(False).outcome, run(True).outcome
    assert plain.finished == {"w0": 6.0, "w1": 8.0, "w2": 5.5} and plain.met["w2"]
    assert cancelled.finished == {"w0": 4.0, "w1": 4.0, "w2": 4.0} and cancelled.met == plain.met


def test_the_shortest_queue_counts_calls_for_slots() -> None:
    instances = [Instance("one", "fast", 1), Instance("four", "slow", 4)]
    flow = Workflow("w", 0.0)
    placed = ShortestQueue().assign([Task(f"{n}", flow, CallWork("a")) for n in range(5)], instances, 0.0)
    assert [at.name for _, at in placed] == ["one", "four", "four", "four", "four"]
