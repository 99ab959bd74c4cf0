"""Records loads for the regret study: what each drafter would have brought at every place of every text, and what steps
took on this machine.

    python bench/studies/regret_record.py NAME --model M --draft D --prompts A.jsonl B.jsonl --out DIR [--loads one]

Of each load: a decision log of `auto` (DIR/NAME-LOAD.jsonl), and a scenario (DIR/NAME-LOAD.json) that `regret.py`
runs on a virtual clock. Under `exact` the text of a request does not depend on who drafts, so a run by each drafter by
name tells what it keeps at every place: of a round that kept k, the place j behind its root would have kept k - j.
"""

import argparse
import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from bench.studies.auto import shuffled
from paceline import LLM, SamplingParams
from paceline.bench.prompts import encode, read_prompts
from paceline.simulate.log import Arrival, Event, Outcome, Step, dump
from paceline.simulate.record import record

ARMS = ("ngram", "model", "ngram+topk")
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 33, 48, 64, 65, 96, 128, 256, 512)


@dataclass(frozen=True)
class Recorded:
    """A load: requests at once (0: bursts), prompts, tokens of each answer, and temperatures by turns."""

    name: str
    clients: int
    prompts: int
    tokens: int
    temperatures: tuple[float, ...] = (0.0,)
    mixed: bool = False
    broken: bool = False
    seconds: float = 60.0


LOADS = (
    Recorded("one", 1, 8, 96),
    Recorded("four", 4, 16, 64),
    Recorded("eight", 8, 24, 64),
    Recorded("sixteen", 16, 48, 48),
    Recorded("sixty-four", 64, 96, 32),
    Recorded("changing", 1, 9, 96, mixed=True),
    Recorded("broken", 1, 6, 96, broken=True),
    Recorded("bursts", 0, 24, 48),
    Recorded("samplers", 4, 16, 64, (0.0, 0.8)),
    Recorded("short", 2, 24, 8),
    Recorded("real", 1, 4, 96),
)


def serve(llm: LLM, load: Recorded, prompts: Sequence[list[int]], drafter: str) -> None:
    """All prompts once. Bursts: six at a time, and rest until they are done."""
    queue, live = [*enumerate(prompts)], 0
    engine, clients = llm.engine, load.clients or 6
    while queue or live:
        while queue and live < clients and (load.clients or not live or len(queue) % 6):
            number, prompt = queue.pop(0)
            wish = SamplingParams(
                temperature=load.temperatures[number % len(load.temperatures)], max_tokens=load.tokens, seed=number,
                drafter=drafter,
            )  # fmt: skip
            engine.submit(prompt, wish.resolve(llm.text.defaults))
            live += 1
        live -= sum(request.finish is not None for request in engine.step())
        if not load.clients and not live:
            sleep(0.05)


def recorded(args: argparse.Namespace, load: Recorded, draft: Path, drafter: str) -> list[Event]:
    """The log of a fresh engine."""
    llm = LLM(args.model, draft, drafter="auto", quantize=args.quantize, prefix_cache=False, memory=args.memory)
    each = [[encode(llm.text, p) for p in read_prompts(Path(path), load.prompts)] for path in args.prompts]
    prompts = [p for group in zip(*each) for p in group] if load.mixed else each[0]
    events: list[Event] = []
    record(llm.engine, events.append)
    serve(llm, load, prompts[: load.prompts], drafter)
    llm.engine.recorder = type(llm.engine.recorder).__mro__[1]()
    return events


def traces(events: Iterable[Event]) -> dict[int, tuple[str, str]]:
    """{request: (rows that the drafter would offer, tokens that would be kept) at each place of its output}."""
    offered, kept = dict[int, list[int]](), dict[int, list[int]]()
    for event in events:
        if not isinstance(event, Step) or event.outcome is None:
            continue
        for given, result in zip(event.decision.items, event.outcome.results):
            for round in result.rounds:
                rows, deep = sum(round.offered), round.depth
                for place in range(deep + 1):
                    offered.setdefault(given.id, []).append(min(35, max(0, rows - place)))
                    kept.setdefault(given.id, []).append(min(35, deep - place))
    return {i: ("".join(DIGITS[x] for x in offered[i]), "".join(DIGITS[x] for x in kept[i])) for i in kept}


def by_order(events: Sequence[Event]) -> list[tuple[str, str]]:
    """`traces` of the requests in the order in which they came."""
    found = traces(events)
    return [found[e.id] for e in events if isinstance(e, Arrival)]


