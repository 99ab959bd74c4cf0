"""Groups of equal shape (EXSPEC) under `auto`, on drawn machines and a virtual clock.

    python bench/studies/grouped.py [--machines 6 --clients 8 --batch 4]

The engine's own desk, planner and cache serve the same texts with groups and without, by `auto`, so that drafts differ
in length between requests and steps. Printed for each machine: steps with a choice, the share of them whose group has
one shape, the share of those in which all have equal rows, and tokens per second of those without groups. Groups are
made twice: where step times decide, and in every step (`forced`).
"""

import argparse
import random
import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from regret import OnMachine, Text, Truth
from regret_machine import ARMS, FACTS, Machine

from paceline.core.noise import SimulationNoise
from paceline.engine.config import EngineConfig
from paceline.plan.cost import StepTimes
from paceline.schedule.exspec import Grouped
from paceline.simulate.figures import figures
from paceline.simulate.log import Arrival, Setup
from paceline.simulate.workload import Speech, Workload, WorkloadJob

SKILL = {"ngram": 0.5, "model": 0.8}


@dataclass(slots=True)
class Watching(OnMachine):
    """A run that looks at the rows of each step whose group is of one shape."""

    forced: bool = False
    seen: dict[str, int] = field(default_factory=lambda: {"alike": 0, "equal": 0})
    _schedule: Grouped | None = None

    def _step(self, twin: Any) -> None:
        if isinstance(twin.desk.schedule, Grouped):
            self._schedule = twin.desk.schedule
            if self.forced:
                self._schedule.forecast = None
        OnMachine._step(self, twin)

    def _taken(self, plan: Any, twin: Any, results: Any, advanced: Any, done: Any) -> Any:
        if self._schedule is not None and self._schedule._alike:
            rows = {item.rows for item in plan.items if item.given == 1 and not item.first}
            self.seen["alike"] += 1
            self.seen["equal"] += len(rows) == 1
        return OnMachine._taken(self, plan, twin, results, advanced, done)


def run(
    machine: Machine, texts: Sequence[Text], clients: int, batch: int | None, forced: bool
) -> tuple[float, Watching]:
    """Tokens per second, and the run."""
    own = deepcopy(machine)
    own.rng = random.Random(1)
    jobs = [
        WorkloadJob(0.0, [Arrival(0.0, i, i, [0] * t.prompt, "auto", ARMS, "exact", t.tokens, judge_free=True,
                                  params={"temperature": 0.0})])
        for i, t in enumerate(texts)
    ]  # fmt: skip
    most = max(t.prompt + t.tokens for t in texts) // 16 + 2
    config = EngineConfig(
        blocks=most * (clients + 1), drafter="auto", prefix_cache=False, cheap_rows=16, group_size=batch
    )
    setup = Setup(config, ("draft",), FACTS, deepcopy(machine).table("clean").dump())
    outputs = {i: Speech([0] * t.tokens, "length") for i, t in enumerate(texts)}
    work = Workload(setup, jobs, outputs, Truth(dict(enumerate(texts))), StepTimes())  # type: ignore[arg-type]
    made = Watching(work, clients, SimulationNoise(0), machine=own, forced=forced)
    return figures(made.run()).throughput, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"machines": 6, "clients": 8, "batch": 4, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    ratios: dict[bool, list[float]] = {False: [], True: []}
    print(
        "machine | groups | steps with a choice | all together | of one shape | of these equal rows | tokens/s, of free"
    )
    for seed in range(args.seed, args.seed + args.machines):
        rng = random.Random(seed)
        machine = Machine.drawn(rng)
        machine.noise, machine.spikes, machine.shift = 0.02, 0.0, (inf, 1.0)
        texts = [replace(Text.drawn(rng, rng.randrange(40, 80), SKILL, 0.0), prompt=rng.choice((40, 60, 150)))
                 for _ in range(3 * args.clients)]  # fmt: skip
        free, _ = run(machine, texts, args.clients, None, False)
        for forced in (False, True):
            speed, made = run(machine, texts, args.clients, args.batch, forced)
            when, seen = made._schedule, made.seen
            assert when is not None
            choices = when.grouped + when.fallback + when.whole
            ratios[forced].append(speed / free)
            print(f"{seed} | {'forced' if forced else 'by step times'} | {choices} | {when.whole} | {when.rate:.0%} | "
                  f"{seen['equal']} of {seen['alike']} | {speed / free:.3f}", flush=True)  # fmt: skip
    for forced, each in ratios.items():
        word = "forced" if forced else "by step times"
        print(f"{word}: mean {geometric_mean(each):.3f}, median {median(each):.3f}, {min(each):.3f}-{max(each):.3f}")


if __name__ == "__main__":
    main()
