"""Training of the dispatching rule without reward or critic: first a solver's schedules are imitated, then the rule's
own draws are held against a solver's completions (arXiv 2306.05747, 4)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from torch import Tensor

from paceline.cluster.learn.dispatcher import NO, DispatchNetwork, best_of, logits
from paceline.cluster.learn.state import go_on, keep, weights
from paceline.cluster.workflow.jssp.env import Env
from paceline.cluster.workflow.jssp.problem import Problem, Schedule, random_problem
from paceline.cluster.workflow.jssp.rules import dispatch, mtwr
from paceline.cluster.workflow.jssp.solver import complete

Seen = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class ImitationPlan:
    """How long and how hard to train."""

    minutes: float = 15.0
    lessons: float = 0.4
    """Share of the time in which the solver's schedules are imitated, before the rule's own draws are improved."""
    problems: int = 4
    """An update, of one shape."""
    solver_seconds: float = 1.0
    """Time limit of CP-SAT for each completion, in seconds; for each lesson three times as long."""
    jobs: tuple[int, int] = (15, 30)
    machines: tuple[int, int] = (15, 15)
    """Shapes are drawn between these."""
    rate: float = 2e-3
    clip: float = 0.3
    epochs: int = 6
    most_kl: float = 0.05
    """An update ends when the policy has moved so far."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ImitationProgress:
    """Result of one update: mean makespan of the policy's draws divided by that of the solver's completions, and the
    time used."""

    update: int
    ratio: float
    seconds: float
    solving: float
    """Seconds of CP-SAT so far."""


@dataclass(slots=True)
class LabelledSteps:
    """States with an action and its weight in the loss."""

    seen: list[Seen]
    actions: list[int]
    weights: list[float]


def train(
    plan: ImitationPlan,
    report: Callable[[ImitationProgress], None] = lambda progress: None,
    state: Path | None = None,
) -> tuple[DispatchNetwork, int]:
    """A network after `plan.minutes` of training, and its number of updates. The weights kept are those that did best
    on held-out random problems (best of 8 draws), among every tenth update's. With `state` the run is kept in that
    file, and goes on from it where it is there."""
    torch.manual_seed(plan.seed)
    network, rng = DispatchNetwork(), np.random.default_rng([plan.seed, 1])
    optimiser = torch.optim.Adam(network.parameters(), lr=plan.rate, eps=1e-5)
    held = [random_problem(np.random.default_rng([plan.seed, 2, n]), *shape) for n, shape in enumerate(HELD_OUT_SIZES)]
    before, update, solving, lessons = 0.0, 0, 0.0, list[Lesson]()
    if state is not None and state.exists():
        found = go_on(state, network, optimiser, rng, plan.seed)
        before, update, solving, best = found["used"], found["update"], found["solving"], found["best"]
    else:
        best = (_held(network, held), weights(network))
    begun, whole = monotonic(), 60.0 * plan.minutes
    while (used := before + monotonic() - begun) < whole:
        for group in optimiser.param_groups:
            group["lr"] = plan.rate * max(0.05, 1.0 - used / whole)
        shape = int(rng.integers(*plan.jobs, endpoint=True)), int(rng.integers(*plan.machines, endpoint=True))
        if used < plan.lessons * whole:
            made, ratio, spent = lesson(random_problem(rng, *shape), plan)
            lessons = [*lessons[1 - LESSONS_KEPT :], made]
            imitate(network, optimiser, lessons, rng)
        else:
            steps, ratio, spent = collect(
                network, [random_problem(rng, *shape) for _ in range(plan.problems)], plan, rng
            )
            learn(network, optimiser, steps, plan, rng)
        solving, update = solving + spent, update + 1
        report(ImitationProgress(update, ratio, before + monotonic() - begun, solving))
        if update % 10 == 0:
            if (now := _held(network, held)) < best[0]:
                best = (now, weights(network))
            if state is not None:
                rest = {"used": before + monotonic() - begun, "update": update, "solving": solving, "best": best}
                keep(state, network, optimiser, rng, {**rest, "seed": plan.seed})
    network.load_state_dict(best[1])
    return network, update


