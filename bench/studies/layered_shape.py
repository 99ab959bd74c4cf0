"""Layered prefill at the shape of a large mixture, simulated: the engine's own desk and schedules on a virtual clock.

    python bench/studies/layered_shape.py --lengths vidur_arxiv_summarization.csv [--requests 200 --qps 1.5 --seeds 3]

Prompt and output lengths are recorded ones (a CSV whose first two numbers a row they are); arrivals are a Poisson
process. A pass costs, layer by layer, the longer of what it reads and what it computes, and --overhead-ms a step:
attention weights, K/V, and as many experts as rows in that layer can be expected to hit, E (1 - (1 - k/E)^rows). The
shape is Qwen3-30B-A3B's on two H100 (reading at 70 % of 6.7 TB/s, bf16 at 40 % of 2 PFLOPS). Printed beside `chunked`
with chunks of 512, whole prompts first, and layered with the paper's table of stages: expert bytes read, time to first
token, time per output token, the P99 of the time between tokens, and how long a request takes.
"""

import argparse
import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from statistics import mean, median

from paceline.cache.cache import Cache
from paceline.core.params import SamplingParams
from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.core.result import Result
from paceline.engine.desk import Desk
from paceline.engine.drafter_table import DrafterTable
from paceline.plan import DrafterFacts
from paceline.plan.cost import StepTimes
from paceline.plan.planner import Planner
from paceline.schedule import policies

CHUNK, COHORT = 512, 8192
"""Rows of a step of `chunked`; most rows of a cohort, and of a step of whole prompts."""


@dataclass(frozen=True)
class Shape:
    """Bytes and operations of a mixture, a layer."""

    layers: int = 48
    experts: int = 128
    active: int = 8
    expert_bytes: float = 3 * 2048 * 768 * 2.0
    attention_bytes: float = (2 * 2048 * 4096 + 2 * 2048 * 512) * 2.0
    kv_bytes: float = 2 * 4 * 128 * 2.0
    head_bytes: float = 151936 * 2048 * 2.0
    pair_operations: float = 4 * 4096.0
    """Of one row that reads one row."""
    bytes_s: float = 0.7 * 6.7e12
    operations_s: float = 0.4 * 2e15

    def hit(self, rows: float) -> float:
        """Different experts of a layer that so many rows need."""
        return self.experts * (1 - (1 - self.active / self.experts) ** rows)

    def layer(self, rows: int, context: int, pairs: int) -> tuple[float, float]:
        """Seconds, and experts read."""
        if not rows:
            return 0.0, 0.0
        experts = self.hit(rows)
        read = experts * self.expert_bytes + self.attention_bytes + context * self.kv_bytes
        operations = rows * (self.active * self.expert_bytes + self.attention_bytes) + pairs * self.pair_operations
        return max(read / self.bytes_s, operations / self.operations_s), experts


@dataclass
class Way:
    request: Request
    at: float
    tokens: list[float] = field(default_factory=list)


