"""HexGen against its ablations in the simulator: the shortest deadline that 95 % of text-to-SQL workflows keep.

    python bench/studies/workflow_hexgen.py [--seeds 10] [--questions 200] [--rate 0.09]
    python bench/studies/workflow_hexgen.py --loads 0.6,0.7,0.8,0.9,1.0,1.1 [--room 60000] [--scale 2] [--cancel]

For each policy the deadline, a multiple of the mean time of a typical workflow, is searched to 0.1: policies know the
deadline, so each is a run of its own. Alpha is tuned on a window of other questions, as beside real engines.
Ratios are over HexGen, with 95 % intervals over seeds (t).

With `--loads` the deadline is fixed (`--scale` times the typical workflow's mean time) and the load is swept, as a
share of what the engines finish when they are never idle: workflows in time, by policy, and HexGen's lead over
each other one, seed by seed. `--room` is the K/V cache of an engine in tokens; `--cancel` ends what is late.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import stats

from paceline.cluster.workflow.dispatch import Dispatcher
from paceline.cluster.workflow.models import Batched
from paceline.cluster.workflow.policies import DispatcherSetup
from paceline.cluster.workflow.simulate import SimulatedJob, SimulatedRun, Simulation
from paceline.cluster.workflow.text2sql import SPEEDS, base, questions
from paceline.cluster.workflow.tune import GRID, best

CLUSTER = ("A100", "A100", "L40S", "L40S", "A6000", "A6000")
SWEPT = ("rr+fcfs", "shortest+fcfs", "balanced+fcfs", "balanced+urgency", "hexgen+fcfs", "hexgen")
POLICIES = ("hexgen", "hexgen+fcfs", "balanced+urgency", "balanced+fcfs", "rr+urgency", "rr+fcfs")
SLOTS = 8


def setup(policy: str, alpha: float, patience: float) -> DispatcherSetup:
    prior = {kind: (0.0, 1e3 * speed.prefill, 1e3 * speed.decode) for kind, speed in SPEEDS.items()}
    instances = tuple((f"{kind}-{n}", kind, SLOTS) for n, kind in enumerate(CLUSTER))
    return DispatcherSetup(policy, instances, prior, alpha, patience)


def run(
    policy: str, jobs: list[SimulatedJob], alpha: float = 0.3, patience: float = float("inf"),
    room: float = float("inf"), cancels: bool = False,
) -> SimulatedRun:  # fmt: skip
    made: Dispatcher = setup(policy, alpha, patience).dispatcher()
    for instance in made.instances.values():
        instance.room = room
    models: dict[str, Any] = {name: Batched(SPEEDS[each.kind]) for name, each in made.instances.items()}
    return Simulation(made, models, jobs, cancels=cancels).run()


def due(jobs: list[SimulatedJob], scale: float) -> list[SimulatedJob]:
    return [replace(job, deadline=scale * base()) for job in jobs]


def tightest(attain: Callable[[float], float], low: float = 1.0, high: float = 26.0, step: float = 0.1) -> float:
    """The smallest scale at which 95 % are in time, by bisection."""
    while high - low > step:
        middle = (low + high) / 2
        low, high = (low, middle) if attain(middle) >= 0.95 else (middle, high)
    return high


def deadline(policy: str, jobs: list[SimulatedJob], alpha: float, patience: float) -> float:
    return tightest(lambda scale: run(policy, due(jobs, scale), alpha, patience).attainment())


def ratio(values: list[float]) -> str:
    mean, half = np.mean(values), stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return f"{mean:.2f} ({mean - half:.2f} to {mean + half:.2f}), most {max(values):.2f}"


def capacity(room: float, seed: int, count: int) -> float:
    """Questions a second that the engines finish when all come at once."""
    jobs = questions(count, 1e6, np.random.default_rng([seed, 3]), float("inf"))
    return count / run("balanced+fcfs", jobs, room=room).end


def sweep(given: argparse.Namespace) -> None:
    whole = float(np.mean([capacity(given.room, seed, given.questions) for seed in range(2)]))
    print(
        f"capacity {whole:.4f} questions a second; deadline {given.scale} x {base():.0f} s; room {given.room:g} tokens"
    )
    for load in map(float, given.loads.split(",")):
        shares: dict[str, list[float]] = {policy: [] for policy in SWEPT}
        for seed in range(given.seeds):
            window = due(questions(60, load * whole, np.random.default_rng([seed, 1]), 1.0), given.scale)
            jobs = due(questions(given.questions, load * whole, np.random.default_rng([seed, 2]), 1.0), given.scale)
            alpha = best(lambda a, work: run("hexgen", list(work), a, room=given.room, cancels=given.cancel), window)
            for policy in SWEPT:
                shares[policy].append(run(policy, jobs, alpha, room=given.room, cancels=given.cancel).attainment())
        print(f"load {load:.0%}: " + ", ".join(f"{p} {np.mean(v):.3f}" for p, v in shares.items()), flush=True)
        for policy in SWEPT[:-1]:
            lead = np.array(shares["hexgen"]) - np.array(shares[policy])
            half = stats.t.ppf(0.975, len(lead) - 1) * stats.sem(lead)
            print(f"  hexgen - {policy}: {lead.mean():+.3f} ({lead.mean() - half:+.3f} to {lead.mean() + half:+.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--rate", type=float, default=0.09)
    parser.add_argument("--patience", type=float, default=float("inf"))
    parser.add_argument("--loads", default="")
    parser.add_argument("--room", type=float, default=float("inf"))
    parser.add_argument("--scale", type=float, default=2.0)
    parser.add_argument("--cancel", action="store_true")
    given = parser.parse_args()
    if given.loads:
        sweep(given)
        return
    scales: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    regret = []
    for seed in range(given.seeds):
        window = questions(100, given.rate, np.random.default_rng([seed, 1]), 1.0)
        jobs = questions(given.questions, given.rate, np.random.default_rng([seed, 2]), 1.0)
        aim = deadline("balanced+urgency", window, 0.0, given.patience)
        alpha = best(lambda a, work: run("hexgen", list(work), a, given.patience), due(window, aim))
        hindsight = {a: deadline("hexgen", jobs, a, given.patience) for a in GRID}
        regret.append(hindsight[alpha] / min(hindsight.values()))
        for policy in POLICIES:
            scales[policy].append(deadline(policy, jobs, alpha, given.patience))
        shown = "  ".join(f"{policy} {scales[policy][-1]:.2f}" for policy in POLICIES)
        print(f"seed {seed}: alpha {alpha}, over the best in hindsight {regret[-1]:.3f};  {shown}", flush=True)
    for policy in POLICIES[1:]:
        values = [a / b for a, b in zip(scales[policy], scales["hexgen"])]
        print(f"{policy:18} deadline at 95 % over hexgen: {ratio(values)}")
    print(f"alpha of the window over the best in hindsight: mean {np.mean(regret):.3f}, most {max(regret):.3f}")


if __name__ == "__main__":
    main()
