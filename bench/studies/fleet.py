"""A simulated fleet on a recorded trace: who decides how, and what comes of it.

    python bench/studies/fleet.py --trace azure2023_conv.csv [--part tail urgent cost decisions] [--cv 8]
    python bench/studies/fleet.py --trace sharegpt_lengths.csv --cv 4 --rate 13

Each engine is the deciding half of a real one; what its steps take is a formula (`FleetShape`). Arrivals are the
trace's own, with their bursts, in a shorter time (`--speed`), or with `--cv` those of a gamma process of the same rate
whose gaps have this coefficient of variation; requests longer than `--longest` tokens are left out. A trace of
conversations without times (conversation, turn, prompt_tokens, output_tokens) gives lengths alone, each turn with those
before it in its prompt, in random order and by a gamma process of `--rate` requests a second.

`tail`: times to a first token, by dispatch, with and without migration and with engines that die. `urgent`: each tenth
request is of a higher priority; its whole time where that is known and where it is not. `cost`: seconds of engines
whose number follows the load, and the tail that they buy, by thresholds. `decisions`: time to find the engine for a
request.
"""

import argparse
import csv
import random
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from statistics import mean, median
from time import perf_counter

from paceline.cluster.fleet.simulate import FleetJob, FleetOutcome, FleetPlan, simulate_fleet
from paceline.cluster.fleet.twin import FleetShape
from paceline.cluster.live.freeness import EngineLoad, EngineRanking, ScaleRule, pairs

WAYS = {
    "round robin": FleetPlan("round-robin", migrates=False),
    "least loaded (INFaaS)": FleetPlan("least-loaded", migrates=False),
    "freeness, no migration": FleetPlan("freeness", migrates=False),
    "freeness and migration": FleetPlan(),
}
PARTS = ("tail", "urgent", "cost", "decisions")
SIZES = (16, 100, 1_000, 10_000)
LOWEST, BAND = (40.0, 20.0, 10.0, 5.0), 50.0
"""Mean freeness below which an engine comes, and what is above that until one goes."""
BATCH = 1_000
"""Decisions of one timing."""


