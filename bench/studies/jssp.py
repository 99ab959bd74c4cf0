"""Best of 32 draws of a learned dispatching rule against fixed rules, on job shops with known bounds.

    python bench/studies/jssp.py --problems benchmark_instances.json [--policy jssp.safetensors] [--names ta41-ta80]

Gaps are makespan over the best known upper bound. `untrained` is the same network before training, best of 32 as well:
it draws about the rule "most work remaining" and shows what the draws alone bring. With `--solver` CP-SAT gets as many
seconds on one thread as the 32 draws took, from the MTWR schedule on.
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
from paceline.cluster.workflow.jssp.solver import complete


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--solver", action="store_true", help="CP-SAT at equal time")
    parser.add_argument("--problems", type=Path, required=True)
    parser.add_argument("--names", default="ta41-ta80", help="FIRST-LAST, of one prefix")
    parser.add_argument("--every", type=int, default=1, help="every n-th only")
    given = parser.parse_args()
    known = read(given.problems)
    torch.manual_seed(0)
    fresh = DispatchNetwork()
    prefix, first, last = re.fullmatch(r"([a-z]+)(\d+)-[a-z]+(\d+)", given.names).groups()  # type: ignore[union-attr]
    gaps: dict[str, list[float]] = {}
    for number in range(int(first), int(last) + 1, given.every):
        problem = known[f"{prefix}{number:02d}"]
        began = monotonic()
        made = {name: dispatch([problem], rule)[0] for name, rule in DISPATCHING_RULES.items()}
        for name, network in {"untrained": fresh, **({"learned": load(given.policy)} if given.policy else {})}.items():
            started = monotonic()
            made[name] = solve(network, problem)
            took = monotonic() - started
        if given.solver:
            made["CP-SAT"] = complete(problem, made["MTWR"], took)[0]
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