class Fleet:
    """One simulated engine."""

    def __init__(self, schedule: str, shape: Shape, overhead: float) -> None:
        table = DrafterTable("fixed", StepTimes())
        table.enrol("none", DrafterFacts(0, chain=True))
        rows = CHUNK if schedule == "chunked" else COHORT
        made = policies.policy(schedule, "fcfs", rows, tbt_target_ms=0.0, layers=shape.layers)
        self.desk = Desk(Cache(60_000, 16, prefix=False), made, Planner(table.decide, rows), table, 256)
        self.shape, self.overhead, self.now, self.loads = shape, overhead, 0.0, 0.0
        self.ways: dict[int, Way] = {}

    def run(self, jobs: Sequence[tuple[float, int, int]]) -> "Fleet":
        coming = list(reversed(jobs))
        while coming or self.desk.busy:
            if not self.desk.busy:
                self.now = max(self.now, coming[-1][0])
            while coming and coming[-1][0] <= self.now:
                at, prompt, output = coming.pop()
                number = len(self.ways)
                request = Request(number, [number] * prompt, SamplingParams(), 0, max_tokens=output, arrival=at,
                                  group=number)  # fmt: skip
                self.ways[number] = Way(request, at)
                self.desk.waiting.append(request)
            self.step()
        return self

    def step(self) -> None:
        self.desk.admit(self.now)
        plan = self.desk.plan(self.now)
        txns = self.desk.begin(plan)
        self.now += self.seconds(plan)
        drawing = [item.request for item in plan.items if item.completes]
        self.desk.commit(plan, txns, [Result([0]) if item.completes else Result() for item in plan.items])
        for request in drawing:
            request.append(0)
            self.ways[request.id].tokens.append(self.now)
            if not request.left:
                request.finish = "length"
                self.desk.leave(request)

    def seconds(self, plan: Plan) -> float:
        shape, total = self.shape, self.overhead + self.shape.head_bytes / self.shape.bytes_s
        ends = [(item.first, shape.layers if item.last is None else item.last) for item in plan.items]
        cuts = sorted({0, shape.layers, *(cut for pair in ends for cut in pair)})
        for first, last in pairwise(cuts):
            inside = [item for item, (a, b) in zip(plan.items, ends) if a <= first and last <= b]
            rows = sum(item.given for item in inside)
            context = sum(item.request.length + item.given for item in inside)
            pairs = sum(item.given * (item.request.length + item.given // 2) for item in inside)
            each, experts = shape.layer(rows, context, pairs)
            total += (last - first) * each
            self.loads += (last - first) * experts
        return total

    def row(self) -> dict[str, float]:
        ways = [way for way in self.ways.values() if way.tokens]
        gaps = sorted(b - a for way in ways for a, b in pairwise(way.tokens))
        each = [(w.tokens[-1] - w.tokens[0]) / (len(w.tokens) - 1) for w in ways if len(w.tokens) > 1]
        return {
            "expert TB": self.loads * self.shape.expert_bytes / 1e12,
            "TTFT ms": 1e3 * mean(w.tokens[0] - w.at for w in ways),
            "TPOT ms": 1e3 * mean(each),
            "P99 TBT ms": 1e3 * gaps[int(0.99 * len(gaps))],
            "longest TBT ms": 1e3 * gaps[-1],
            "request ms": 1e3 * mean(w.tokens[-1] - w.at for w in ways),
        }


def lengths(path: Path, count: int, most: int) -> list[tuple[int, int]]:
    """(prompt, output) tokens of the first rows."""
    with path.open() as file:
        rows = csv.reader(file)
        header = next(rows)
        names = ("ContextTokens", "GeneratedTokens")
        at = [header.index(n) for n in names] if names[0] in header else [0, 1]
        found = ((int(float(row[at[0]])), int(float(row[at[1]]))) for row in rows)
        return list(islice(((p, o) for p, o in found if 0 < p <= most and o > 0), count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--qps", type=float, default=1.5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--overhead-ms", type=float, default=5.0)
    parser.add_argument("--longest", type=int, default=COHORT)
    args = parser.parse_args()
    sizes, found = lengths(args.lengths, args.requests, args.longest), dict[str, list[dict[str, float]]]()
    for seed in range(args.seeds):
        rng, now, jobs = random.Random(seed), 0.0, list[tuple[float, int, int]]()
        for prompt, output in sizes:
            now += rng.expovariate(args.qps)
            jobs.append((now, prompt, output))
        for schedule in ("chunked", "layered", "prefill_first"):
            done = Fleet(schedule, Shape(), args.overhead_ms / 1e3).run(jobs)
            found.setdefault(schedule, []).append(done.row())
    print(f"{len(sizes)} requests, prompts of {median(p for p, _ in sizes):.0f} tokens (median), {args.qps}/s")
    names = list(found["chunked"][0])
    print(f"| schedule | {' | '.join(names)} |\n|---|{'--:|' * len(names)}")
    for schedule, rows in found.items():
        print(f"| {schedule} | {' | '.join(f'{mean(r[n] for r in rows):.4g}' for n in names)} |")
    for schedule in ("layered", "prefill_first"):
        ratios = {n: [a[n] / b[n] - 1 for a, b in zip(found[schedule], found["chunked"])] for n in names}
        words = [f"{100 * min(x):+.0f} to {100 * max(x):+.0f} %" for x in ratios.values()]
        print(f"| {schedule} against chunked | {' | '.join(words)} |")


if __name__ == "__main__":
    main()
