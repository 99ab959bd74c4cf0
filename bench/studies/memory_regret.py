"""Regret of memory plans on machines that nobody has seen, on a virtual clock: what `regret.py` is to the choice of
drafters.

    python bench/studies/memory_regret.py --model M --draft D [--machines 3]

Bytes are those of a real pair; what a step takes and what is kept of drafts come from a drawn machine and drawn texts
(`regret.py`). The planner knows that machine's measured table and what earlier starts have learned from other texts of
the same kind, and so does the engine that serves. Eight budgets,
as shares of what plain decoding takes beyond the weights. Tokens per second, geometric mean over one request at a time
and four at once, of the engine's own desk under the limits of each plan: the chosen one, its predecessor (rows and
trees halved until they fit, the draft model always kept), and the best of an exhaustive search over settings that fit.
"""

import argparse
import math
import random
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from memory_plan import SHARES, Setting, fitting, grid, halved_until_it_fits
from regret import OnMachine, Text, Truth
from regret_machine import ARMS, FACTS, Machine

from paceline.core.errors import CapacityError
from paceline.core.noise import SimulationNoise
from paceline.engine.budget import memory_of
from paceline.engine.config import EngineConfig
from paceline.engine.options import Options
from paceline.memory.choice import BudgetPlanner, SpeedModel
from paceline.memory.sums import BudgetShape, MemoryModel
from paceline.plan.cost import StepTimes
from paceline.simulate.figures import figures
from paceline.simulate.log import Arrival, Setup
from paceline.simulate.workload import Speech, Workload, WorkloadJob

REQUESTS, ROWS, PROMPT, TOKENS, TEXTS = 4, 512, 120, 64, 8
SKILL = {"ngram": 0.4, "model": 0.7}


@dataclass(slots=True)
class Serving(OnMachine):
    """A run that keeps what its policy has learned."""

    def _taken(self, plan: Any, twin: Any, results: Any, advanced: Any, done: Any) -> Any:
        self.report["policy"] = twin.table.policy
        return OnMachine._taken(self, plan, twin, results, advanced, done)


def serving(machine: Machine, texts: list[Text], setting: Setting, load: int, known: dict[str, Any] | None) -> Serving:
    """The texts under these limits, `load` at once, by a start that knows this."""
    draft, rows, drafted, together = setting
    own, arms = deepcopy(machine), ARMS if draft else ("ngram",)
    own.rng = random.Random(1)
    jobs = [
        WorkloadJob(0.0, [Arrival(0.0, i, i, [0] * t.prompt, "auto", arms, "exact", t.tokens, judge_free=True,
                                  params={"temperature": t.temperature})])
        for i, t in enumerate(texts)
    ]  # fmt: skip
    most = max(t.prompt + t.tokens for t in texts) // 16 + 2
    config = EngineConfig(
        blocks=most * (REQUESTS + 1), drafter="auto", prefix_cache=False, cheap_rows=16, row_budget=rows,
        draft_rows=drafted, max_requests=min(together, rows),
    )  # fmt: skip
    setup = Setup(config, ("draft",), FACTS, deepcopy(machine).table("clean").dump(), learned=known)
    outputs = {i: Speech([0] * t.tokens, "length") for i, t in enumerate(texts)}
    work = Workload(setup, jobs, outputs, Truth(dict(enumerate(texts))), StepTimes())  # type: ignore[arg-type]
    return Serving(work, load, SimulationNoise(0), machine=own)


def learned(machine: Machine, texts: list[Text]) -> dict[str, Any]:
    """What earlier starts have learned from such texts, one at a time and several at once."""
    known: dict[str, Any] | None = None
    for load in (1, REQUESTS):
        run = serving(machine, texts, (True, ROWS, ROWS - 1, REQUESTS), load, known)
        run.run()
        known = run.report["policy"].state()
    assert known is not None
    return known


