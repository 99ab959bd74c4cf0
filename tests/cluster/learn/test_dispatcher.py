"""The learned dispatching rule and its training."""

import numpy as np
import pytest
import torch

from paceline.cluster.learn.dispatcher import DispatchNetwork, load, logits, save, solve
from paceline.cluster.learn.imitate import ImitationPlan, clipped, collect, learn, roll, states, trace
from paceline.cluster.workflow.jssp.env import Env
from paceline.cluster.workflow.jssp.problem import Problem, faults, random_problem
from paceline.cluster.workflow.jssp.rules import drawn
from paceline.core.errors import InputError


@pytest.fixture
def network() -> DispatchNetwork:
    torch.manual_seed(0)
    return DispatchNetwork()


def test_permuting_jobs_permutes_logits(network: DispatchNetwork) -> None:
    rng = np.random.default_rng(0)
    problem = random_problem(rng, 7, 4)
    order = rng.permutation(7)
    turned = Problem("t", tuple(problem.machines[j] for j in order), tuple(problem.durations[j] for j in order))
    a, b, one = Env([problem]), Env([turned]), np.zeros(1, int)
    for _ in range(15):
        action = int(rng.choice(np.flatnonzero(a.legal()[0])))
        b.act(one, np.array([7 if action == 7 else int(np.flatnonzero(order == action)[0])]))
        a.act(one, np.array([action]))
        x, y = logits(network, a, one)[0], logits(network, b, one)[0]
        assert torch.allclose(x[[*order, 7]], y, atol=1e-5)


def test_solutions_are_feasible_repeat_and_gain_by_draws(network: DispatchNetwork) -> None:
    problem = random_problem(np.random.default_rng(1), 8, 5)
    best = solve(network, problem, 32)
    assert faults(problem, best) == [] and best == solve(network, problem, 32)
    assert faults(problem, solve(network, problem, 1)) == []
    assert best.makespan(problem) <= np.mean(
        [s.makespan(problem) for s in drawn([problem] * 8, np.random.default_rng(0))]
    )


def test_a_trace_makes_its_schedule_again() -> None:
    from paceline.cluster.workflow.jssp.problem import shifted

    problem = random_problem(np.random.default_rng(2), 6, 4)
    [schedule] = drawn([problem], np.random.default_rng(3), idle=0.4)
    early, env = shifted(problem, schedule), Env([problem])
    for action in trace(problem, early, []):
        env.act(np.zeros(1, int), np.array([action]))
    assert env.schedules()[0] == early


def test_states_of_several_lines_are_those_of_each_alone(network: DispatchNetwork) -> None:
    rng = np.random.default_rng(4)
    problems = [random_problem(rng, 5, 3) for _ in range(3)]
    took, _ = roll(network, problems, rng)
    lines = [(p, actions, [1.0 + n] * len(actions)) for n, (p, actions) in enumerate(zip(problems, took))]
    together, alone = states(lines), [states([line]) for line in lines]
    assert len(together.actions) == sum(len(each.actions) for each in alone)
    for n, each in enumerate(alone):
        mine = [s for s, weight in zip(together.seen, together.weights) if weight == 1.0 + n]
        assert all(torch.equal(x, y) for a, b in zip(mine, each.seen) for x, y in zip(a, b))


def test_ppo_raises_the_good_action_and_stops_at_the_clip() -> None:
    logit = torch.zeros(2, requires_grad=True)
    old = torch.tensor(0.5)
    optimiser = torch.optim.SGD([logit], lr=0.2)
    for _ in range(30):
        ratio = logit.softmax(0)[0] / old
        optimiser.zero_grad()
        torch.autograd.backward(clipped(ratio[None], torch.ones(1), 0.3))
        optimiser.step()
    assert 1.3 <= float(logit.detach().softmax(0)[0] / old) < 1.4, "it could go to 2"


def test_an_update_follows_the_solver(network: DispatchNetwork) -> None:
    pytest.importorskip("ortools", reason="needs paceline[jssp]")
    rng, plan = np.random.default_rng(5), ImitationPlan(solver_seconds=0.3, epochs=3, most_kl=1.0)
    problems = [random_problem(rng, 6, 4) for _ in range(2)]
    steps, ratio, _ = collect(network, problems, plan, rng)
    assert ratio > 1.0, "draws of an untrained rule are worse than the solver's completions"
    good = [n for n, weight in enumerate(steps.weights) if weight > 0.5]
    seen = [torch.stack(side) for side in zip(*(steps.seen[n] for n in good))]
    actions = torch.tensor([steps.actions[n] for n in good])[:, None]

    def chance() -> float:
        with torch.no_grad():
            return float(network(*seen).log_softmax(1).gather(1, actions).mean())

    before = chance()
    for _ in range(3):
        learn(network, torch.optim.Adam(network.parameters(), 3e-3), steps, plan, rng)
    assert chance() > before


def test_files(network: DispatchNetwork, tmp_path) -> None:  # type: ignore[no-untyped-def]
    save(network, tmp_path / "j.safetensors")
    problem = random_problem(np.random.default_rng(6), 4, 3)
    assert solve(load(tmp_path / "j.safetensors"), problem, 4) == solve(network, problem, 4)
    with pytest.raises(InputError, match="job-shop policy"):
        load(tmp_path / "absent")
