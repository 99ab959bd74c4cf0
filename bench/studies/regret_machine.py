"""Machines of the regret study: seconds that they take for what an engine does, which the planner does not know."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.core.plan import Work
from paceline.plan import DrafterFacts
from paceline.plan.cost import KNOTS, Drafting, StepTimes, Times

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
