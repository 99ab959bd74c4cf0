"""Does the simulator say what the engine does? Five workloads on a pair, drafter auto, each on a new engine.

    python bench/studies/simulate.py --model M --draft D --prompts gsm8k_test.jsonl --mixed spec_bench.jsonl

Each run is recorded, replayed (every decision must be the same), and simulated: the same arrivals and outputs, the
acceptance of the recording, the engine's own table of step times. Ratios are simulated over measured. Needs an idle
machine: the engine is timed.
"""

import argparse
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import monotonic, sleep

import numpy as np

from paceline import LLM, SamplingParams
from paceline.bench.prompts import encode, read_prompts
from paceline.engine.calibrate import measure
from paceline.engine.loop import Engine
from paceline.simulate.figures import Figures, figures, mean
from paceline.simulate.log import Arrival, Event, Step
from paceline.simulate.record import record
from paceline.simulate.replay import replay
from paceline.simulate.simulator import simulate
from paceline.simulate.workload import Workload

LONG = 1000
"""Tokens of the long prompts of the mix, at least; every sixth is one."""


@dataclass(frozen=True)
class Load:
    """Prompts, and when they come: at these seconds, or as soon as one of `clients` is answered."""

    name: str
    prompts: Sequence[list[int]]
    clients: int | None = None
    times: Sequence[float] = ()


def drive(engine: Engine, load: Load, params: SamplingParams) -> dict[int, float]:
    """Run a load to its end; {request id: its arrival as intended}."""
    queue, start, intended = deque(enumerate(load.prompts)), monotonic(), dict[int, float]()
    while queue or engine.busy:
        while queue and due(engine, load, queue[0][0], start):
            place, prompt = queue.popleft()
            request = engine.submit(prompt, replace(params, seed=place))[0]
            intended[request.id] = start + load.times[place] if load.times else monotonic()
        if engine.busy:
            engine.step()
        else:
            sleep(1e-4)
    return intended


def due(engine: Engine, load: Load, place: int, start: float) -> bool:
    if load.clients is not None:
        return len(engine.desk.waiting) + len(engine.desk.running) < load.clients
    return monotonic() - start >= load.times[place]


@dataclass(frozen=True)
class Means:
    """Tokens per second and the mean latency in ms, over runs: one run is one luck of the chooser's tries."""

    throughput: float
    latency: float

    @classmethod
    def of(cls, runs: Sequence[Figures]) -> "Means":
        return cls(mean([run.throughput for run in runs]), 1e3 * mean([mean(run.latency) for run in runs]))


class Study:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.params = SamplingParams(temperature=0.0, max_tokens=args.max_tokens)
        llm = self.llm()
        self.params = self.params.resolve({})
        text = [encode(llm.text, p) for p in read_prompts(args.prompts, args.num_prompts)]
        mixed = [encode(llm.text, p) for p in read_prompts(args.mixed, args.num_prompts)]
        limit = llm.engine.model.max_len - args.max_tokens
        self.short, self.mixed = text, [(long(text, i) if i % 6 == 5 else p)[:limit] for i, p in enumerate(mixed)]
        self.out: dict[str, object] = {}

    def llm(self) -> LLM:
        return LLM(self.args.model, self.args.draft, drafter="auto", threads=self.args.threads)

    def loads(self) -> list[Load]:
        """The rate of saturation is that of a run whose requests all come at once."""
        engine, n = self.llm().engine, len(self.short)
        began = monotonic()
        drive(engine, Load("all at once", self.short, times=[0.0] * n), self.params)
        rate = n / (monotonic() - began)
        print(f"saturation: {rate:.2f} requests/s", flush=True)
        gaps = np.random.default_rng(0).exponential(1.0, n).cumsum()
        return [
            Load("one at a time", self.short, clients=1),
            Load("8 clients", self.short, clients=8),
            Load("half of saturation", self.short, times=(gaps / (0.5 * rate)).tolist()),
            Load("saturation", self.short, times=(gaps / rate).tolist()),
            Load("mixed, long prompts", self.mixed, clients=8),
        ]

    def run(self, load: Load) -> "list[Means]":
        """Measured; simulated with the fitted table; with the engine's own."""
        engine, events = self.llm().engine, list[Event]()
        engine.table.times.become(measure(engine))  # the recording's first step is not the engine's
        record(engine, events.append)
        intended = drive(engine, load, self.params)
        done = replay(events)
        assert done.difference is None, done.difference
        events = [replace(e, now=intended[e.id]) if isinstance(e, Arrival) else e for e in events]
        print(f"    {done.steps} steps repeat; share of drafters that catch up {idle(events):.3f}", flush=True)
        out = [Means.of([figures(events)])]
        for fit in (True, False):
            workload, seeds = Workload.of(events, fit=fit), range(self.args.seeds)
            out.append(Means.of([figures(simulate(workload, clients=load.clients, seed=seed)) for seed in seeds]))
        return out

    def study(self) -> None:
        print("| workload | tokens/s | ratio, table fitted to the run | its own table | latency, ms | ratio | own |")
        for load in self.loads():
            runs = [self.run(load) for _ in range(self.args.repeats)]
            rate = [[each.throughput for each in run] for run in runs]
            wait = [[each.latency for each in run] for run in runs]
            self.out[load.name] = {"tokens_per_second": rate, "latency_ms": wait}
            print(f"| {load.name} | {row(rate)} | {row(wait)} |", flush=True)
        if self.args.json:
            self.args.json.write_text(json.dumps(self.out, indent=1), encoding="utf-8")


def row(runs: Sequence[Sequence[float]]) -> str:
    """The median over the repeats, and the ratios of the simulated ones to it with their range."""
    cells = [f"{median(run[0] for run in runs):,.1f}"]
    for i in (1, 2):
        ratios = [run[i] / run[0] for run in runs]
        cells.append(f"{median(ratios):.3f} ({min(ratios):.3f} - {max(ratios):.3f})")
    return " | ".join(cells)


def idle(events: Sequence[Event]) -> float:
    """Share of the time that drafters spent on texts for which they did not draft in that step: no table has it."""
    steps = [e.outcome for e in events if isinstance(e, Step) and e.outcome]
    drafting = [{part.drafter for part in o.parts} for o in steps]
    spent = sum(s for o, names in zip(steps, drafting) for name, s in o.times.drafts.items() if name not in names)
    return spent / sum(o.times.total for o in steps)


def long(texts: Sequence[list[int]], start: int) -> list[int]:
    """Several prompts in a row."""
    out: list[int] = []
    for i in range(len(texts)):
        if len(out) >= LONG:
            break
        out += texts[(start + i) % len(texts)]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--mixed", type=Path, required=True)
    parser.add_argument("--num-prompts", type=int, default=60)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=5, help="simulations of each run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    Study(parser.parse_args()).study()


if __name__ == "__main__":
    main()
