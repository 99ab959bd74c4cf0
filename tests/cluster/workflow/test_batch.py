"""Workflows with fixed assignment as a job shop."""

import numpy as np
import pytest

from paceline.cluster.workflow.baselines import ArrivalOrder, Planned, RoundRobin
from paceline.cluster.workflow.batch import BatchPlanner
from paceline.cluster.workflow.dispatch import Dispatcher
from paceline.cluster.workflow.jssp.problem import Problem, Schedule, faults, random_problem, shifted
from paceline.cluster.workflow.jssp.rules import DISPATCHING_RULES, dispatch, drawn
from paceline.cluster.workflow.predict import SecondsTable
from paceline.cluster.workflow.simulate import Fault, SimulatedCall, SimulatedJob
from paceline.cluster.workflow.tasks import CallWork, Instance, Queue, WorkflowPlanner
from paceline.core.errors import InputError
from tests.cluster.workflow.scenes import exact


def luckiest(problem: Problem) -> Schedule:
    made = [*drawn([problem] * 200, np.random.default_rng(0)), dispatch([problem], DISPATCHING_RULES["MTWR"])[0]]
    return shifted(problem, min(made, key=lambda schedule: schedule.makespan(problem)))


def setting(problem: Problem) -> tuple[SecondsTable, list[SimulatedJob]]:
    steps = {f"{j}.{k}": problem.durations[j][k] / 1e3 for j in range(problem.jobs) for k in range(problem.places)}
    jobs = []
    for j, row in enumerate(problem.machines):
        after = [(k - 1,) if k else () for k in range(len(row))]
        calls = (SimulatedCall(CallWork(f"{j}.{k}"), 0, 0, after[k], pinned=f"m{m}") for k, m in enumerate(row))
        jobs.append(SimulatedJob(0.0, (tuple(calls),)))
    return SecondsTable({f"m{m}": dict(steps) for m in range(problem.count)}), jobs


def cluster(table: SecondsTable, count: int, planner: WorkflowPlanner, queue: Queue, slots: int = 1) -> Dispatcher:
    return Dispatcher({f"m{m}": Instance(f"m{m}", f"m{m}", slots) for m in range(count)}, planner, queue, table)


def test_a_batch_takes_what_its_schedule_says() -> None:
    for seed in range(5):
        problem = random_problem(np.random.default_rng(seed), 7, 4)
        table, jobs = setting(problem)
        planner = BatchPlanner(table, luckiest)
        done = exact(cluster(table, 4, planner, Planned()), jobs)
        plan = luckiest(problem)
        assert faults(problem, plan) == []
        assert done.end == pytest.approx(plan.makespan(problem) / 1e3) and planner.solved == 1, (
            "semi-active order, followed to the end"
        )
        first_come = exact(cluster(table, 4, RoundRobin(), ArrivalOrder()), jobs)
        assert done.end <= first_come.end + 1e-9


def test_it_is_solved_anew_when_work_comes_and_when_an_instance_is_lost() -> None:
    table, jobs = setting(random_problem(np.random.default_rng(9), 5, 3))
    late = [SimulatedJob(0.05 * n, job.stages) for n, job in enumerate(jobs)]
    planner = BatchPlanner(table, lambda problem: dispatch([problem], DISPATCHING_RULES["MTWR"])[0])
    done = exact(cluster(table, 3, planner, Planned()), late, [Fault(0.1, "m1"), Fault(0.4, "m1", True)])
    assert len(done.finished) == 5 and planner.solved >= 5


def test_what_is_no_job_shop_is_refused() -> None:
    table, jobs = setting(random_problem(np.random.default_rng(1), 2, 2))
    planner = BatchPlanner(table, luckiest)
    with pytest.raises(InputError, match="one slot"):
        exact(cluster(table, 2, planner, Planned(), slots=2), jobs)
    loose = SimulatedJob(0.0, ((SimulatedCall(CallWork("0.0"), 0, 0), SimulatedCall(CallWork("0.1"), 0, 0)),))
    with pytest.raises(InputError, match="not a chain of pinned calls"):
        exact(cluster(table, 2, BatchPlanner(table, luckiest), Planned()), [loose])
