"""Is the planner's choice ever slower? `auto` beside every drafter it chooses from and beside plain decoding.

    python bench/studies/auto.py loads --model M --draft D --prompts gsm8k_test.jsonl [more.jsonl] [--plot auto.svg]
    python bench/studies/auto.py broken ...       the draft model's weights are shuffled
    python bench/studies/auto.py change ...       the draft model is broken in mid-run, and mended
    python bench/studies/auto.py error ...        predicted against measured step time
    python bench/studies/auto.py crowd --at 1,4,16 ...   a fresh engine's first encounter with N at once, and warm

One engine, in process, two threads (`--threads`). Each repeat draws its prompts, their order and their arrivals, and
serves them once by each drafter, in turns, the first one changing; the planner learns from its own steps alone. Loads:
a number of requests at a time (closed; 12 prompts, or six a place), or Poisson arrivals at a share of what `none` can
do (open). A ratio is that of tokens/s (closed) or of mean latency (open), by repeat; its 95 % interval is a bootstrap
over repeats. The best fixed drafter of a repeat is that of the other repeats, for of several that are nearly equal the
best of the same one is the luckiest. Use an idle machine.
"""

import argparse
import gc
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torch

from paceline import LLM, SamplingParams
from paceline.bench.load.plot import PlotPanel, svg
from paceline.bench.prompts import encode, read_prompts
from paceline.core.request import Request
from paceline.draft import DRAFTERS
from paceline.plan.choose import Goodput
from paceline.plan.cost import StepTimes

CLOSED = (1, 4, 8, 16)
OPEN = (0.3, 0.6, 0.9)
SAMPLES = 5000


@dataclass(frozen=True)
class Load:
    """`places` requests at a time, or Poisson arrivals at `rate` of a second."""

    name: str
    places: int = 0
    rate: float = 0.0
    most: int = 48
    """Prompts, at most. Many enough that the start and the end, when places are empty, count for little."""


@dataclass(frozen=True)
class Outcome:
    speed: float
    """Tokens a second."""
    latency: float
    """Mean seconds from arrival to the last token."""

    def merit(self, load: Load) -> float:
        return 1.0 / self.latency if load.rate else self.speed


def serve(llm: LLM, prompts: Sequence[list[int]], load: Load, wish: SamplingParams, seed: int) -> Outcome:
    """All prompts once, at this load."""
    engine, gaps = llm.engine, np.random.default_rng(seed).exponential(1.0, len(prompts))
    due = np.cumsum(gaps) / load.rate if load.rate else np.zeros(len(prompts))
    queue, live, done = list(zip(due, prompts)), dict[int, float](), list[float]()
    requests: list[Request] = []
    started = perf_counter()
    while queue or live:
        now = perf_counter() - started
        while queue and queue[0][0] <= now and (load.rate or len(live) < load.places):
            at, prompt = queue.pop(0)
            requests.append(engine.submit(prompt, wish)[0])
            live[requests[-1].id] = at if load.rate else now
        if not live:
            sleep(max(0.0, queue[0][0] - now))
            continue
        for request in engine.step():
            if request.finish:
                done.append(perf_counter() - started - live.pop(request.id))
    seconds = perf_counter() - started
    return Outcome(sum(len(r.output) for r in requests) / seconds, float(np.mean(done)))


