"""What a byte budget is best used for: the planner's choice beside its predecessor, and beside the best of many.

    python bench/studies/memory_plan.py --model M --draft D --prompts gsm8k_test.jsonl

Eight budgets, as shares of what plain decoding takes beyond the weights with a whole row budget and a cache for all
requests (Paceline without `memory` and without a draft). For each: predicted and measured tokens per second of the
plan that `memory/choice.py` chooses, of the plan of its predecessor (rows and trees halved until they fit, a draft
model always kept), and of the best of an exhaustive search over measured shapes that fit. All are measured in one
engine with the draft model and one without, whose limits are changed between runs; a cache that holds fewer texts
than requests lets fewer run. Rounds are interleaved; figures are medians, and the geometric mean over one request at
a time and all at once.

The paper's point (SpecMemo, arXiv 2506.01986: 65 % less memory at 96 % of the throughput of full speculation) is
printed beside ours: what the plan for 35 % of the memory of full speculation reaches.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from paceline import LLM, SamplingParams
from paceline.bench.prompts import encode, read_prompts
from paceline.core.errors import CapacityError
from paceline.engine.budget import memory_of
from paceline.engine.options import Options
from paceline.memory.choice import BudgetPlanner, SpeedModel
from paceline.memory.sums import MEMORIES, BudgetShape, MemoryModel

SHARES = (0.34, 0.45, 0.55, 0.65, 0.75, 0.85, 1.0, 1.2)
ROWS = (1, 8, 16, 32, 64, 128, 256, 512)
DRAFTED = (0, 16, 511)
Setting = tuple[bool, int, int, int]
"""Draft model kept, rows of a pass, drafted rows, requests at once."""


def halved_until_it_fits(memory: MemoryModel, budget: int, rows: int, requests: int, blocks: int) -> BudgetShape:
    """The predecessor: the largest shape of which rows and trees get up to half of what the weights leave."""
    smallest = memory.smallest()
    if budget < memory.total(smallest):
        raise CapacityError(f"A memory of {budget:,} bytes is too little.")
    remember = min(MEMORIES[1], MEMORIES[0] + (budget - memory.total(smallest)) // 16)
    while rows:
        shape = BudgetShape(1, rows, rows - 1, min(requests, rows), remember)
        most = memory.most_blocks(budget, shape, blocks * shape.requests)
        shape = replace(shape, blocks=most)
        parts = memory.parts(shape)
        modest = 2 * (parts["logits"] + parts["scratch"]) <= budget - parts["weights"] - parts["rest"]
        if most >= smallest.blocks and (modest or most == blocks * shape.requests):
            return shape
        rows //= 2
    return replace(smallest, blocks=memory.most_blocks(budget, smallest, blocks))


@dataclass
class Bench:
    """Two engines and what was measured with them."""

    engines: dict[bool, LLM]
    prompts: list[list[int]]
    tokens: int
    text: int
    speeds: dict[tuple[Setting, int], list[float]] = field(default_factory=dict)

    def setting(self, draft: bool, shape: BudgetShape, block_size: int) -> Setting:
        """What a shape comes to here: no more run together than the cache holds texts."""
        together = max(1, min(shape.requests, shape.blocks * block_size // self.text))
        return draft, shape.rows, min(shape.drafted, shape.rows - 1), together

    def run(self, setting: Setting, load: int) -> float:
        """Tokens per second of `load` requests at once."""
        draft, rows, drafted, together = setting
        llm = self.engines[draft]
        desk = llm.engine.desk
        desk.planner.row_budget = desk.schedule.row_budget = rows  # type: ignore[attr-defined]
        desk.planner.draft_rows, desk.max_requests = drafted, min(together, rows)
        wish = SamplingParams(temperature=0, max_tokens=self.tokens, ignore_eos=True)
        made, began = 0, perf_counter()
        for start in range(0, len(self.prompts), load):
            outputs = llm.generate(self.prompts[start : start + load], wish, progress=False)
            made += sum(len(it.token_ids) for it in outputs)
        return made / (perf_counter() - began)

    def measure(self, settings: list[Setting], loads: tuple[int, ...], rounds: int) -> None:
        """Each setting under each load, rounds interleaved."""
        for _ in range(rounds):
            for setting in settings:
                for load in loads:
                    self.speeds.setdefault((setting, load), []).append(self.run(setting, load))

    def speed(self, setting: Setting, loads: tuple[int, ...]) -> float:
        """Geometric mean over the loads of the medians."""
        low, high = (median(self.speeds[setting, load]) for load in (loads[0], loads[-1]))
        return sqrt(low * high)


def grid(rows: int, requests: int) -> Iterator[Setting]:
    """Settings of the exhaustive search."""
    for draft in (True, False):
        for most in (each for each in ROWS if each <= rows):
            for drafted in sorted({min(each, most - 1) for each in DRAFTED}):
                for together in sorted({1, min(requests, most)}):
                    yield draft, most, drafted, together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--draft", required=True, type=Path)
    parser.add_argument("--prompts", required=True, type=Path)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--grid-rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    draft_of = {True: args.draft, False: None}
    engines = {
        draft: LLM(args.model, at, prefix_cache=False, row_budget=args.rows, max_requests=args.requests)
        for draft, at in draft_of.items()
    }
    prompts = [encode(engines[True].text, each) for each in read_prompts(args.prompts, args.requests)]
    mean = round(sum(map(len, prompts)) / len(prompts))
    bench = Bench(engines, prompts, args.max_tokens, max(map(len, prompts)) + args.max_tokens)
    loads = (1, args.requests)
    models = {draft: memory_of(Options(args.model, at), args.model, at) for draft, at in draft_of.items()}
    full = {draft: (draft, args.rows, args.rows - 1, args.requests) for draft in (True, False)}
    for draft in engines:  # buffers, kernels, and what drafts bring
        bench.measure([full[draft]], loads, 2)
    bench.speeds.clear()
    engine = engines[True].engine
    arms = {name: it for name, it in engine.table.entries.items() if name in engine.drafters.arms("auto", "exact")}
    text = mean, args.max_tokens
    speeds = SpeedModel(engine.table.times, arms, engine.desk.policy.state(), engine.config.patience, text)
    planner = BudgetPlanner(models, speeds)

    blocks = -(-bench.text // models[False].block_size)
    wanted = BudgetShape(blocks * args.requests, args.rows, 0, args.requests)
    plain, base = models[False].parts(wanted), models[False].parts(wanted)
    fixed = base["weights"] + base["rest"]
    own = sum(plain.values()) - fixed
    print(f"Plain decoding takes {own / 2**20:.1f} MiB beyond {fixed / 2**20:.1f} MiB of weights and process.\n")

    settings = [*grid(args.rows, args.requests)]
    bench.measure(settings, loads, args.grid_rounds)
    found = []
    for share in SHARES:
        budget = int(fixed + share * own)
        plan, other = planner.choose(budget, args.rows, args.requests, None)
        old: Setting | None = None
        try:
            shape = halved_until_it_fits(models[True], budget, args.rows, args.requests, blocks)
            old = bench.setting(True, shape, models[True].block_size)
        except CapacityError:
            pass
        fits = [it for it in settings if fitting(models[it[0]], it, budget, bench.text)]
        best = max(fits, key=lambda it: bench.speed(it, loads))
        mine = bench.setting(plan.draft, plan.shape, models[plan.draft].block_size)
        found.append((share, budget, plan, other, mine, old, best))
    again = list(dict.fromkeys([*full.values(), *(s for row in found for s in row[4:] if s is not None)]))
    for setting in again:
        for load in loads:
            bench.speeds.pop((setting, load), None)
    bench.measure(again, loads, args.rounds)
    print(
        "share | MiB | plan (draft, rows, drafted, at once) | predicted | measured | runner-up predicted | "
        "predecessor | measured | best of search | measured | plan / best"
    )
    out = list[dict[str, Any]]()
    for share, budget, plan, other, mine, old, best in found:
        speed, most = bench.speed(mine, loads), bench.speed(best, loads)
        before = None if old is None else bench.speed(old, loads)
        row: dict[str, Any] = {
            "share": share, "MiB": budget / 2**20, "plan": mine, "predicted": plan.score, "measured": speed,
            "runner-up": None if other is None else other.score, "predecessor": old, "its": before, "best": best,
            "most": most, "ratio": speed / most,
        }  # fmt: skip
        out.append(row)
        print(" | ".join(f"{it:.3g}" if isinstance(it, float) else str(it) for it in row.values()), flush=True)
    speculation = models[True].parts(replace(wanted, drafted=args.rows - 1))
    room = sum(speculation.values()) - speculation["weights"] - speculation["rest"]
    enough = [row for row in out if row["MiB"] * 2**20 - fixed <= 0.35 * room + 1] or out[:1]
    ours = enough[-1]
    whole = bench.speed(full[True], loads)
    print(
        f"\nFull speculation: {room / 2**20:.1f} MiB beyond weights, {whole:.1f} tokens/s; plain, all rows: "
        f"{bench.speed(full[False], loads):.1f}."
        f"\nPaper: 65 % less memory at 96 % of the throughput. Ours: {1 - ours['share'] * own / room:.0%} less at "
        f"{ours['measured'] / whole:.0%}."
    )
    if args.json:
        args.json.write_text(json.dumps(out, indent=1, default=str), encoding="utf-8")


def fitting(memory: MemoryModel, setting: Setting, budget: int, text: int) -> bool:
    """Does it fit, with a cache for the texts that run together?"""
    _, rows, drafted, together = setting
    blocks = together * -(-text // memory.block_size)
    return memory.total(BudgetShape(blocks, rows, drafted, together)) <= budget


if __name__ == "__main__":
    main()
