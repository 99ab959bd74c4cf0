"""Job shops: files, the checker, the environment against propagation, and the optimum of ft06 by search."""

import os
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from paceline.cluster.workflow.jssp import cp
from paceline.cluster.workflow.jssp.env import Env
from paceline.cluster.workflow.jssp.problem import Problem, Schedule, faults, random_problem, read, shifted
from paceline.cluster.workflow.jssp.rules import DISPATCHING_RULES, dispatch, drawn
from paceline.core.errors import InputError

SHARED = Path(os.environ.get("PACELINE_SHARED", "../shared")) / "data" / "jssp" / "benchmark_instances.json"
FT06 = """6 6
2 1 0 3 1 6 3 7 5 3 4 6
1 8 2 5 4 10 5 10 0 10 3 4
2 5 3 4 5 8 0 9 1 1 4 7
1 5 0 5 2 5 3 3 4 8 5 9
2 9 1 3 4 5 5 4 0 3 3 1
1 3 3 3 5 9 0 10 4 4 2 1
"""


@pytest.fixture
def ft06(tmp_path: Path) -> Problem:
    path = tmp_path / "ft06.txt"
    path.write_text("# Fisher and Thompson\n" + FT06)
    return read(path)["ft06"]


def test_the_checker_finds_what_is_wrong() -> None:
    problem = Problem("p", ((0, 1), (1, 0)), ((3, 2), (4, 1)))
    assert faults(problem, Schedule(((0, 4), (0, 4)))) == []
    assert "before 3" in faults(problem, Schedule(((0, 2), (4, 8))))[0]
    assert "overlap on machine 1" in faults(problem, Schedule(((0, 3), (0, 4))))[0]
    assert "other operations" in faults(problem, Schedule(((0,), (0, 4))))[0]
    held = Problem("p", ((0, 1), (1, 0)), ((3, 2), (4, 1)), holds=(0, 2))
    assert "held until 2" in faults(held, Schedule(((0, 4), (0, 4))))[0]


def test_random_play_is_feasible_on_all_problems() -> None:
    if not SHARED.is_file():
        pytest.skip(f"{SHARED} is not here")
    problems = read(SHARED)
    assert len(problems) == 162
    for problem in problems.values():
        if problem.size <= 250:
            for schedule in drawn([problem] * 2, np.random.default_rng(0)):
                assert faults(problem, schedule) == [] and schedule.makespan(problem) >= (problem.lower or 0)


@pytest.mark.full
def test_rules_and_random_play_are_feasible_on_all_problems() -> None:
    if not SHARED.is_file():
        pytest.skip(f"{SHARED} is not here")
    for problem in read(SHARED).values():
        made = [
            *drawn([problem], np.random.default_rng(1)),
            *(dispatch([problem], rule)[0] for rule in DISPATCHING_RULES.values()),
        ]
        for schedule in made:
            assert faults(problem, schedule) == [] and schedule.makespan(problem) >= (problem.lower or 0)


@pytest.mark.parametrize("seed", range(6))
def test_the_environment_is_the_propagated_model(seed: int) -> None:
    """Bounds, legal actions and the result of random play are those of the generic model at its fixed point."""
    rng = np.random.default_rng(seed)
    made = random_problem(rng, 4, 3)
    problem = Problem(
        "p",
        made.machines,
        made.durations,
        holds=tuple(int(h) for h in rng.integers(0, 60, 3)),
        releases=tuple(int(r) for r in rng.integers(0, 90, 4)),
    )
    slow, fast, one = cp.JobShopModel(problem), Env([problem]), np.zeros(1, int)
    while not fast.done[0]:
        legal = set(np.flatnonzero(fast.legal()[0]).tolist())
        assert legal == {each % 5 for each in slow.legal()} and slow.now == fast.now[0]
        for job, bound in slow.frontier().items():
            assert fast.bound[0, job] == bound
        action = int(rng.choice(sorted(legal)))
        slow.act(action if action < 4 else -1)
        fast.act(one, np.array([action]))
    assert fast.schedules()[0] == slow.schedule() and faults(problem, slow.schedule()) == []


def test_propagation_gives_the_bounds_of_brute_force() -> None:
    """After some starts, the earliest start of each next operation is the least over all completions."""
    rng = np.random.default_rng(7)
    for _ in range(8):
        problem = random_problem(rng, 3, 3)
        model = cp.JobShopModel(problem)
        for _ in range(3):
            model.act(int(rng.choice([job for job in model.legal() if job >= 0])))
        frontier, least, now = model.frontier(), dict[int, int](), model.now
        for orders in permutations(range(3)):
            for first in frontier:
                order = [first, *(job for job in orders if job != first)]
                starts = _serial(problem, model, order, now)
                for job in frontier:
                    least[job] = min(least.get(job, 1 << 30), starts[job])
        assert all(least[job] == start for job, start in frontier.items())


def _serial(problem: Problem, model: cp.JobShopModel, order: list[int], now: int) -> dict[int, int]:
    """Start of each job's next operation if the jobs' next operations are placed in this order."""
    free, out = [0] * 3, dict[int, int]()
    done = [now] * 3
    for job, row in enumerate(model.jobs):
        for place, interval in enumerate(row[: model.next[job]]):
            free[problem.machines[job][place]] = max(free[problem.machines[job][place]], interval.end)
            done[job] = max(now, interval.end)
    for job in order:
        if model.next[job] < 3:
            machine = problem.machines[job][model.next[job]]
            out[job] = max(done[job], free[machine])
            free[machine] = out[job] + problem.durations[job][model.next[job]]
    return out


def test_search_over_dispatching_with_no_op_reaches_the_optimum_of_ft06(ft06: Problem) -> None:
    """Many draws of the environment's own actions, No-Op among them, around most work remaining."""
    rng, env = np.random.default_rng(0), Env([ft06] * 3000)
    while not env.done.all():
        rows = np.flatnonzero(~env.done)
        legal = env.legal()[rows]
        noisy = DISPATCHING_RULES["MTWR"](env)[rows] - 3.0 * rng.gumbel(size=(len(rows), 6))
        waits = legal[:, -1] & (rng.random(len(rows)) < 0.1)
        env.act(rows, np.where(waits, 6, np.where(legal[:, :-1], noisy, np.inf).argmin(1)))
    assert env.makespans().min() == 55
    assert faults(ft06, env.schedules()[int(env.makespans().argmin())]) == []


def test_left_shifted_schedules_are_earlier_and_feasible() -> None:
    rng = np.random.default_rng(3)
    problem = random_problem(rng, 6, 4)
    [schedule] = drawn([problem], rng, idle=0.5)
    early = shifted(problem, schedule)
    assert faults(problem, early) == []
    assert all(a <= b for x, y in zip(early.starts, schedule.starts) for a, b in zip(x, y))
    assert shifted(problem, early) == early


def test_files_that_are_none(tmp_path: Path) -> None:
    for name, text in (("a.txt", "2 2\n0 1 1 1\n"), ("b.txt", "x"), ("c.json", "[]"), ("d.json", '{"p": {}}')):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match="not a job-shop problem"):
            read(tmp_path / name)
    with pytest.raises(InputError, match="one shape"):
        Env([random_problem(np.random.default_rng(0), 2, 2), random_problem(np.random.default_rng(0), 3, 2)])
