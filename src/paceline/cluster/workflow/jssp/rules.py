"""Dispatching rules, in the same environment: what a policy must beat."""

from collections.abc import Callable, Sequence

import numpy as np

from paceline.cluster.workflow.jssp.env import NEVER_TIME, Env
from paceline.cluster.workflow.jssp.problem import Ints, Problem, Schedule


def spt(env: Env) -> Ints:
    """Shortest processing time of the next operation."""
    return np.take_along_axis(env.took, env.next[:, :, None], 2)[:, :, 0]


def mtwr(env: Env) -> Ints:
    """Most total work remaining."""
    behind = np.arange(env.took.shape[2]) < env.next[:, :, None]
    left: Ints = np.where(behind, 0, env.took).sum(2)
    return -left


def fifo(env: Env) -> Ints:
    """The job that has waited longest since its last operation."""
    return env.ended


DISPATCHING_RULES: dict[str, Callable[[Env], Ints]] = {"SPT": spt, "MTWR": mtwr, "FIFO": fifo}


def dispatch(problems: Sequence[Problem], rule: Callable[[Env], Ints]) -> list[Schedule]:
    """Whenever operations can start, the one with the least value starts; never a No-Op."""
    env = Env(problems)
    while not env.done.all():
        rows = np.flatnonzero(~env.done)
        values = np.where(env.legal()[:, :-1], rule(env), NEVER_TIME)
        env.act(rows, values[rows].argmin(1))
    return env.schedules()


def drawn(problems: Sequence[Problem], rng: np.random.Generator, idle: float = 0.1) -> list[Schedule]:
    """Legal actions at random, No-Op with the chance `idle` where it is legal."""
    env = Env(problems)
    while not env.done.all():
        rows = np.flatnonzero(~env.done)
        legal = env.legal()[rows]
        luck = np.where(legal, rng.random(legal.shape), -1.0)
        wait = legal[:, -1] & (rng.random(len(rows)) < idle)
        env.act(rows, np.where(wait, env.jobs, luck[:, :-1].argmax(1)))
    return env.schedules()