LESSONS_KEPT = 40
"""Lessons that are repeated."""
Lesson = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Observations, legal actions, and which actions the solver's schedule takes then [states, jobs + 1]."""


def lesson(problem: Problem, plan: ImitationPlan) -> tuple[Lesson, float, float]:
    """The states along a solver's schedule; then the makespan of most work remaining over the solver's, and the
    solver's seconds."""
    [warm], begun = dispatch([problem], mtwr), monotonic()
    better, _ = complete(problem, warm, 3.0 * plan.solver_seconds)
    spent = monotonic() - begun
    env, one, rows = Env([problem]), np.zeros(1, int), list[tuple[Tensor, ...]]()
    while not env.done[0]:
        legal = env.legal()
        due = np.zeros_like(legal)
        for job in np.flatnonzero(legal[0][:-1]):
            due[0, job] = better.starts[job][int(env.next[0, job])] == env.now[0]
        due[0, -1] = not due.any()
        if legal.sum() > due.sum():
            rows.append(tuple(torch.from_numpy(each) for each in (*env.observe(one), legal, due)))
        env.act(one, due[0].argmax(keepdims=True))
    a, b, c, d, e = (torch.cat(side) for side in zip(*rows))
    return (a, b, c, d, e), warm.makespan(problem) / better.makespan(problem), spent


def imitate(
    network: DispatchNetwork, optimiser: torch.optim.Optimizer, lessons: Sequence[Lesson], rng: np.random.Generator
) -> None:
    """Some steps up the chance of what the solver does, on states drawn from the newest lesson and five others."""
    for number in [len(lessons) - 1, *rng.integers(0, len(lessons), 5).tolist()]:
        *seen, due = lessons[number]
        for part in torch.split(torch.from_numpy(rng.permutation(len(due))), 128):
            scores = network(*(side[part] for side in seen))
            wanted = scores.masked_fill(~due[part], NO).logsumexp(1)
            loss = (scores.logsumexp(1) - wanted).mean()
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()


HELD_OUT_SIZES = ((15, 10), (20, 10), (15, 15), (30, 10), (20, 15), (30, 15))


def _held(network: DispatchNetwork, problems: Sequence[Problem]) -> float:
    return float(np.mean([got / problem.size for got, problem in zip(best_of(network, problems, 8), problems)]))


def collect(
    network: DispatchNetwork, problems: Sequence[Problem], plan: ImitationPlan, rng: np.random.Generator
) -> tuple[LabelledSteps, float, float]:
    """One update's states: draw a schedule for each problem, cut it at one place, let the solver complete it from
    there. Its suffix is weighted by how much it improved, the policy's own by minus that, and what led there by how
    good the completion is among its peers'."""
    took, env = roll(network, problems, rng)
    cut = int(rng.integers(1, min(len(each) for each in took) - 1))
    own = env.schedules()
    gains, ends, suffixes, begun = [], [], [], monotonic()
    for problem, history, schedule in zip(problems, took, own):
        at = Env([problem])
        for action in history[:cut]:
            at.act(np.zeros(1, int), np.array([action]))
        fixed = {(j, k): schedule.starts[j][k] for j in range(problem.jobs) for k in range(int(at.next[0, j]))}
        better, _ = complete(problem, schedule, plan.solver_seconds, fixed, int(at.now[0]))
        before, after = schedule.makespan(problem), better.makespan(problem)
        gains.append((before - after) / before)
        ends.append(after / problem.size)
        suffixes.append(trace(problem, better, history[:cut]))
    spent = monotonic() - begun
    high = max(gains) or 1.0
    spread = float(np.std(ends)) or 1.0
    lines: list[tuple[Problem, Sequence[int], list[float]]] = []
    for problem, history, good, gain, end in zip(problems, took, suffixes, gains, ends):
        level = -(end - float(np.mean(ends))) / spread if len(ends) > 1 else 0.0
        lines.append((problem, [*history[:cut], *good], [level] * cut + [gain / high] * len(good)))
        lines.append((problem, history, [0.0] * cut + [-gain / high] * (len(history) - cut)))
    ratio = np.mean([own[n].makespan(p) / (ends[n] * p.size) for n, p in enumerate(problems)])
    return states(lines), float(ratio), spent


