"""Best of 32 draws of a learned dispatching rule against fixed rules, on job shops with known bounds.

    python -m bench.studies.jssp --problems benchmark_instances.json [--policy jssp.safetensors] [--names ta41-ta80]
        [--record FILE.jsonl] [--report]

Gaps are makespan over the best known upper bound, with 95 % intervals over problems. `untrained` is the same network
before training, best of 32 as well: it draws about the rule "most work remaining" and shows what the draws alone bring.
With `--solver` CP-SAT gets as many seconds on one thread as the 32 draws took, from the MTWR schedule on. Without
`--names` all problems of the file are solved, in an order drawn by seed, so what a run that was ended has recorded is a
fair sample; with `--record` each is a JSON line, and the same command goes on where it ended.
"""

import argparse
import json
import random
import re
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch

from bench.studies.intervals import paired, shown
from paceline.cluster.learn.dispatcher import DispatchNetwork, load, solve
from paceline.cluster.workflow.jssp.problem import Problem, faults, read
from paceline.cluster.workflow.jssp.rules import DISPATCHING_RULES, dispatch
from paceline.cluster.workflow.jssp.solver import complete


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, help="made by paceline train jssp")
    parser.add_argument("--solver", action="store_true", help="CP-SAT at equal time")
    parser.add_argument("--problems", type=Path, required=True)
    parser.add_argument("--names", default="", help="FIRST-LAST, of one prefix")
    parser.add_argument("--every", type=int, default=1, help="every n-th only")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--report", action="store_true", help="of what is recorded, and solve nothing")
    given = parser.parse_args()
    kept: list[dict[str, Any]] = []
    if given.record is not None and given.record.exists():
        kept = [json.loads(line) for line in given.record.read_text(encoding="utf-8").splitlines()]
    known = read(given.problems)
    names = sorted(known)
    random.Random(0).shuffle(names)
    if given.names:
        prefix, first, last = re.fullmatch(r"([a-z]+)(\d+)-[a-z]+(\d+)", given.names).groups()  # type: ignore[union-attr]
        names = [f"{prefix}{number:02d}" for number in range(int(first), int(last) + 1, given.every)]
    torch.manual_seed(0)
    networks = {"untrained": DispatchNetwork(), **({"learned": load(given.policy)} if given.policy else {})}
    done = {each["problem"] for each in kept}
    for name in [] if given.report else names:
        if name not in done:
            kept.append(row := solved(known[name], networks, given.solver))
            print(json.dumps(row), flush=True)
            if given.record is not None:
                with given.record.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    summary([each for each in kept if each["problem"] in names])


def solved(problem: Problem, networks: dict[str, DispatchNetwork], solver: bool) -> dict[str, Any]:
    """Makespans of one problem by each way, and the seconds of the 32 draws."""
    made = {name: dispatch([problem], rule)[0] for name, rule in DISPATCHING_RULES.items()}
    took = 0.0
    for name, network in networks.items():
        began = monotonic()
        made[name] = solve(network, problem)
        took = monotonic() - began
    if solver:
        made["CP-SAT"] = complete(problem, made["MTWR"], took)[0]
    assert not any(faults(problem, schedule) for schedule in made.values())
    assert problem.upper is not None
    spans = {name: schedule.makespan(problem) for name, schedule in made.items()}
    size = f"{problem.jobs}x{problem.places}"
    return {"problem": problem.name, "size": size, "upper": problem.upper, "seconds": round(took, 2), **spans}


def summary(rows: list[dict[str, Any]]) -> None:
    """Mean gaps in per cent, of each set and of all; the learned rule's lead over each other way."""
    if not rows:
        return
    ways = [name for name in rows[0] if name not in ("problem", "size", "upper", "seconds")]
    sets: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        sets.setdefault(re.sub(r"\d+$", "", row["problem"]), []).append(row)
    for title, some in [*sorted(sets.items()), ("all", rows)]:
        said = ", ".join(f"{way} {np.mean(gaps(some, way)):.1f}" for way in ways)
        print(f"{title} ({len(some)} problems), mean gap in %: {said}")
    for way in ways:
        ours = "learned" if "learned" in ways else "untrained"
        print(f"{way}: {shown(gaps(rows, way), 2)}; {ours} - it: {paired(gaps(rows, ours), gaps(rows, way), 2)}")


def gaps(rows: list[dict[str, Any]], way: str) -> list[float]:
    return [100.0 * (row[way] / row["upper"] - 1.0) for row in rows]


if __name__ == "__main__":
    main()
