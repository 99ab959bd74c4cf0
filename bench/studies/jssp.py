"""Best of 32 draws of a learned dispatching rule against fixed rules, on job shops with known bounds.

    python -m bench.studies.jssp --problems benchmark_instances.json [--policy jssp.safetensors] [--names ta41-ta80]
        [--every N] [--solver] [--record FILE.jsonl] [--report]

Gaps are makespan over the best known upper bound, with 95 % intervals over problems. `untrained` is the same network
before training, best of 32 as well: it draws about the rule "most work remaining" and shows what the draws alone bring.
With `--solver` CP-SAT gets as many seconds on one thread as the 32 draws took, from the MTWR schedule on. Without
`--names` all problems of the file are solved, in an order drawn by seed, so what a run that was ended has recorded is a
fair sample; with `--record` each way's makespan is a JSON line, and the same command goes on where it ended. A way that
is added later is computed for all; another policy or other problems are refused there. Figures are of the problems that
all ways have.
"""

import argparse
import random
import re
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch

from bench.studies.intervals import paired, shown
from bench.studies.judged import Record, digest
from paceline.cluster.learn.dispatcher import DispatchNetwork, load, solve
from paceline.cluster.workflow.jssp.problem import Problem, faults, read
from paceline.cluster.workflow.jssp.rules import DISPATCHING_RULES, dispatch
from paceline.cluster.workflow.jssp.solver import complete

SOLVER_WAY = "CP-SAT"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, help="made by paceline train jssp")
    parser.add_argument("--solver", action="store_true", help="CP-SAT at equal time")
    parser.add_argument("--problems", type=Path, required=True)
    parser.add_argument("--names", default="", help="FIRST-LAST, of one prefix")
    parser.add_argument("--every", type=int, default=1, help="every n-th only")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--report", action="store_true", help="of what is recorded, and solve nothing")
    given = parser.parse_args(words)
    settings = {"problems": digest(given.problems), **({"policy": digest(given.policy)} if given.policy else {})}
    record, known = Record(given.record, settings), read(given.problems)
    names = sorted(known)
    random.Random(0).shuffle(names)
    if given.names:
        if (found := re.fullmatch(r"([a-z]+)(\d+)-[a-z]+(\d+)", given.names)) is None:
            parser.error(f"--names {given.names} is no FIRST-LAST, such as ta41-ta80")
        prefix, first, last = found.groups()
        names = [f"{prefix}{number:02d}" for number in range(int(first), int(last) + 1)]
        if missing := [name for name in names if name not in known]:
            parser.error(f"{given.problems} has no problem {missing[0]}")
    names = names[:: given.every]
    torch.manual_seed(0)
    networks = {"untrained": DispatchNetwork(), **({"learned": load(given.policy)} if given.policy else {})}
    ways = [*DISPATCHING_RULES, *networks, *([SOLVER_WAY] if given.solver else [])]
    if given.report:
        ways = list(dict.fromkeys(each["row"] for each in record.all))
    for name in [] if given.report else names:
        solved(known[name], networks, [way for way in ways if (way, name) not in record.known], record)
    summary(record, ways, names)


def solved(problem: Problem, networks: dict[str, DispatchNetwork], ways: Sequence[str], record: Record) -> None:
    """Record one problem's makespan by each way, and the seconds of it."""
    assert problem.upper is not None
    for way in ways:
        began = monotonic()
        if way == SOLVER_WAY:
            draws = record.row([*networks][-1])[problem.name]["seconds"]
            schedule = complete(problem, dispatch([problem], DISPATCHING_RULES["MTWR"])[0], draws)[0]
        elif way in networks:
            schedule = solve(networks[way], problem)
        else:
            schedule = dispatch([problem], DISPATCHING_RULES[way])[0]
        took = monotonic() - began
        assert not faults(problem, schedule)
        record.add(way, problem.name, makespan=schedule.makespan(problem), upper=problem.upper,
                   size=f"{problem.jobs}x{problem.places}", seconds=took)  # fmt: skip
    if ways:
        spans = {way: record.row(way)[problem.name]["makespan"] for way in ways}
        print(f"{problem.name}: {', '.join(f'{way} {span}' for way, span in spans.items())}", flush=True)


def summary(record: Record, ways: Sequence[str], names: Sequence[str]) -> None:
    """Mean gaps in per cent, of each set and of all; the learned rule's lead over each other way."""
    rows = {way: record.row(way) for way in ways}
    common = [name for name in names if ways and all(name in row for row in rows.values())]
    if not common:
        print("no problem is solved by every way yet")
        return
    sets: dict[str, list[str]] = {}
    for name in common:
        sets.setdefault(re.sub(r"\d+$", "", name), []).append(name)
    for title, some in [*sorted(sets.items()), ("all", common)]:
        said = ", ".join(f"{way} {np.mean(gaps(row, some)):.1f}" for way, row in rows.items())
        print(f"{title} ({len(some)} problems), mean gap in %: {said}")
    ours = "learned" if "learned" in ways else "untrained"
    for way, row in rows.items():
        mine = gaps(row, common)
        print(f"{way}: {shown(mine, 2)}; {ours} - it: {paired(gaps(rows[ours], common), mine, 2)}")


def gaps(row: dict[str, dict[str, Any]], names: Sequence[str]) -> list[float]:
    return [100.0 * (row[name]["makespan"] / row[name]["upper"] - 1.0) for name in names]


if __name__ == "__main__":
    main()
