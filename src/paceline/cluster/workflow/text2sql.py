"""Workflows of text-to-SQL as HexGen-Text2SQL measured them, drawn for the simulator."""

from collections.abc import Sequence

import numpy as np

from paceline.cluster.workflow.models import Speed
from paceline.cluster.workflow.simulate import SimulatedCall, SimulatedJob
from paceline.cluster.workflow.tasks import CallWork

TYPICAL = {
    "retrieve": CallWork("retrieve", 308, 5),
    "keywords": CallWork("keywords", 667, 45),
    "candidates": CallWork("candidates", 11748, 678),
    "revise": CallWork("revise", 5963, 79),
    "unit_tests": CallWork("unit_tests", 1109, 103),
    "run_tests": CallWork("run_tests", 275, 4),
    "evaluate": CallWork("evaluate", 961, 22),
}
"""Mean tokens (prompt, output) by step of CHESS on BIRD."""
REVISIONS, MOST_REVISIONS = 4, 10
"""Rounds of revision: typical and at most."""
STANDARD = (
    "retrieve", "keywords", "retrieve", "retrieve", "retrieve", "candidates",
    *("revise",) * REVISIONS, "unit_tests", "run_tests", "evaluate",
)  # fmt: skip
"""The stages of a typical question."""
SPEEDS = {
    "A100": Speed(0.25e-3, 0.035, 0.05),
    "L40S": Speed(0.35e-3, 0.0545, 0.05),
    "A6000": Speed(0.5e-3, 0.058, 0.05),
}
"""Engines of a 70 B model on four GPUs. Seconds an output token are HexGen's; those a prompt token are taken from peak
rates at half use, and the cost of a batch is an assumption."""


def base(speeds: Sequence[Speed] = tuple(SPEEDS.values())) -> float:
    """Mean seconds of the standard workflow, alone: what deadlines are multiples of."""
    return sum(speed.seconds(TYPICAL[step]) for step in STANDARD for speed in speeds) / len(speeds)


def questions(count: int, rate: float, rng: np.random.Generator, deadline: float, fan: int = 3) -> list[SimulatedJob]:
    """Questions that come at random (Poisson) with `rate` a second. The candidates of a question, 1 to `2 fan - 1`, are
    drafted, revised and tested in parallel; rounds of revision are geometric; tokens vary about the typical ones."""
    at = 0.0
    jobs = []
    for _ in range(count):
        at += float(rng.exponential(1.0 / rate))
        jobs.append(SimulatedJob(at, tuple(_stages(rng, fan)), deadline, tuple(TYPICAL[step] for step in STANDARD)))
    return jobs


def _stages(rng: np.random.Generator, fan: int) -> list[tuple[SimulatedCall, ...]]:
    candidates = int(rng.integers(1, 2 * fan))
    rounds = min(MOST_REVISIONS, int(rng.geometric(1.0 / REVISIONS)))
    width = {"candidates": candidates, "revise": candidates, "run_tests": candidates}
    before = ("retrieve", "keywords", "retrieve", "retrieve", "retrieve", "candidates")
    steps = (*before, *("revise",) * rounds, "unit_tests", "run_tests", "evaluate")
    return [tuple(_call(TYPICAL[step], rng) for _ in range(width.get(step, 1))) for step in steps]


def _call(work: CallWork, rng: np.random.Generator) -> SimulatedCall:
    """Lognormal about the mean: prompts by a quarter, outputs by half."""
    size, length = rng.lognormal(-0.03, 0.25), rng.lognormal(-0.125, 0.5)
    return SimulatedCall(work, max(1.0, work.tokens_in * size), max(1.0, work.tokens_out * length))
