"""CP-SAT's completions: feasible, never worse, and reachable by dispatching."""

import numpy as np
import pytest

from paceline.cluster.learn.imitate import trace
from paceline.cluster.workflow.jssp.env import Env
from paceline.cluster.workflow.jssp.problem import faults, random_problem
from paceline.cluster.workflow.jssp.rules import DISPATCHING_RULES, dispatch, drawn

pytest.importorskip("ortools", reason="needs paceline[jssp]")
from paceline.cluster.workflow.jssp.solver import complete


def test_a_completion_keeps_its_prefix_is_no_worse_and_can_be_dispatched() -> None:
    rng = np.random.default_rng(0)
    for cut in (0, 7, 20):
        problem = random_problem(rng, 6, 5)
        [own] = dispatch([problem], DISPATCHING_RULES["MTWR"])
        history = trace(problem, shifted_own := own, [])[:cut]
        env, one = Env([problem]), np.zeros(1, int)
        for action in history:
            env.act(one, np.array([action]))
        fixed = {(j, k): shifted_own.starts[j][k] for j in range(6) for k in range(int(env.next[0, j]))}
        better, _ = complete(problem, own, 0.5, fixed, int(env.now[0]))
        assert faults(problem, better) == [] and better.makespan(problem) <= own.makespan(problem)
        assert all(better.starts[j][k] == start for (j, k), start in fixed.items())
        for action in trace(problem, better, history):
            env.act(one, np.array([action]))
        assert env.schedules()[0] == better


def test_small_problems_are_solved_to_the_optimum() -> None:
    problem = random_problem(np.random.default_rng(1), 4, 3)
    [warm] = drawn([problem], np.random.default_rng(2), idle=0.6)
    best, proven = complete(problem, warm, 5.0)
    assert proven and best.makespan(problem) < warm.makespan(problem)
    luckiest = min(s.makespan(problem) for s in drawn([problem] * 4000, np.random.default_rng(3)))
    assert best.makespan(problem) <= luckiest
