"""Promise two on machines that nobody has seen: the planner on a virtual clock, beside plain decoding, every fixed
drafter, and the best choice in hindsight.

    python bench/studies/regret.py machines --count 500 [--seed 0] [--json new.json] [--beside old.json]
    python bench/studies/regret.py logs DIR/*.json [--json ...] [--beside ...]     (scenarios of `regret_record.py`)

The engine's own desk, cache and planner decide. What a step takes and what is kept of a draft come from a machine and
texts that the planner does not know: a roofline with panels, a draft model, noise, other programs that come and go;
texts whose acceptance differs, changes in the middle, or is none at all. The planner's table was measured on that
machine (well, or under pressure). Every figure is tokens/s over that of the same requests without drafts.
`hindsight` knows what each drafter's next draft would keep on average over the text, and all true times.
"""

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from regret_machine import ARMS, FACTS, Machine

from paceline.core.noise import SimulationNoise
from paceline.core.plan import Item, Work
from paceline.engine.config import EngineConfig
from paceline.engine.desk import lease_of
from paceline.plan.cost import Drafting, StepTimes
from paceline.plan.governor import fitting
from paceline.simulate.figures import figures
from paceline.simulate.log import Arrival, Setup
from paceline.simulate.simulator import Simulator
from paceline.simulate.workload import Speech, Workload, WorkloadJob

DEEPEST = 16


@dataclass
class Text:
    """One answer: at each place, what each drafter offers and how many tokens of a long draft are kept."""

    prompt: int
    tokens: int
    temperature: float
    rows: dict[str, list[int]]
    kept: dict[str, list[int]]

    @classmethod
    def drawn(cls, rng: random.Random, tokens: int, skill: dict[str, float], t: float) -> "Text":
        """`skill` {drafter: usual chance of a token}. A text differs from it, and may change in the middle."""
        rows, kept = dict[str, list[int]](), dict[str, list[int]]()
        change = rng.randrange(tokens) if rng.random() < 0.3 else tokens
        for name in ("ngram", "model"):
            usual = skill[name]
            logit = math.log(usual / (1 - usual))
            chances = [1 / (1 + math.exp(-rng.gauss(logit, 0.7))) for _ in range(2)]
            seen = [rng.uniform(0.05, 0.6) if name == "ngram" else 1.0 for _ in range(2)]
            easy, found, matching = list[bool](), list[bool](), False
            for i in range(tokens + DEEPEST):
                half = int(i > change)
                matching = rng.random() < (0.8 if matching else seen[half] / 3)
                found.append(name == "model" or matching)
                easy.append(found[-1] and rng.random() < chances[half])
            deep = [0] * (tokens + DEEPEST + 1)
            for i in reversed(range(tokens + DEEPEST)):
                deep[i] = min(35, deep[i + 1] + 1) if easy[i] else 0
            kept[name] = deep[:tokens]
            beyond = [min(8, 1 + int(rng.expovariate(1.0))) for _ in range(tokens)]
            rows[name] = [deep[i] + beyond[i] if found[i] else 0 for i in range(tokens)]
        tree = [d + (d < 8 and rng.random() < 0.5) * (1 + (rng.random() < 0.4)) for d in kept["model"]]
        kept["ngram+topk"] = [max(a, b) for a, b in zip(tree, kept["ngram"])]
        rows["ngram+topk"] = [16] * tokens
        return cls(rng.randrange(20, 400), tokens, t, rows, kept)


