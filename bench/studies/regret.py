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

from paceline.core.noise import SimulationNoise
from paceline.core.plan import Item, Work
from paceline.engine.config import EngineConfig
from paceline.engine.desk import lease_of
from paceline.plan import DrafterFacts
from paceline.plan.cost import KNOTS, Drafting, StepTimes, Times
from paceline.plan.governor import fitting
from paceline.simulate.figures import figures
from paceline.simulate.log import Arrival, Setup
from paceline.simulate.simulator import Simulator
from paceline.simulate.workload import Speech, Workload, WorkloadJob

ARMS = ("ngram", "model", "ngram+topk")
FACTS = {
    "none": DrafterFacts(0, True),
    "ngram": DrafterFacts(nodes=8, chain=True, runs=True),
    "model": DrafterFacts(nodes=8, chain=True, group="draft", limit=8192, stops_early=True, runs=True),
    "topk": DrafterFacts(nodes=16, chain=False, group="draft", limit=8192, stops_early=True, runs="greedy"),
    "ngram+topk": DrafterFacts(
        nodes=16, chain=False, group="draft", limit=8192, stops_early=True, always_asked="ngram", runs="greedy"
    ),
}
DEEPEST = 16
PRESSED = 2 * statistics.NormalDist().cdf(0.8) * math.exp(0.8**2 / 2)
"""Wall over CPU time of a start under pressure: the mean of exp(|N(0, 0.8)|), by which its times are too long."""


