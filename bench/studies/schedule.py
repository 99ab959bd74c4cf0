"""How schedules share steps between long prompts and decodes, on recorded arrivals, each schedule in turns.

    python bench/studies/schedule.py tbt      --model M --prompts gsm8k_test.jsonl [--requests 60 --load 0.8 --repeat 5]
    python bench/studies/schedule.py capacity --model M --prompts gsm8k_test.jsonl [--requests 60]
    python bench/studies/schedule.py stall    --model M --prompts gsm8k_test.jsonl [--long 1100 --repeat 5]
    python bench/studies/schedule.py grouping --model M --prompts gsm8k_test.jsonl [--batch 4]

One engine in process, plain decoding unless --drafter is given. Requests arrive as a Poisson process whose times, kinds
and texts come from a seed and are the same for every schedule: short prompts with long answers, and prompts of --long
tokens with short answers. The rate is --qps, or --load of what the engine does when all are there at once. TBT is the
time between two steps that brought a request tokens; the target of `chunked` is 0.8 of the SLO.

(1) `tbt`: times at one rate, and tokens/s, prompts included, over the whole run and over the time in steps;
(2) `capacity`: the highest rate with P99 TBT within the SLO and a median wait for the first row of at most 2 s, by
    binary search;
(3) `stall`: the longest time between two tokens of one answer while a prompt of --long tokens is read, and the time to
    that prompt's first token, without a target and with the default;
(4) `grouping`: EXSPEC's grouping rate against the window, and whether the texts are the same.

Time is real in (1) to (3): run them on an idle machine. (4) may run on a busy one, and so may (3) with --cpu, which is
then in processor time of one thread (`python -m bench.studies.schedule stall --cpu ...`).
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from paceline import LLM, SamplingParams
from paceline.bench.busy import CpuWatch
from paceline.bench.prompts import read_prompts
from paceline.core.request import Request
from paceline.engine.loop import Engine
from paceline.schedule import policies
from paceline.schedule.chunked import Chunked
from paceline.schedule.orders import fcfs

SLO_STEPS = 5.0
"""The SLO, where none is given, in steps of --decoding requests that decode alone (Sarathi-Serve: strict)."""
TARGET = 0.8
DELAY_S = 2.0
"""Most seconds that the median request may wait for its first row."""
LEAST = 1 / 20
"""Lowest rate that is tried, as a share of the rate at which the search begins: a run at a lower rate would take
hours."""
FINE, ROUNDS = 1.025, 20
"""The search ends when its ends are within this factor, or after this number of runs."""


class Arrival(NamedTuple):
    at: float
    prompt: list[int]
    max_tokens: int


@dataclass
class Trip:
    """One request's way, in seconds of the run."""

    arrival: float
    request: Request
    started: float | None = None
    """The beginning of the step that had its first row."""
    tokens: list[float] = field(default_factory=list)
    """The ends of steps that brought tokens."""
    seen: int = 0


@dataclass(frozen=True)
class Run:
    """What one schedule did with one trace. Seconds, tokens/s."""

    gaps: list[float]
    first: list[float]
    delay: float
    speed: float
    pace: float
    """Tokens per second of the time in steps."""

    def row(self) -> dict[str, float]:
        return {
            "P50 TBT ms": 1e3 * quantile(self.gaps, 0.5), "P99 TBT ms": 1e3 * quantile(self.gaps, 0.99),
            "P99 TTFT s": quantile(self.first, 0.99), "tokens/s": self.speed, "tokens/s in steps": self.pace,
        }  # fmt: skip


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values) or [float("nan")]
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


