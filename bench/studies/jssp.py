"""Best of 32 draws of a learned dispatching rule against fixed rules, on job shops with known bounds.

    python bench/studies/jssp.py --policy jssp.safetensors --problems benchmark_instances.json [--names ta41-ta80]

Gaps are makespan over the best known upper bound. `untrained` is the same network before training, best of 32 as well:
it shows what the draws alone bring.
"""

import argparse
import re
from pathlib import Path
from time import monotonic

import numpy as np
import torch

from paceline.cluster.learn.dispatcher import DispatchNetwork, load, solve
from paceline.cluster.workflow.jssp.problem import faults, read
from paceline.cluster.workflow.jssp.rules import DISPATCHING_RULES, dispatch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--problems", type=Path, required=True)
    parser.add_argument("--names", default="ta41-ta80", help="FIRST-LAST, of one prefix")
    parser.add_argument("--every", type=int, default=1, help="every n-th only")
    given = parser.parse_args()
    known, network = read(given.problems), load(given.policy)
    torch.manual_seed(0)
    fresh = DispatchNetwork()
    prefix, first, last = re.fullmatch(r"([a-z]+)(\d+)-[a-z]+(\d+)", given.names).groups()  # type: ignore[union-attr]
    gaps: dict[str, list[float]] = {}
    for number in range(int(first), int(last) + 1, given.every):
        problem = known[f"{prefix}{number:02d}"]
        began = monotonic()
        made = {name: dispatch([problem], rule)[0] for name, rule in DISPATCHING_RULES.items()}
        made["learned"], made["untrained"] = solve(network, problem), solve(fresh, problem)
        assert not any(faults(problem, schedule) for schedule in made.values())
        assert problem.upper is not None
        for name, schedule in made.items():
            gaps.setdefault(name, []).append(100.0 * (schedule.makespan(problem) / problem.upper - 1.0))
        shown = ", ".join(f"{name} {schedule.makespan(problem)}" for name, schedule in made.items())
        size = f"{problem.jobs}x{problem.places}"
        print(
            f"{problem.name} {size} [{problem.lower}, {problem.upper}]: {shown}; {monotonic() - began:.0f} s",
            flush=True,
        )
    for name, values in gaps.items():
        print(f"{name}: mean gap {np.mean(values):.1f} % (most {max(values):.1f} %) over {len(values)} problems")


if __name__ == "__main__":
    main()