def interval(ratios: Sequence[float], rng: np.random.Generator) -> str:
    """Median and the bootstrap's 95 % interval of it."""
    values = np.array(ratios)
    medians = np.median(values[rng.integers(0, len(values), (SAMPLES, len(values)))], axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return f"{np.median(values):.3f} ({low:.3f}-{high:.3f})"


def best_elsewhere(arms: Sequence[Sequence[float]]) -> list[float]:
    """Figure, for each repeat, of the arm whose median over the *other* repeats is the highest (with a single repeat,
    of the best arm). Among arms that are nearly equal, the best of the same repeats is the luckiest: its figure is too
    good."""
    figures = np.array(arms)
    repeats = range(figures.shape[1])
    others = [np.delete(figures, r, axis=1) if len(repeats) > 1 else figures for r in repeats]
    return [float(figures[np.argmax(np.median(rest, axis=1)), r]) for r, rest in zip(repeats, others)]


class Study:
    def __init__(self, args: argparse.Namespace, draft: str | Path, arms: Sequence[str] = DRAFTERS.arms()) -> None:
        torch.set_num_threads(args.threads)
        self.args, self.arms = args, arms
        self.choice = "auto" if tuple(arms) == DRAFTERS.arms() else "|".join(arms)
        self.llm = LLM(args.model, draft, drafter=self.choice, dtype=args.dtype, quantize=args.quantize,
                       prefix_cache=False, memory=args.memory)  # fmt: skip
        self.sets = {
            Path(path).stem: [encode(self.llm.text, p) for p in read_prompts(Path(path), args.num_prompts)]
            for path in args.prompts
        }
        if len(self.sets) > 1:
            each = list(self.sets.values())
            self.sets = {"mixed": [prompt for group in zip(*each) for prompt in group][: args.num_prompts]}
        [(self.name, self.prompts)] = self.sets.items()

    def wish(self, drafter: str) -> SamplingParams:
        params = SamplingParams(
            temperature=self.args.temperature, max_tokens=self.args.max_tokens, seed=1, drafter=drafter
        )
        return params.resolve(self.llm.text.defaults)

    def serve(self, load: Load, drafter: str, seed: int) -> Outcome:
        """As many prompts as the load takes, once, in the order of the seed: who is there together, and whose texts end
        last, is chance. Of a fixed drafter the planner learns nothing: nobody would run it in service."""
        engine, chooser = self.llm.engine, self.llm.engine.desk.policy
        assert isinstance(chooser, Goodput)
        if drafter != self.choice:
            engine.table.policy = Goodput(StepTimes(), chooser.limit, chooser.fixed)
        order = np.random.default_rng(seed).permutation(len(self.prompts))[: load.most]
        try:
            return serve(self.llm, [self.prompts[i] for i in order], load, self.wish(drafter), seed)
        finally:
            engine.table.policy = chooser

    def loads(self) -> Iterator[Load]:
        for places in CLOSED:
            yield Load(f"{places} at a time", places=places, most=max(12, 6 * places))
        plain = self.serve(Load("", places=16), "none", 0)
        tokens = np.mean([self.args.max_tokens])
        for share in OPEN:
            yield Load(f"{share:.0%} of saturation", rate=share * plain.speed / float(tokens), most=round(80 * share))

    def run(self, loads: Sequence[Load]) -> list[dict[str, Any]]:
        """One row a load: merit of every drafter over all repeats."""
        drafters = ["none", *self.arms, self.choice]
        for drafter in drafters:
            self.serve(Load("", places=4, most=12), drafter, 0)
        rows = []
        for load in loads:
            out: dict[str, list[Outcome]] = {d: [] for d in drafters}
            for repeat in range(self.args.repeat):
                for i in range(len(drafters)):
                    drafter = drafters[(i + repeat) % len(drafters)]
                    out[drafter].append(self.serve(load, drafter, repeat))
            rows.append(self.row(load, out))
            print(self.line(rows[-1]), flush=True)
        return rows

    def row(self, load: Load, out: dict[str, list[Outcome]]) -> dict[str, Any]:
        merit = {d: [o.merit(load) for o in each] for d, each in out.items()}
        rng, mine = np.random.default_rng(0), merit[self.choice]
        fixed = [merit[d] for d in self.arms]
        return {
            "load": load.name,
            "best": max(self.arms, key=lambda d: float(np.median(merit[d]))),
            "over_best": interval([a / b for a, b in zip(mine, best_elsewhere(fixed))], rng),
            "over_luckiest": interval([a / b for a, b in zip(mine, max(fixed, key=np.median))], rng),
            "over_plain": interval([a / b for a, b in zip(mine, merit["none"])], rng),
            "merit": merit,
            "speed": {d: float(np.median([o.speed for o in each])) for d, each in out.items()},
            "latency": {d: float(np.median([o.latency for o in each])) for d, each in out.items()},
        }

    def head(self) -> str:
        names = ["none", *self.arms, self.choice]
        return (
            f"| {self.name} | "
            + " | ".join(names)
            + " | auto / best fixed | auto / plain |\n|---|"
            + "--:|" * (len(names) + 2)
        )

    def line(self, row: dict[str, Any]) -> str:
        each = " | ".join(f"{row['speed'][d]:.0f}, {row['latency'][d]:.2f} s" for d in row["speed"])
        return f"| {row['load']} | {each} | {row['over_best']} of `{row['best']}` | {row['over_plain']} |"


def shuffled(draft: Path, into: Path) -> Path:
    """A copy of a draft model whose weights are permuted: the same work, and nothing right."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(draft, into, dirs_exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    for path in into.glob("*.safetensors"):
        weights = load_file(path)
        for name, w in weights.items():
            flat = w.flatten()
            weights[name] = flat[torch.randperm(flat.numel(), generator=generator)].view_as(w).contiguous()
        save_file(weights, path, metadata={"format": "pt"})
    return into


def loads(args: argparse.Namespace) -> dict[str, Any]:
    study = Study(args, args.draft)
    print(study.head())
    rows = study.run(list(study.loads()))
    if args.plot:
        xs = [float(i + 1) for i in range(len(rows))]
        names = list(rows[0]["speed"])
        speed = PlotPanel("tokens/s", {d: [r["speed"][d] for r in rows] for d in names})
        latency = PlotPanel("mean latency, s", {d: [r["latency"][d] for r in rows] for d in names}, log=True)
        label = "load: " + ", ".join(f"{i + 1} {r['load']}" for i, r in enumerate(rows))
        Path(args.plot).write_text(svg(f"auto beside its arms, {study.name}", label, xs, [speed, latency]))
    return {"rows": rows}


def broken(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as where:
        study = Study(args, shuffled(Path(args.draft), Path(where) / "draft"), ("model", "topk"))
        print(study.head())
        return {"rows": study.run([Load("1 at a time", 1, most=12), Load("8 at a time", 8, most=48)])}


class Switch:
    """Two draft models in one place: the one that works, and the broken one. `passes` of either."""

    def __init__(self, good: Any, bad: Any) -> None:
        self.models, self.now, self.passes = (good, bad), good, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)

    def chain(self, *args: Any) -> Any:
        self.passes += 1
        return self.now.chain(*args)

    def tree(self, *args: Any) -> Any:
        self.passes += 1
        return self.now.tree(*args)

    def forward(self, rows: Any) -> Any:
        self.passes += 1
        return self.now.forward(rows)

    def move(self, source: list[int], target: list[int]) -> None:
        for model in self.models:
            model.move(source, target)


def change(args: argparse.Namespace) -> dict[str, Any]:
    """Steps until the choice follows, in windows of 20 after each change: while the draft model works, four steps in
    five are given to drafters that use it; while it is broken, it runs in one step of five at most. (`ngram+topk`
    leaves a broken `topk` alone and is no worse than `ngram` then, so its name says nothing.)"""
    found = []
    for seed in range(args.repeat):
        study = Study(args, args.draft)
        engine = study.llm.engine
        with tempfile.TemporaryDirectory() as where:
            bad = LLM(shuffled(Path(args.draft), Path(where) / "draft"), drafter="none", dtype=args.dtype,
                      quantize=args.quantize, blocks=64).engine.model  # fmt: skip
        bad.allocate(engine.config.blocks, engine.config.block_size)
        switch = Switch(engine.components["draft"], bad)
        engine.components["draft"] = engine.drafters.host.draft = switch
        engine.drafters.drafters.clear()
        given, ran = list[bool](), list[bool]()
        for stage in range(3):
            switch.now = switch.models[stage % 2]
            begun, passes, turn = len(given), Counter[str](), seed
            while len(given) < begun + 200:
                engine.submit(study.prompts[turn % len(study.prompts)], study.wish(study.choice))
                turn += 1
                while engine.busy and len(given) < begun + 200:
                    calls, before = switch.passes, {d: s.drafted for d, s in engine.desk.totals.drafters.items()}
                    engine.step()
                    now = {d: s.drafted for d, s in engine.desk.totals.drafters.items()}
                    used = [d for d, n in now.items() if n > before.get(d, 0)]
                    given.append(any("model" in d or "topk" in d for d in used))
                    ran.append(switch.passes > calls)
                    passes.update(used or ["none"])
            for request in [*engine.desk.running, *engine.desk.waiting]:
                engine.abort(request)
            good = stage % 2 == 0
            steps = given if good else ran
            window = [np.mean(steps[i : i + 20]) for i in range(begun, len(steps) - 19)]
            at = next((i for i, share in enumerate(window) if (share >= 0.8 if good else share <= 0.2)), None)
            found.append(
                {"stage": "mended" if stage else "start", "after": at} if good else {"stage": "broken", "after": at}
            )
            print(found[-1], dict(passes), flush=True)
    return {"steps": found}


def error(args: argparse.Namespace) -> dict[str, Any]:
    """Error of every step that `auto` takes: |predicted / measured - 1|, predicted before the step from its plan."""
    study = Study(args, args.draft)
    wrong: list[float] = []
    times = study.llm.engine.table.times
    observe = times.observe

    def watch(work: Any, parts: Any, took: Any) -> None:
        wrong.append(abs(times.predict(work, parts) / took.total - 1))
        observe(work, parts, took)

    class Watched(type(times)):  # type: ignore[misc]
        __slots__ = ()

    times.__class__ = Watched
    Watched.observe = staticmethod(watch)  # type: ignore[assignment]
    for load in (Load("1 at a time", 1, most=12), Load("4", 4, most=24), Load("16", 16)):
        del wrong[:]
        serve(study.llm, study.prompts, load, study.wish(study.choice), 0)
        print(
            f"{load.name}: {len(wrong)} steps, mean absolute error {np.mean(wrong):.1%}, median {np.median(wrong):.1%}"
        )
    return {}


def crowd(args: argparse.Namespace) -> dict[str, Any]:
    """Speed at several numbers of concurrent requests: what a fresh engine's `auto` does with texts that it meets for
    the first time, then in turns with plain decoding; each figure is a ratio to the median of plain. `--rival`: a fixed
    drafter that takes turns, too."""
    rows = []
    for places in map(int, args.at.split(",")):
        study = Study(args, args.draft)
        load = Load(f"{places} at a time", places, most=max(args.num_prompts if places == 1 else places, places))
        study.serve(load, "none", 0)  # memory is touched
        speed: dict[str, list[float]] = {"first": [study.serve(load, study.choice, 0).speed]}
        turn = ["none", study.choice, *(args.rival.split(",") if args.rival else [])]
        for repeat in range(args.repeat):
            for drafter in turn if repeat % 2 == 0 else reversed(turn):
                speed.setdefault(drafter, []).append(study.serve(load, drafter, 0).speed)
        plain = float(np.median(speed["none"]))
        ratios = {name: round(float(np.median(each)) / plain, 3) for name, each in speed.items()}
        totals = study.llm.engine.desk.totals.drafters
        drafted = {name: [stats.drafted, stats.accepted] for name, stats in totals.items()}
        print(f"{load.name}: plain {plain:.1f} tokens/s", ratios, "drafted and accepted", drafted, flush=True)
        rows.append({"places": places, "speed": speed, "ratios": ratios})
        del study
        gc.collect()
    return {"rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("loads", "broken", "change", "error", "crowd"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--prompts", required=True, nargs="+")
    parser.add_argument("--num-prompts", type=int, default=48)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantize")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", default="4G")
    parser.add_argument("--at", default="1,4,8,12,16", help="crowd: requests at once")
    parser.add_argument("--rival", default="", help="crowd: drafters beside none and auto")
    parser.add_argument("--plot")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = {"loads": loads, "broken": broken, "change": change, "error": error, "crowd": crowd}[args.what](args)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