class Study:
    """One engine, whose schedule is exchanged between runs."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.clock: Callable[[], float] = time.perf_counter
        if args.cpu:
            from bench.studies import cpu_clock

            self.clock, args.threads = cpu_clock.use(True, 1)
        names = ("model", "draft", "dtype", "quantize", "threads", "memory")
        own: dict[str, Any] = {name: value for name in names if (value := getattr(args, name))}
        self.llm = LLM(**own, drafter=args.drafter, prefix_cache=False, tbt_target_ms=1.0)
        self.engine: Engine = self.llm.engine
        self.args = args
        self.short = [self.llm.text.encode(text) for text in read_prompts(args.prompts, 200)]
        self.text = self.llm.text.encode("\n".join(read_prompts(args.prompts)))
        if len(self.text) <= args.long:
            raise SystemExit(f"schedule: {args.prompts} has {len(self.text)} tokens; --long asks for {args.long}")
        self.slo = args.slo_ms / 1e3 if args.slo_ms else SLO_STEPS * self.plain_step()

    @cached_property
    def qps(self) -> float:
        """The rate asked for."""
        if self.args.qps:
            return float(self.args.qps)
        began = time.perf_counter()
        self.run("chunked", self.trace(1e9, self.args.seed))
        return self.args.load * self.args.requests / (time.perf_counter() - began)

    def use(self, schedule: str) -> None:
        target = 1e3 * TARGET * self.slo if schedule == "chunked" else 0.0
        self.engine.desk.schedule = policies.policy(
            schedule,
            "fcfs",
            self.engine.config.row_budget,
            tbt_target_ms=target,
            forecast=self.engine.table.times,
        )

    def submit(self, prompt: list[int], max_tokens: int) -> Request:
        params = SamplingParams(temperature=0, ignore_eos=True, seed=0, max_tokens=max_tokens).resolve({})
        return self.engine.submit(prompt, params)[0]

    def plain_step(self) -> float:
        """Median seconds of a step in which --decoding short requests decode."""
        requests = [self.submit(prompt, 40) for prompt in self.short[: self.args.decoding]]
        while any(len(r.output) < 8 for r in requests):
            self.engine.step()
        taken = []
        while all(r.finish is None for r in requests):
            began = time.perf_counter()
            self.engine.step()
            taken.append(time.perf_counter() - began)
        self.finish()
        return median(taken)

    def alone(self) -> float:
        """Median seconds of a step in which one request decodes."""
        request, taken = self.submit(self.short[0], 40), []
        while request.finish is None:
            began = self.clock()
            self.engine.step()
            taken.append(self.clock() - began)
        return median(taken)

    def finish(self) -> None:
        while self.engine.busy:
            self.engine.step()

    def trace(self, qps: float, seed: int) -> list[Arrival]:
        """Arrivals at this rate; another rate with the same seed stretches the same trace."""
        rng, now, out = random.Random(seed), 0.0, []
        for _ in range(self.args.requests):
            now += rng.expovariate(1.0) / qps
            if rng.random() < self.args.share:
                start = rng.randrange(len(self.text) - self.args.long)
                out.append(Arrival(now, self.text[start : start + self.args.long], self.args.long_output))
            else:
                out.append(Arrival(now, rng.choice(self.short), self.args.output))
        return out

    def run(self, schedule: str, trace: list[Arrival]) -> Run:
        """The whole trace in real time, to the last token."""
        self.use(schedule)
        coming, trips, busy, end = list(trace), dict[int, Trip](), 0.0, 0.0
        origin = time.perf_counter()
        while coming or self.engine.busy:
            now = time.perf_counter() - origin
            if not self.engine.busy and coming[0].at > now:
                time.sleep(coming[0].at - now)
                continue
            while coming and coming[0].at <= now:
                arrival = coming.pop(0)
                request = self.submit(arrival.prompt, arrival.max_tokens)
                trips[request.id] = Trip(arrival.at, request)
            self.engine.step()
            end = time.perf_counter() - origin
            busy += end - now
            note(trips, now, end)
        made = sum(len(t.request.prompt) + len(t.request.output) for t in trips.values())
        return summary(list(trips.values()), made / (end - trace[0].at), made / busy)


def note(trips: dict[int, Trip], begun: float, ended: float) -> None:
    """What a step did for each request."""
    for trip in trips.values():
        request = trip.request
        if trip.started is None and (request.length or request.output):
            trip.started = begun
        if len(request.output) > trip.seen:
            trip.seen = len(request.output)
            trip.tokens.append(ended)


def summary(trips: list[Trip], speed: float, pace: float) -> Run:
    gaps = [b - a for trip in trips for a, b in zip(trip.tokens, trip.tokens[1:])]
    first = [trip.tokens[0] - trip.arrival for trip in trips]
    delay = median(max(0.0, (trip.started or 0.0) - trip.arrival) for trip in trips)
    return Run(gaps, first, delay, speed, pace)


def turns(names: tuple[str, ...], repeat: int) -> Iterator[tuple[int, str]]:
    """(round, name), who is first rotates."""
    for i in range(repeat):
        for name in (*names[i % len(names) :], *names[: i % len(names)]):
            yield i, name


def spread(values: list[float], form: str = ".4g") -> str:
    return f"{median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def markdown(head: list[str], rows: list[list[str]]) -> None:
    for cells in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(cells) + " |")
    print()


def tbt(study: Study) -> dict[str, Any]:
    """Times at one rate, and the ratios to chunked of the same round."""
    args, runs = study.args, dict[tuple[int, str], dict[str, float]]()
    for i, schedule in turns(policies.SCHEDULES, args.repeat):
        runs[i, schedule] = study.run(schedule, study.trace(study.qps, args.seed + i)).row()
    columns = list(runs[0, "chunked"])
    print(f"\n{args.requests} requests, {study.qps:.2f}/s, {args.repeat} rounds; SLO {1e3 * study.slo:.1f} ms\n")
    rounds = range(args.repeat)
    rows = [[s, *(spread([runs[i, s][c] for i in rounds]) for c in columns)] for s in policies.SCHEDULES]
    markdown(["schedule", *columns], rows)
    rows = [
        [s, *(spread([runs[i, s][c] / runs[i, "chunked"][c] for i in rounds], ".3f") for c in columns)]
        for s in policies.BASELINES
    ]
    markdown(["of chunked", *columns], rows)
    return {f"{schedule} {i}": row for (i, schedule), row in runs.items()}


def capacity(study: Study) -> dict[str, Any]:
    """The highest rate that each schedule sustains within the SLO."""
    args = study.args
    found = {s: [0.0] * args.repeat for s in policies.SCHEDULES}
    for i, schedule in turns(policies.SCHEDULES, args.repeat):
        found[schedule][i] = search(study, schedule, args.seed + i)
    print(f"\nCapacity with P99 TBT <= {1e3 * study.slo:.1f} ms, {args.requests} requests, {args.repeat} rounds\n")
    ratio = {s: [a / max(b, 1e-9) for a, b in zip(found["chunked"], found[s])] for s in found}
    rows = [[s, spread(found[s]), spread(ratio[s], ".2f") if min(found[s]) else "-"] for s in found]
    markdown(["schedule", "requests/s", "chunked / it"], rows)
    return found


def search(study: Study, schedule: str, seed: int) -> float:
    """The highest rate that passes, to `FINE`; 0 when none above `LEAST` does. The right end widens while requests
    hardly wait."""
    low, high, qps, slo = 0.0, 0.0, study.qps, study.slo
    for _ in range(ROUNDS):
        tried = study.run(schedule, study.trace(qps, seed))
        tail = quantile(tried.gaps, 0.99)
        passed = tried.delay <= DELAY_S and tail <= slo
        verdict = f"wait {tried.delay:.2f} s, P99 TBT {1e3 * tail:.1f} ms, {'passes' if passed else 'fails'}"
        print(f"  {schedule:>13}, {qps:.3f}/s: {verdict}", file=sys.stderr)
        low, high = (qps, high) if passed else (low, qps)
        if low and high and high / low < FINE:
            break
        if not high:
            qps *= 4.0 if tried.delay < DELAY_S / 8 else 2.0 if tried.delay < DELAY_S / 4 else 1.5
        elif low or high / 4 > LEAST * study.qps:
            qps = (low + high) / 2 if low else high / 4
        else:
            break
    return low


TARGETS: dict[str, tuple[int, float | None]] = {
    "512 rows, no target": (512, 0.0), "0": (2048, 0.0), "default": (2048, None),
}  # fmt: skip
"""Row budgets and targets in seconds that `stall` compares: the default of old, for throughput, and the default."""


def stall(study: Study) -> dict[str, Any]:
    """A chat, and a long prompt that arrives in the middle of its answer, by target."""
    args, engine, found = study.args, study.engine, dict[tuple[int, str], dict[str, float]]()
    plain = study.alone()
    for i, name in turns(tuple(args.targets), args.repeat):
        rows, target = TARGETS[name]
        engine.desk.schedule = Chunked(fcfs, min(rows, engine.config.row_budget), target, engine.table.times)
        chat = study.submit(study.short[i], args.output)
        while len(chat.output) < args.output // 4:
            engine.step()
        start = random.Random(args.seed + i).randrange(len(study.text) - args.long)
        long = study.submit(study.text[start : start + args.long], args.long_output)
        began = last = study.clock()
        gap = first = 0.0
        while not first:
            had = len(chat.output)
            engine.step()
            now = study.clock()
            if chat.finish is None and len(chat.output) > had:
                gap, last = max(gap, now - last), now
            first = now - began if long.output else 0.0
        study.finish()
        found[i, name] = {"longest gap ms": 1e3 * gap, "in plain steps": gap / plain, "TTFT s": first}
    columns, rounds = list(found[0, args.targets[0]]), range(args.repeat)
    print(f"\nA prompt of {args.long} tokens beside an answer; {args.repeat} rounds; plain step {1e3 * plain:.1f} ms\n")
    rows = [[n, *(spread([found[i, n][c] for i in rounds]) for c in columns)] for n in args.targets]
    markdown(["target", *columns], rows)
    return {f"{name} {i}": row for (i, name), row in found.items()}


def grouping(study: Study) -> dict[str, Any]:
    """The share of steps whose group has one shape, by how many decode at once; and the texts against those without."""
    args, engine = study.args, study.engine
    rng = random.Random(args.seed)
    jobs = [(rng.choice(study.short), rng.randrange(args.output // 2, args.output)) for _ in range(args.requests)]

    def texts(window: int, batch: int | None) -> tuple[list[list[int]], Any, float]:
        engine.desk.max_requests, began = window, time.perf_counter()
        expects = engine.table.expects
        when = policies.policy("chunked", "fcfs", engine.config.row_budget, group_size=batch, expects=expects)
        engine.desk.schedule = when
        requests = [study.submit(*job) for job in jobs]
        study.finish()
        outputs = [r.output for r in requests]
        return outputs, when, sum(map(len, outputs)) / (time.perf_counter() - began)

    want, _, _ = texts(engine.config.max_requests, None)
    rows, out = [], dict[str, Any]()
    for window in (args.batch + 1, 2 * args.batch, 4 * args.batch, 8 * args.batch, 16 * args.batch):
        most = min(window, engine.config.max_requests)
        _, _, free = texts(most, None)
        got, when, speed = texts(most, args.batch)
        same = sum(a == b for a, b in zip(want, got)) / len(want)
        out[str(window)] = {"rate": when.rate, "grouped": when.grouped, "fallback": when.fallback,
                            "levelled": when.levelled, "equal": same, "speed": speed / free}  # fmt: skip
        counts = (when.grouped, when.levelled, when.fallback)
        rows.append([str(window), f"{when.rate:.3f}", *map(str, counts), f"{same:.0%}", f"{speed / free:.2f}"])
    print(f"\nGroups of {args.batch}, {args.requests} requests\n")
    markdown(["window", "grouping rate", "grouped", "levelled", "fallback", "equal texts", "tokens/s, of free"], rows)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    studies = {"tbt": tbt, "capacity": capacity, "stall": stall, "grouping": grouping}
    parser.add_argument("study", choices=studies)
    for name in ("model", "draft", "dtype", "quantize", "memory"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--drafter", default="none")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--targets", nargs="+", choices=[*TARGETS], default=[*TARGETS], help="of stall")
    parser.add_argument("--cpu", action="store_true", help="processor time of one thread, for stall")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--qps", type=float, help="the rate of tbt; where capacity begins to search")
    parser.add_argument("--load", type=float, default=0.8, help="the same, as a share of the most that is possible")
    parser.add_argument("--share", type=float, default=0.5, help="of requests with a long prompt")
    parser.add_argument("--long", type=int, default=2000, help="tokens of a long prompt")
    parser.add_argument("--long-output", type=int, default=32)
    parser.add_argument("--output", type=int, default=128, help="tokens of the other answers")
    parser.add_argument("--slo-ms", type=float, help="P99 TBT; default: five plain steps")
    parser.add_argument("--decoding", type=int, default=8, help="requests of a plain step")
    parser.add_argument("--batch", type=int, default=4, help="size of a group")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.cpu and args.study != "stall":
        parser.error("--cpu is for stall: the others wait for arrivals, so their time is the clock's")
    watch = CpuWatch()
    found = studies[args.study](Study(args))
    if busy := watch.during():
        print(f"schedule: warning: {busy}", file=sys.stderr)
    if args.json:
        document = {"args": vars(args), "found": found}
        args.json.write_text(json.dumps(document, indent=2, default=str) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