def speed(machine: Machine, texts: list[Text], setting: Setting, known: dict[str, Any]) -> float:
    """Tokens per second of the texts under these limits."""
    one, several = (figures(serving(machine, texts, setting, load, known).run()).throughput for load in (1, REQUESTS))
    return math.sqrt(one * several)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--draft", required=True, type=Path)
    parser.add_argument("--machines", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    models = {draft: memory_of(Options(args.model, at), args.model, at) for draft, at in
              ((True, args.draft), (False, None))}  # fmt: skip
    ratios: dict[float, list[tuple[float, ...]]] = {share: [] for share in SHARES}
    for number in range(args.machines):
        for share, row in one(args.seed + number, models):
            ratios[share].append(row)
    print("\nshare | plan / best of search | predecessor / best | predicted / measured (medians over machines)")
    for share, rows in ratios.items():
        print(f"{share:.0%} | " + " | ".join(f"{median(r[i] for r in rows):.2f}" for i in range(3)))


def one(seed: int, models: dict[bool, MemoryModel]) -> list[tuple[float, tuple[float, float, float]]]:
    """(share, ratios) of a machine."""
    rng = random.Random(seed)
    machine = Machine.drawn(rng)
    machine.noise, machine.spikes, machine.shift = 0.02, 0.0, (math.inf, 1.0)
    drawn = [replace(Text.drawn(rng, TOKENS, SKILL, 0.0), prompt=PROMPT) for _ in range(3 * TEXTS)]
    texts, known = drawn[:TEXTS], learned(machine, drawn[TEXTS:])
    arms = {name: FACTS[name] for name in ARMS}
    speeds = SpeedModel(deepcopy(machine).table("clean"), arms, known, 0.03, (PROMPT, TOKENS))
    planner, text, cache = BudgetPlanner(models, speeds), PROMPT + TOKENS + 16, dict[Setting, float]()

    def of(setting: Setting) -> float:
        if setting not in cache:
            cache[setting] = speed(machine, texts, setting, known)
        return cache[setting]

    def limits(draft: bool, shape: BudgetShape) -> Setting:
        together = max(1, min(shape.requests, shape.blocks * models[draft].block_size // text))
        return draft, shape.rows, min(shape.drafted, shape.rows - 1), together

    blocks = -(-text // models[False].block_size)
    base = models[False].parts(BudgetShape(blocks * REQUESTS, ROWS, 0, REQUESTS))
    fixed = base["weights"] + base["rest"]
    print(f"\nmachine {seed}")
    out = []
    for share in SHARES:
        budget = int(fixed + share * (sum(base.values()) - fixed))
        plan = planner.choose(budget, ROWS, REQUESTS).plan
        mine = limits(plan.draft, plan.shape)
        old = before(partial(halved_until_it_fits, models[True], budget, ROWS, REQUESTS, blocks))
        theirs = of(limits(True, old)) if old is not None else float("nan")
        fits = [it for it in grid(ROWS, REQUESTS) if fitting(models[it[0]], it, budget, text)]
        best = max([*fits, mine], key=of)
        row = of(mine) / of(best), theirs / of(best), plan.score / of(mine)
        known_as = f"{old and limits(True, old)} {theirs:.1f}"
        print(f"{share:.0%} {budget / 2**20:.0f} MiB: plan {mine} predicted {plan.score:.1f} measured {of(mine):.1f}; "
              f"predecessor {known_as}; best {best} {of(best):.1f}", flush=True)  # fmt: skip
        out.append((share, row))
    whole = of((True, ROWS, ROWS - 1, REQUESTS))
    print(f"full speculation {whole:.1f}, plain {of((False, ROWS, 0, REQUESTS)):.1f}")
    return out


def before(make: Callable[[], BudgetShape]) -> BudgetShape | None:
    """The predecessor's shape; None where it refuses."""
    try:
        return make()
    except CapacityError:
        return None


if __name__ == "__main__":
    main()