@dataclass
class Machine:
    """Seconds of what an engine does."""

    rng: random.Random
    stairs: dict[int, float] = field(default_factory=dict)
    """Of a pass by rows, where it was recorded; else the roofline below holds."""
    read: float = 0.0
    row: float = 0.0
    panel: float = 0.0
    context: float = 0.0
    """A committed row that a request reads; `again` is the share of it that a further row of the request costs."""
    again: float = 0.0
    request: float = 0.0
    rest: tuple[float, float, float] = (2e-4, 2e-4, 3e-5)
    drafts: dict[str, tuple[float, float, float, float]] = field(default_factory=dict)
    """{drafter: seconds of a call, a request, a level of depth, a node}"""
    reading: float = 0.0
    """A row of a prompt for the draft model."""
    noise: float = 0.05
    spikes: float = 0.0
    wait: tuple[float, float] = (1, 7)
    """Plain steps that a spike takes."""
    shift: tuple[float, float] = (math.inf, 1.0)
    """Tokens/s change at this time by this factor, when another program comes."""
    load: tuple[float, ...] = ()
    """Other programs come and go: how many times as long everything takes in each stretch of `stretch` seconds."""
    stretch: float = 1.0

    @classmethod
    def drawn(cls, rng: random.Random) -> "Machine":
        def between(low: float, high: float) -> float:
            return math.exp(rng.uniform(math.log(low), math.log(high)))

        one = between(1.5e-3, 0.12)
        level = one * between(0.03, 0.6)
        call, wide = between(2e-5, 3e-4), rng.uniform(0.02, 0.3)
        rest, row = between(1e-4, 6e-4), one * between(0.004, 0.35)
        return cls(
            rng,
            read=one * rng.uniform(0.6, 0.95),
            row=row,
            panel=one * rng.choice((0.0, 0.0, rng.uniform(0.05, 0.4))),
            context=one * rng.uniform(0, 0.3) / 1000,
            again=rng.uniform(0, 1),
            request=between(1e-6, 1e-4),
            rest=(rest, rest, between(1e-5, 6e-5)),
            drafts={
                "ngram": (2e-5, between(5e-6, 5e-5), 0.0, 1e-6),
                "model": (call, 1e-5, level, level * wide),
                "topk": (call, 2e-5, 0.0, level * rng.uniform(0.3, 0.7)),
                "ngram+topk": (call, 4e-5, 0.0, level * rng.uniform(0.3, 0.7)),
            },
            reading=level / one * row,
            noise=rng.choice((0.02, 0.05, 0.15)),
            spikes=rng.choice((0.0, 0.0, 0.005)),
            shift=(rng.uniform(1, 20), between(0.7, 1.6)) if rng.random() < 0.3 else (math.inf, 1.0),
        )

    def loaded(self, seed: int) -> "Machine":
        """This machine while other programs come and go, a stretch of 20 to 200 plain steps each; one step in 400 waits
        for 5 to 50 plain steps."""
        rng, one = random.Random(seed), self.target(Work(1, 1, 0, 0, 1))
        load = tuple(rng.choice((1.0, math.exp(rng.uniform(0, math.log(4))))) for _ in range(64))
        return replace(self, load=load, stretch=one * rng.uniform(20, 200), noise=0.15, spikes=1 / 400, wait=(5, 50))

    @classmethod
    def recorded(cls, rng: random.Random, m: dict[str, Any]) -> "Machine":
        call, several, request = m["rest"]
        return cls(
            rng, {int(k): v for k, v in m["stairs"].items()}, context=m["context"], request=m["requests"],
            rest=(call, several or call, request), drafts={k: tuple(v) for k, v in m["drafts"].items()},
            reading=m["drafts"]["model"][2] / 8, noise=m["noise"],
        )  # fmt: skip

    def target(self, work: Work) -> float:
        if self.stairs:
            knots = sorted(self.stairs)
            low = max((k for k in knots if k <= work.rows), default=knots[0])
            high = min((k for k in knots if k >= work.rows), default=None)
            if high is None:
                rows = self.stairs[knots[-1]] * work.rows / knots[-1]
            else:
                part = (work.rows - low) / (high - low) if high > low else 0.0
                rows = self.stairs[low] * (1 - part) + self.stairs[high] * part
        else:
            compute = self.row * work.rows
            rows = (self.read**4 + compute**4) ** 0.25 + self.panel * ((work.rows - 1) // 16)
        further = max(0, work.pairs - work.context) * self.again
        return work.passes * (rows + self.context * (work.context + further) + self.request * work.requests)

    def draft(self, part: Drafting) -> float:
        call, request, level, node = self.drafts[part.drafter]
        return call * max(1, part.passes) + request * part.requests + level * part.depth + node * part.nodes

    def pace(self, now: float) -> float:
        """How many times as long everything takes at this time, because of other programs."""
        load = self.load[int(now / self.stretch) % len(self.load)] if self.load else 1.0
        return load * (self.shift[1] if now > self.shift[0] else 1.0)

    def seconds(
        self, work: Work, parts: Sequence[Drafting], reads: int = 0, noisy: bool = True, now: float = 0.0
    ) -> Times:
        one, target = self.target(Work(1, 1, 0, 0, 1)), self.target(work)
        spread = self.noise * math.sqrt(min(1.0, one / target))  # of a long step the parts differ, not the whole
        factor = math.exp(self.rng.gauss(0, spread)) if noisy else 1.0
        if noisy and self.rng.random() < self.spikes:  # another program runs for some time, however long the step is
            factor += self.rng.uniform(*self.wait) * one / target
        factor *= self.pace(now) if noisy else 1.0
        drafts = {p.drafter: factor * self.draft(p) for p in parts}
        if reads:
            drafts["model"] = drafts.get("model", 0.0) + factor * self.reading * reads
        call, several, request = self.rest
        rest = (call if work.passes == 1 else several) + request * work.requests
        return Times(factor * target, drafts, factor * rest)

    def table(self, how: str) -> StepTimes:
        """What start-up would have measured: `clean`; under `pressure`; `x3`: drafts alone three times too slow;
        `all5`: everything five times too slow, and each size of pass differently, as under a quota; `none`: nothing, as
        in a first `generate`, whose first step also reads the weights from a disk."""
        times = StepTimes()
        if how == "none":
            return times
        wrong = {
            "p": lambda: math.exp(abs(self.rng.gauss(0, 0.8))),
            "a": lambda: float(how[3:]) * math.exp(self.rng.gauss(0, 0.4)),
        }.get(how[0], lambda: math.exp(self.rng.gauss(0, 0.02)))
        kinds = [(1, k, 32) for k in KNOTS if k <= 512] + [(n, k, 32) for n in (4, 16) for k in (1, 4)]
        kinds += [(1, 1, 1024), (1, 16, 1024), (4, 1, 1024)]
        works = [Work(n * k, n, n * c, n * k * c, n * min(k, 64)) for n, k, c in kinds]
        times.fit_target([(w, self.target(w) * wrong()) for w in works])
        steps = []
        for n in (1, 4, 16):
            steps.append((Work.of([(1, 64, 1)] * n), []))
            steps.append((Work(n, n, n * 64, n * 64, n, 2), []))
            for name in ARMS:
                for nodes in (3, 14):
                    depth = nodes if FACTS[name].chain else 0
                    steps.append((Work.of([(1 + nodes, 64, 1 + nodes)] * n), [Drafting(name, n, depth, n * nodes)]))
                    steps.append((Work(n * (1 + nodes), n, n * 64, n * 64 * (1 + nodes), n * (1 + nodes), 2),
                                  [Drafting(name, 2 * n, 2 * depth, 2 * n * nodes, 2)]))  # fmt: skip
        took = []
        for work, parts in steps:
            t = self.seconds(work, parts, noisy=False)
            took.append(
                (
                    work,
                    parts,
                    Times(t.target * wrong(), {k: v * wrong() for k, v in t.drafts.items()}, t.rest * wrong()),
                )
            )
        times.fit(took)
        if how == "pressure":
            times.doubt = PRESSED
        elif how.startswith("all"):
            times.doubt = float(how[3:])
        elif how.startswith("x"):
            times.drafts = {name: terms.scaled(float(how[1:])) for name, terms in times.drafts.items()}
            times.doubt = max(1.01, float(how[1:]) * math.exp(random.Random(how + str(self.read)).gauss(0, 0.25)))
        return times


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

        reads = sum(self._catching(plan, advanced, twin).values())
        for item in plan.items:  # a drafter reads what is new of a prompt before it drafts
            group = twin.table.entries[item.drafter].group if item.nodes else None
            if group is not None and item.given > 1:
                reads += max(0, lease_of(item.request).length + item.given - lease_of(item.request).frontier[group] - 1)
        times = self.machine.seconds(*done, reads=reads, now=self.now)
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