def roll(
    network: DispatchNetwork, problems: Sequence[Problem], rng: np.random.Generator
) -> tuple[list[list[int]], Env]:
    """Schedules drawn by the policy: actions of each, and the environment at its end."""
    env, took = Env(problems), [list[int]() for _ in problems]
    with torch.inference_mode():
        while not env.done.all():
            rows = np.flatnonzero(~env.done)
            chances = logits(network, env, rows).softmax(1).double().numpy()
            drawn = (chances.cumsum(1) > rng.random((len(rows), 1))).argmax(1)
            env.act(rows, drawn)
            for row, action in zip(rows, drawn):
                took[row].append(int(action))
    return took, env


def trace(problem: Problem, schedule: Schedule, history: Sequence[int]) -> list[int]:
    """The actions that make a semi-active schedule, after those of `history`."""
    env, one, out = Env([problem]), np.zeros(1, int), list[int]()
    for action in history:
        env.act(one, np.array([action]))
    while not env.done[0]:
        legal = np.flatnonzero(env.legal()[0][:-1])
        due = [int(j) for j in legal if schedule.starts[j][int(env.next[0, j])] == env.now[0]]
        out.append(due[0] if due else env.jobs)
        env.act(one, np.array(out[-1:]))
    return out


def states(lines: Sequence[tuple[Problem, Sequence[int], Sequence[float]]]) -> LabelledSteps:
    """States along each line's actions, all lines in step; those of weight 0, and without a choice, left out."""
    env, steps = Env([problem for problem, _, _ in lines]), LabelledSteps([], [], [])
    for at in range(max(len(actions) for _, actions, _ in lines)):
        rows = np.array([n for n, (_, actions, _) in enumerate(lines) if at < len(actions)])
        took = np.array([lines[n][1][at] for n in rows])
        weight, legal = np.array([lines[n][2][at] for n in rows]), env.legal()[rows]
        kept = (weight != 0) & (legal.sum(1) > 1)
        if kept.any():
            seen = (*env.observe(rows[kept]), legal[kept])
            steps.seen += [tuple(map(torch.from_numpy, row)) for row in zip(*seen)]  # type: ignore[misc]
            steps.actions += took[kept].tolist()
            steps.weights += weight[kept].tolist()
        env.act(rows, took)
    return steps


def learn(
    network: DispatchNetwork,
    optimiser: torch.optim.Optimizer,
    steps: LabelledSteps,
    plan: ImitationPlan,
    rng: np.random.Generator,
) -> None:
    """PPO's clipped objective, until the policy has moved by `most_kl`."""
    seen = [torch.stack(side) for side in zip(*steps.seen)]
    actions, weights = torch.tensor(steps.actions), torch.tensor(steps.weights)
    with torch.no_grad():
        old = network(*seen).log_softmax(1)
    for _ in range(plan.epochs):
        for part in torch.split(torch.from_numpy(rng.permutation(len(actions))), max(32, len(actions) // 4)):
            new = network(*(side[part] for side in seen)).log_softmax(1)
            ratio = (_at(new, actions[part]) - _at(old[part], actions[part])).exp()
            loss = clipped(ratio, weights[part], plan.clip)
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
        with torch.no_grad():
            new = network(*seen).log_softmax(1)
            moved = (old.exp() * (old - new)).sum(1).mean()
        if float(moved) > plan.most_kl:
            return


def clipped(ratio: Tensor, weights: Tensor, clip: float) -> Tensor:
    """PPO's loss: minus the mean of the lesser of plain and clipped gain."""
    return -torch.minimum(ratio * weights, ratio.clamp(1 - clip, 1 + clip) * weights).mean()


def _at(table: Tensor, actions: Tensor) -> Tensor:
    return table.gather(1, actions[:, None])[:, 0]
