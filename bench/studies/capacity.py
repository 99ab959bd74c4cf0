"""Requests a second within a time between tokens, simulated on recorded lengths: the engine's own desk and schedules.

    python bench/studies/capacity.py --times TABLE.json --trace azure2023_conv.csv vidur_arxiv_summarization.csv

What a step takes comes from a table that an engine has measured on some machine (`StepTimes.dump`, as it is kept under
$PACELINE_CACHE), for plain decoding. A trace is a CSV of prompt and output lengths; arrivals are its own, stretched,
where it has times, else a Poisson process. Compared are `chunked` with the SLO as its target, whole prompts first
(vLLM's first scheduler), and whole prompts beside the decodes, without chunks (Orca's). A rate passes if the P99 of the
time between tokens is within the SLO (by default five plain steps of eight requests, Sarathi-Serve's strict one) and
the median request waits at most two seconds for its first row; the highest that does is found by binary search. Each
round takes another stretch of the trace; printed are medians, ranges, and ratios of the same round.
"""

import argparse
import csv
import json
import random
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median

from paceline.cache.cache import Cache
from paceline.core.params import SamplingParams
from paceline.core.plan import Work
from paceline.core.request import Request
from paceline.core.result import Result
from paceline.engine.desk import Desk
from paceline.engine.drafter_table import DrafterTable
from paceline.plan import DrafterFacts
from paceline.plan.cost import KNOTS, StepTimes
from paceline.plan.planner import Planner
from paceline.schedule import policies

WHOLE = 16_384
"""Rows of a step that has whole prompts."""
DELAY_S, FINE, TRIES, SLO_STEPS = 2.0, 1.05, 12, 5.0
WAYS = {"chunked": ("chunked", 2048), "prefill_first": ("prefill_first", WHOLE), "no chunks": ("chunked", WHOLE)}
"""Schedule and row budget by name."""
Job = tuple[float, int, int]
"""Arrival in seconds at one request a second on average, tokens of the prompt, tokens of the answer."""


def run(name: str, times: StepTimes, jobs: Sequence[Job], qps: float, slo: float) -> tuple[float, float]:
    """P99 of the time between tokens, and the median wait for a first row."""
    schedule, rows = WAYS[name]
    table = DrafterTable("fixed", StepTimes())
    table.enrol("none", DrafterFacts(0, chain=True))
    target = 1e3 * slo if name == "chunked" else 0.0
    made = policies.policy(schedule, "fcfs", rows, tbt_target_ms=target, forecast=times)
    if name == "no chunks":
        made.rows = lambda turn, now: rows  # type: ignore[method-assign]
    desk = Desk(Cache(40_000, 16, prefix=False), made, Planner(table.decide, rows), table, 256)
    coming, now = [(at / qps, prompt, output) for at, prompt, output in reversed(jobs)], 0.0
    gaps, waits, last, first = list[float](), list[float](), dict[int, float](), dict[int, float]()
    while coming or desk.busy:
        if not desk.busy:
            now = max(now, coming[-1][0])
        while coming and coming[-1][0] <= now:
            at, prompt, output = coming.pop()
            number = len(jobs) - len(coming) - 1
            desk.waiting.append(Request(number, [number] * prompt, SamplingParams(), 0, max_tokens=output, arrival=at,
                                        group=number))  # fmt: skip
        desk.admit(now)
        plan = desk.plan(now)
        txns = desk.begin(plan)
        begun = now
        now += times.predict(Work.of((i.given, i.request.length, int(i.completes)) for i in plan.items))
        drawing = [item.request for item in plan.items if item.completes]
        for item in plan.items:
            if item.request.id not in first:
                first[item.request.id] = begun
                waits.append(begun - item.request.arrival)
        desk.commit(plan, txns, [Result([0]) if item.completes else Result() for item in plan.items])
        for request in drawing:
            request.append(0)
            if request.id in last:
                gaps.append(now - last[request.id])
            last[request.id] = now
            if not request.left:
                request.finish = "length"
                desk.leave(request)
    gaps.sort()
    return gaps[int(0.99 * len(gaps))], median(waits)


def capacity(name: str, times: StepTimes, jobs: Sequence[Job], slo: float, start: float) -> float:
    """The highest rate that passes, to FINE; 0 where none above a hundredth of `start` does."""
    low, high, qps = 0.0, 0.0, start
    for _ in range(TRIES):
        tail, wait = run(name, times, jobs, qps, slo)
        passed = tail <= slo and wait <= DELAY_S
        low, high = (qps, high) if passed else (low, qps)
        if low and high and high / low < FINE:
            break
        qps = 2 * qps if not high else (low * high) ** 0.5 if low else high / 3
        if qps < start / 100:
            break
    return low


def jobs_of(path: Path, count: int, part: int, longest: int, most: int) -> list[Job]:
    """The stretch number `part` of a trace, as if one request came a second."""
    with path.open() as file:
        rows = [*csv.DictReader(file)]
    prompts = ("ContextTokens", "num_prefill_tokens", "prompt_tokens")
    outputs = ("GeneratedTokens", "num_decode_tokens", "output_tokens")
    prompt, output = (next(name for name in names if name in rows[0]) for names in (prompts, outputs))
    kept = [row for row in rows if 0 < int(float(row[prompt])) <= longest and int(float(row[output])) > 1]
    kept = kept[part * count : (part + 1) * count]
    if "TIMESTAMP" in rows[0]:
        stamps = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in kept]
        at = [(stamp - stamps[0]) * (count - 1) / max(stamps[-1] - stamps[0], 1e-9) for stamp in stamps]
    else:
        rng, now, at = random.Random(part), 0.0, []
        for _ in kept:
            now += rng.expovariate(1.0)
            at.append(now)
    return [(a, int(float(row[prompt])), min(most, int(float(row[output])))) for a, row in zip(at, kept)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=Path, required=True)
    parser.add_argument("--trace", type=Path, nargs="+", required=True)
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--longest", type=int, default=4096, help="tokens of a prompt")
    parser.add_argument("--most", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--slo-ms", type=float)
    args = parser.parse_args()
    times = StepTimes.load(json.loads(args.times.read_text(encoding="utf-8")))
    for knot in KNOTS:  # an older table may lack the last ones
        times.target.weights.setdefault(knot, times.target.weights[1024] * knot / 1024)
    plain = times.predict(Work.of([(1, 512, 1)] * 8))
    slo = args.slo_ms / 1e3 if args.slo_ms else SLO_STEPS * plain
    print(f"Plain step of eight {1e3 * plain:.1f} ms, SLO {1e3 * slo:.1f} ms, {args.requests} requests a round")
    for path in args.trace:
        found: dict[str, list[float]] = {name: [] for name in WAYS}
        for part in range(args.rounds):
            jobs = jobs_of(path, args.requests, part, args.longest, args.most)
            start = 1.0 / (sum(times.predict(Work.of([(p, 0, 1)])) + o * plain / 8 for _, p, o in jobs) / len(jobs))
            for name in WAYS:
                found[name].append(capacity(name, times, jobs, slo, start / 2))
        median_prompt = median(p for _, p, _ in jobs)
        print(f"\n{path.stem}: prompts of {median_prompt:.0f} tokens (median of the last round)")
        print("| schedule | requests/s | chunked / it |\n|---|--:|--:|")
        for name, rates in found.items():
            ratio = [a / b if b else float("inf") for a, b in zip(found["chunked"], rates)]
            print(f"| {name} | {median(rates):.3f} ({min(rates):.3f}-{max(rates):.3f}) | "
                  f"{median(ratio):.2f} ({min(ratio):.2f}-{max(ratio):.2f}) |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