def jobs_of(path: Path, count: int, skip: int, speed: float, longest: int) -> list[FleetJob]:
    """A stretch of a trace, played this many times as fast."""
    with path.open() as file:
        rows = [*csv.DictReader(file)]
    kept = [(row["TIMESTAMP"], int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in rows]
    kept = [each for each in kept if each[1] + each[2] <= longest and each[1] and each[2] > 1][skip : skip + count]
    at = [datetime.fromisoformat(stamp[:26]).timestamp() for stamp, _, _ in kept]
    return [FleetJob((t - at[0]) / speed, prompt, output) for t, (_, prompt, output) in zip(at, kept)]


def turns_of(path: Path, count: int, rate: float, longest: int) -> list[FleetJob]:
    """Turns of recorded conversations, each with the ones before it in its prompt, at equal intervals."""
    past, found = dict[str, int](), []
    with path.open() as file:
        for row in csv.DictReader(file):
            prompt, output, of = int(row["prompt_tokens"]), int(row["output_tokens"]), row["conversation"]
            found.append((past.get(of, 0) + prompt, output))
            past[of] = sum(found[-1])
    kept = [each for each in found if sum(each) <= longest and each[0] and each[1] > 1]
    random.Random(0).shuffle(kept)
    return [FleetJob(n / rate, prompt, output) for n, (prompt, output) in enumerate(kept[:count])]


def gamma(jobs: list[FleetJob], cv: float) -> list[FleetJob]:
    """The same requests in the same time, with other gaps: their deviation is `cv` times their mean."""
    rng, at, mean_gap = random.Random(0), 0.0, jobs[-1].at / (len(jobs) - 1)
    gaps = [rng.gammavariate(1 / cv**2, mean_gap * cv**2) for _ in jobs[1:]]
    scale = jobs[-1].at / sum(gaps)
    out = [replace(jobs[0], at=0.0)]
    for job, gap in zip(jobs[1:], gaps):
        at += gap * scale
        out.append(replace(job, at=at))
    return out


def p99(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[int(0.99 * len(ordered))]


def tail(jobs: list[FleetJob], engines: int) -> None:
    print(
        "| policy | P99 first token | mean | P99 longest gap | moves | pause, longest | preempted |\n"
        "|---|--:|--:|--:|--:|--:|--:|"
    )
    deaths = {jobs[-1].at * share: n for n, share in enumerate((0.3, 0.6))}
    ways = {**WAYS, "the same, two engines die": replace(WAYS["freeness and migration"], deaths=deaths)}
    found = dict[str, FleetOutcome]()
    for name, plan in ways.items():
        found[name] = done = simulate_fleet(jobs, engines, plan=plan)
        print(f"| {name} | {p99(done.first.values()):.2f} s | {mean(done.first.values()):.2f} s | "
              f"{p99(done.gap.values()):.2f} s | {done.moved} | {1e3 * max(done.pauses, default=0.0):.1f} ms | "
              f"{done.preemptions} |", flush=True)  # fmt: skip
    ours = p99(found["freeness and migration"].first.values())
    for name in [*WAYS][:3]:
        print(f"P99 of {name} over that of freeness and migration: {p99(found[name].first.values()) / ours:.2f}")


def pressing(jobs: list[FleetJob], engines: int) -> None:
    marked = [replace(job, priority=-1) if n % 10 == 0 else job for n, job in enumerate(jobs)]
    print(
        "| priorities | urgent: mean whole time | P99 first token | mean of a token | others: mean whole time |\n"
        "|---|--:|--:|--:|--:|"
    )
    found = []
    for name, headroom in (("unknown", False), ("order and headroom", True)):
        shape = FleetShape(order="priority" if headroom else "fcfs")
        done = simulate_fleet(marked, engines, shape, replace(WAYS["freeness and migration"], headroom=headroom))
        mine = [n for n, job in enumerate(marked) if job.priority < 0]
        others = [n for n, job in enumerate(marked) if job.priority >= 0]
        each = [(done.whole[n] - done.first[n]) / (marked[n].output - 1) for n in mine]
        found.append(mean(done.whole[n] for n in mine))
        print(f"| {name} | {found[-1]:.2f} s | {p99(done.first[n] for n in mine):.2f} s | {1e3 * mean(each):.1f} ms | "
              f"{mean(done.whole[n] for n in others):.2f} s |", flush=True)  # fmt: skip
    print(f"urgent requests: {found[0] / found[1]:.2f} times as fast")


def cost(jobs: list[FleetJob], engines: int) -> None:
    """Both follow the same rule, by freeness; what differs is dispatch and migration. They begin with half of the
    engines. Give a trace that lasts long beside the start of an engine: `--speed 1 --requests 3000`."""
    print("| policy | add below, drain above (blocks a sample) | P99 first token | engine-seconds |\n|---|--:|--:|--:|")
    found: dict[str, list[tuple[float, float]]] = {}
    for low in LOWEST:
        for name in ("least loaded (INFaaS)", "freeness and migration"):
            rule = ScaleRule(low, low + BAND, patience_s=5.0, most=engines)
            done = simulate_fleet(jobs, engines // 2, FleetShape(start_s=10.0), replace(WAYS[name], scale=rule))
            found.setdefault(name, []).append((p99(done.first.values()), done.engine_s))
            tail_s, seconds = found[name][-1]
            print(f"| {name} | {low:.0f}, {low + BAND:.0f} | {tail_s:.2f} s | {seconds:.0f} |", flush=True)
    for at, spent in found["least loaded (INFaaS)"]:
        ours = [seconds for mine, seconds in found["freeness and migration"] if mine <= at]
        says = f"{100 * (min(ours) / spent - 1):+.0f} %" if ours else "not reached"
        print(f"cost at a tail of at most {at:.2f} s: {says}")


def decisions() -> None:
    """The best engine is asked for, gets a request, and its load is told; another one loses one."""
    print("| engines | a request | a round of migrations |\n|--:|--:|--:|")
    for size in SIZES:
        rng = random.Random(size)
        loads = {
            f"engine-{n}": EngineLoad(f"engine-{n}", 850, rng.randrange(840), 1 + rng.randrange(20), 0)
            for n in range(size)
        }
        names, ranking, times = [*loads], EngineRanking(loads.values()), []
        for _ in range(9):
            begun = perf_counter()
            for _ in range(BATCH):
                name = ranking.best()
                assert name is not None
                for which, more in ((name, 80), (rng.choice(names), -80)):
                    load = loads[which]
                    used = min(850, max(0, load.used + more))
                    loads[which] = replace(load, used=used)
                    ranking.tell(loads[which])
            times.append((perf_counter() - begun) / BATCH)
        begun = perf_counter()
        pairs([*loads.values()])
        print(f"| {size:,} | {1e6 * median(times):.1f} us ({1e6 * min(times):.1f}-{1e6 * max(times):.1f}) | "
              f"{1e3 * (perf_counter() - begun):.2f} ms |", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--engines", type=int, default=16)
    parser.add_argument("--speed", type=float, default=2.4)
    parser.add_argument("--longest", type=int, default=6000)
    parser.add_argument("--cv", type=float, help="gamma arrivals in place of the trace's")
    parser.add_argument("--rate", type=float, help="requests a second, of a trace of conversations")
    args = parser.parse_args()
    if {*args.part} - {"decisions"}:
        if args.trace is None:
            parser.error("--trace is needed")
        if args.rate is None:
            jobs = jobs_of(args.trace, args.requests, args.skip, args.speed, args.longest)
        else:
            jobs = turns_of(args.trace, args.requests, args.rate, args.longest)
        jobs = jobs if args.cv is None else gamma(jobs, args.cv)
        print(f"{args.trace.stem}: {len(jobs)} requests in {jobs[-1].at:.0f} s on {args.engines} engines", flush=True)
    for part in args.part:
        print(f"\n{part}")
        match part:
            case "tail":
                tail(jobs, args.engines)
            case "urgent":
                pressing(jobs, args.engines)
            case "cost":
                cost(jobs, args.engines)
            case "decisions":
                decisions()


if __name__ == "__main__":
    main()