def hats(rows: float, knots: Sequence[int]) -> dict[int, float]:
    i = min(max(int(np.searchsorted(knots, rows, side="right")), 1), len(knots) - 1)
    low, high = knots[i - 1], knots[i]
    part = max(0.0, min(1.0, (rows - low) / (high - low)))
    return {low: 1.0 - part, high: part}


def fit(samples: Sequence[tuple[Sequence[float], float]]) -> list[float]:
    """Non-negative least squares of the error relative to the seconds."""
    if not samples:
        return []
    a = np.array([[v / s for v in x] for x, s in samples])
    return [float(w) for w in nnls(a, np.ones(len(samples)))[0]]


def machine(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What steps took, by a model of its own: a monotone staircase of rows, and a line for each drafter."""
    most = max(o.work.rows for o in outcomes)
    knots = [k for k in KNOTS if k <= most] + [k for k in KNOTS if k > most][:1]
    each = [(o.work, hats(o.work.rows, knots), o.times.target) for o in outcomes if o.times.target > 0]
    target = fit(
        [([w.passes * x for x in (*(h.get(k, 0.0) for k in knots), w.context, w.requests)], s) for w, h, s in each]
    )
    stairs, high = dict[int, float](), 0.0
    for k, weight in zip(knots, target):
        stairs[k] = high = max(high, weight)
    least = min(weight for weight in stairs.values() if weight)  # fewer rows than any step had cost as much
    stairs = {k: max(least, weight) for k, weight in stairs.items()}
    rest = fit([([o.work.passes == 1, o.work.passes > 1, o.work.requests], max(o.times.rest, 1e-6)) for o in outcomes])
    drafts, errors = {}, []
    for name in {p.drafter for o in outcomes for p in o.parts}:
        mine = [
            ([1.0, p.requests, p.depth, p.nodes], o.times.drafts[name])
            for o in outcomes
            for p in o.parts
            if p.drafter == name and o.times.drafts.get(name, 0) > 0
        ]
        drafts[name] = fit(mine) or [0.0] * 4
    for o in outcomes:
        if o.work.rows == o.work.requests and o.work.passes == 1:
            x = sum(stairs[k] * v for k, v in hats(o.work.rows, knots).items())
            errors.append(o.times.target / (x + target[-2] * o.work.context + target[-1] * o.work.requests))
    spread = float(np.std(np.log(errors))) if len(errors) > 3 else 0.05
    return {"stairs": stairs, "context": target[-2], "requests": target[-1], "rest": rest, "drafts": drafts,
            "noise": min(spread, 0.3)}  # fmt: skip


def scenario(args: argparse.Namespace, load: Recorded, draft: Path) -> dict[str, Any]:
    """Record `auto` and each drafter by name."""
    logs = {name: recorded(args, load, draft, name) for name in ("auto", *ARMS)}
    (args.out / f"{args.name}-{load.name}.jsonl").write_bytes(b"".join(map(dump, logs["auto"])))
    arrivals = [e for e in logs["auto"] if isinstance(e, Arrival)]
    places = {name: by_order(logs[name]) for name in ARMS}
    steps = [e.outcome for log in logs.values() for e in log if isinstance(e, Step) and e.outcome]
    texts = [
        {"prompt": len(a.prompt), "tokens": len(places["ngram"][n][1]), "temperature": a.params.get("temperature", 1.0),
         "drafters": {name: places[name][n] for name in ARMS}}
        for n, a in enumerate(arrivals)
    ]  # fmt: skip
    return {"name": f"{args.name}-{load.name}", "clients": load.clients or 6, "machine": machine(steps), "texts": texts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--model")
    parser.add_argument("--draft")
    parser.add_argument("--prompts", nargs="+", required=True)
    parser.add_argument("--quantize")
    parser.add_argument("--memory", default="3G")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--loads", default=",".join(load.name for load in LOADS))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    for load in LOADS:
        if load.name not in args.loads.split(","):
            continue
        began = perf_counter()
        with tempfile.TemporaryDirectory() as where:
            draft = shuffled(Path(args.draft), Path(where) / "draft") if load.broken else Path(args.draft)
            made = scenario(args, load, draft)
        (args.out / f"{made['name']}.json").write_text(json.dumps(made), encoding="utf-8")
        print(f"{made['name']}: {len(made['texts'])} texts in {perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