class Truth:
    """What is drawn and kept of a draft: `Workload.rates`."""

    def __init__(self, texts: dict[int, Text]) -> None:
        self.texts = texts

    def draw(self, item: Item, noise: SimulationNoise, ahead: int = 0) -> tuple[list[int], int]:
        text, at = self.texts[item.request.id], len(item.request.output) + ahead
        if at >= text.tokens or item.drafter not in text.kept:
            return [], 0
        deepest, name = min(item.nodes, item.depth - ahead, DEEPEST), item.drafter
        rows, kept = min(item.nodes, text.rows[name][at]), text.kept[name][at]
        price = 0.1 if item.min_chance is None else max(0.01, item.min_chance.node)
        if FACTS[name].chain:
            rows = min(rows, deepest, sure(kept, price) if name == "model" else DEEPEST)
            return [1] * rows, min(kept, rows)
        rows = min(rows, max(1, int(1.2 / price)))
        depth = min(deepest, max(1, (rows + 1) // 2))
        offered = [rows // depth + (d < rows % depth) for d in range(depth)] if rows else []
        return offered, min(kept, depth) if rows else 0


def sure(kept: int, price: float) -> int:
    """Tokens that a draft model drafts before it thinks the next one not worth this price, where so many are right: it
    is surer of those, and half sure of the first wrong one."""
    chance, count = 1.0, 0
    while count < 8:
        chance *= 0.87 if count < kept else 0.45 if count == kept else 0.65
        if chance < price:
            break
        count += 1
    return count


@dataclass
class World:
    """A machine, its texts, and how many come at once."""

    name: str
    machine: Machine
    texts: list[Text]
    clients: int
    table: str = "clean"
    seed: int = 0
    noise: int = 0
    """Seed of the noise of its steps, for another run of the same world."""
    named: str = ""
    """Drafter that every second request names, whatever serves the others."""

    @classmethod
    def drawn(cls, seed: int) -> "World":
        rng = random.Random(seed)
        machine = Machine.drawn(rng)
        clients = rng.choice((1, 1, 1, 1, 2, 4, 8, 16, 64))
        tokens = rng.choice((24, 64, 128, 256))
        kinds = {"good": (0.5, 0.85), "usual": (0.4, 0.7), "poor": (0.25, 0.5), "broken": (0.01, 0.01)}
        kind = rng.choice(("good", "good", "usual", "usual", "poor", "broken"))
        lookup, model = kinds[kind]
        most = 900 if clients == 1 else 500 if clients < 8 else 220
        count = max(clients, most * clients // tokens)
        t = rng.choice((0.0, 0.0, 0.8))
        texts = [
            Text.drawn(rng, max(2, round(tokens * rng.uniform(0.5, 1.5))), {"ngram": lookup, "model": model}, t)
            for _ in range(count)
        ]
        table = rng.choice(("clean", "clean", "clean", "pressure"))
        return cls(
            f"{seed} {kind} {clients} at once, {tokens} tokens, table {table}", machine, texts, clients, table, seed
        )

    @classmethod
    def recorded(cls, path: Path) -> "World":
        data = json.loads(path.read_text(encoding="utf-8"))
        texts = []
        for t in data["texts"]:
            rows = {name: [int(c, 36) for c in pair[0]][: t["tokens"]] for name, pair in t["drafters"].items()}
            kept = {name: [int(c, 36) for c in pair[1]][: t["tokens"]] for name, pair in t["drafters"].items()}
            tokens = min(map(len, kept.values()))
            texts.append(Text(t["prompt"], tokens, t["temperature"], rows, kept))
        return cls(data["name"], Machine.recorded(random.Random(0), data["machine"]), texts, data["clients"])

    def run(self, drafter: str) -> tuple[float, dict[str, Any]]:
        """Tokens/s of all texts by this drafter, and what else there is to say."""
        table = self.machine.table(self.table)
        machine = deepcopy(self.machine)
        machine.rng = random.Random(self.seed + 1 + self.noise)
        served = [self.named if self.named and i % 2 else drafter for i in range(len(self.texts))]
        jobs = [
            WorkloadJob(0.0, [Arrival(0.0, i, i, [0] * t.prompt, served[i],
                                      ARMS if served[i] == "auto" else (), "exact", t.tokens,
                                      judge_free=True, params={"temperature": t.temperature})])
            for i, t in enumerate(self.texts)
        ]  # fmt: skip
        outputs = {i: Speech([0] * t.tokens, "length") for i, t in enumerate(self.texts)}
        most = max(t.prompt + t.tokens for t in self.texts) // 16 + 2
        config = EngineConfig(
            blocks=most * (min(self.clients, 64) + 1), drafter="auto", prefix_cache=False, cheap_rows=16
        )
        setup = Setup(config, ("draft",), FACTS, table.dump())
        truth = Truth(dict(enumerate(self.texts)))
        twin = OnMachine(
            Workload(setup, jobs, outputs, truth, StepTimes()), self.clients, SimulationNoise(0), machine=machine,
            cold=20 * machine.target(Work(1, 1, 0, 0, 1)) if self.table == "none" else 0.0,
        )  # type: ignore[arg-type]  # fmt: skip
        began = time.perf_counter()
        events = twin.run()
        done = figures(events)
        return done.throughput, {"decided": time.perf_counter() - began, "drafters": dict(done.drafters), **twin.report}

    def hindsight(self) -> float:
        """Plain, or the drafter and number of nodes that would have been best for all texts together, every stretch of
        64 tokens for itself: with true times and true means."""
        n = min(self.clients, len(self.texts))
        spent = tokens = 0.0
        for start in range(0, max(t.tokens for t in self.texts), 64):
            part = [(t, i) for t in self.texts for i in range(start, min(start + 64, t.tokens))]
            length = round(statistics.mean(t.prompt + i for t, i in part))
            best = 1.0 / self.machine.seconds(Work.of([(1, length, 1)] * n), [], noisy=False).total
            for name in ARMS:
                for nodes in (1, 2, 3, 4, 6, 8) if FACTS[name].chain else (8, 16):
                    deep = nodes if FACTS[name].chain else nodes // 2
                    kept = rows = 0.0
                    for t, i in part:
                        had = min(nodes, t.rows[name][i])
                        rows, kept = rows + had, kept + min(t.kept[name][i], deep, had)
                    rows, kept = rows / len(part), kept / len(part)
                    every = round(n * rows)
                    depth = min(nodes, max(1, round(rows))) if FACTS[name].chain else 0
                    work = Work.of([(1, length, 1)] * n).more(every)
                    took = self.machine.seconds(work, [Drafting(name, n, depth, every)], noisy=False).total
                    best = max(best, (1 + kept) / took)
            spent, tokens = spent + len(part) / best, tokens + len(part)
        return n * tokens / spent


@dataclass(slots=True)
class OnMachine(Simulator):
    """The simulator on a machine of its own."""

    machine: Machine = field(default_factory=lambda: Machine(random.Random(0)))
    report: dict[str, Any] = field(default_factory=dict)
    cold: float = 0.0
    """Seconds more that the first step takes."""

    def _taken(self, plan: Any, twin: Any, results: Any, advanced: Any, done: Any) -> Any:
        from paceline.simulate.log import Outcome

        catching = self._catching(plan, advanced, twin)
        reads = sum(catching.values())
        for item in plan.items:  # a drafter reads what is new of a prompt before it drafts
            group = twin.table.entries[item.drafter].group if item.nodes else None
            if group is not None and item.given > 1:
                reads += max(0, lease_of(item.request).length + item.given - lease_of(item.request).frontier[group] - 1)
        times = self.machine.seconds(*done, reads=reads, now=self.now)
        times.reads = catching
        if self.cold and "took" not in self.report:
            times = replace(times, target=times.target + self.cold)
        governor = getattr(twin.table.policy, "governor", None)
        if governor is not None:
            self.report["account"] = governor.saved
            plain, took = self._quiet(governor.patience, results, *done, reads)
            self.report["true"] = self.report.get("true", 0.0) + plain - took
            self.report["took"] = self.report.get("took", 0.0) + took
        return Outcome(results, advanced, *done, times)

    def _quiet(
        self, patience: float, results: Any, work: Work, parts: Sequence[Drafting], reads: int
    ) -> tuple[float, float]:
        """Seconds that plain decoding takes for the tokens of this step, and that the step takes: both at the same
        pace and without noise, so that which of the two was interrupted more often is not judged."""
        pace, took = self.machine.pace(self.now), self.machine.seconds(work, parts, reads, noisy=False).total
        drawn = [len(result.tokens) for result in results if result.tokens]
        if not drawn:
            return pace * took, pace * took
        n, nodes = len(drawn), sum(part.nodes for part in parts)
        context = round(work.context * n / work.requests)
        alone = self.machine.seconds(Work(n, n, context, context, n), [], noisy=False)
        passes = fitting(patience, alone.target)
        one = alone.target + alone.rest / passes
        plain = sum(drawn) * one / n
        if work.passes == 1 and work.rows > n + nodes:  # with prompts
            plain += self.machine.seconds(replace(work, rows=work.rows - nodes), [], noisy=False).total - one
        return pace * plain, pace * took


def judge(world: World, fixed: bool) -> dict[str, Any]:
    plain, _ = world.run("none")
    auto, more = world.run("auto")
    share = auto / sum(text.tokens for text in world.texts)
    more["wrong"] = share * (more.get("account", 0.0) - more.get("true", 0.0))
    quiet = 1.0 + more["true"] / more["took"]
    row = {"name": world.name, "plain": plain, "auto": auto / plain, "quiet": quiet, **more}
    if fixed:
        each = {name: world.run(name)[0] / plain for name in ARMS}
        row |= {"fixed": each, "hindsight": world.hindsight() / plain}
    return row


def mean(values: Sequence[float]) -> float:
    """Geometric."""
    return math.exp(statistics.mean(map(math.log, values)))


def summary(name: str, rows: Sequence[dict[str, Any]]) -> str:
    values = sorted(row["auto"] for row in rows)
    least, one, five, middle = (values[min(len(values) - 1, int(q * len(values)))] for q in (0, 0.01, 0.05, 0.5))
    text = f"{name}: {len(values)} worlds, over plain: least {least:.3f}, 1 % {one:.3f}, 5 % {five:.3f}"
    text += f", median {middle:.3f}, mean {mean(values):.3f}; below 0.98 {sum(v < 0.98 for v in values)}"
    text += f", below 0.95 {sum(v < 0.95 for v in values)}"
    if quiet := sorted(row["quiet"] for row in rows if "quiet" in row):
        text += (
            f"; without noise: least {quiet[0]:.3f}, mean {mean(quiet):.3f}, below 0.98 {sum(v < 0.98 for v in quiet)}"
        )
    if wrong := sorted(abs(row["wrong"]) for row in rows if "wrong" in row):
        late = wrong[int(0.95 * len(wrong))]
        text += f"; account wrong by {statistics.median(wrong):.3f} of the time, 95 % {late:.3f}, most {wrong[-1]:.3f}"
    if with_fixed := [row for row in rows if "fixed" in row]:
        best = [row["auto"] / max(1.0, *row["fixed"].values()) for row in with_fixed]
        seen = [row["auto"] / row["hindsight"] for row in with_fixed]
        text += f"; over the best fixed {mean(best):.3f} (least {min(best):.3f}); over hindsight {mean(seen):.3f}"
    return text


def show(rows: Sequence[dict[str, Any]], beside: Sequence[dict[str, Any]]) -> None:
    old = {row["name"]: row["auto"] for row in beside}
    print(summary("new" if old else "all", rows))
    if old:
        same = [row for row in rows if row["name"] in old]
        print(summary("old", [row for row in beside if row["name"] in {row["name"] for row in same}]))
        ratios = [row["auto"] / old[row["name"]] for row in same]
        below = sum(ratio < 0.99 for ratio in ratios)
        print(f"new over old: mean {mean(ratios):.4f}, least {min(ratios):.3f}, below 0.99: {below}")
    for row in sorted(rows, key=lambda row: row["auto"])[:8]:
        before = f" (old {old[row['name']]:.3f})" if row["name"] in old else ""
        print(f"  {row['auto']:.3f}{before}  {row['name']}  {row['drafters']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("machines", "logs"))
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fixed", type=int, default=5, help="of this many machines one runs every fixed drafter, too")
    parser.add_argument("--table", help="how prices were measured in all worlds: clean, pressure, x3, all5, none")
    parser.add_argument("--load", action="store_true", help="other programs come and go in all worlds")
    parser.add_argument("--noise", type=int, default=0, help="seed of the steps' noise")
    parser.add_argument("--named", default="", help="drafter that every second of at least two requests at once names")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--beside", type=Path, help="the figures of another planner")
    args = parser.parse_args()
    rows, end = list[dict[str, Any]](), time.monotonic() + args.limit
    if args.what == "logs":
        for path in args.paths:
            world = World.recorded(path)
            rows.append(judge(replace(world, table=args.table or world.table, noise=args.noise), True))
            row = rows[-1]
            each = {k: round(v, 3) for k, v in row["fixed"].items()}
            print(
                f"{row['name']}: auto {row['auto']:.3f}",
                each,
                f"hindsight {row['hindsight']:.3f}",
                row["drafters"],
                flush=True,
            )
    else:
        for i in range(args.count):
            world = World.drawn(args.seed + i)
            if args.load:
                world = replace(world, machine=world.machine.loaded(args.seed + i))
            if args.named:
                world = replace(world, named=args.named, clients=max(2, world.clients))
            rows.append(judge(replace(world, table=args.table or world.table, noise=args.noise), i % args.fixed == 0))
            if time.monotonic() > end:
                break
    if args.json:
        args.json.write_text(json.dumps(rows), encoding="utf-8")
    show(rows, json.loads(args.beside.read_text(encoding="utf-8")) if args.beside else [])


if __name__ == "__main__":
    main()
