"""What a step costs: a table per model and machine, measured at start-up, refined by every step since.

    seconds = speed * (passes * target(rows, requests, context, pairs) + rest(requests, nodes))
              + draft(drafter, requests, depth, nodes) + ...

`target` is a staircase: one value at each of `KNOTS` rows (panels of 16 rows share a read of the weights), straight
between them; reading K/V is linear. `speed` follows the machine's memory, which others may share: what reads much, or
finds its caches emptied, takes a third longer in one hour than in the next, and a draft model that fits them does not.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import pairwise
from math import inf
from typing import Any

from paceline.core.plan import Work
from paceline.plan.belief import DEPTH

KNOTS = (1, 2, 4, 5, 8, 9, 10, 16, 17, 24, 32, 33, 48, 49, 64, 65, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
"""Rows. The step from 16 to 17 opens a panel; AVX2 takes rows in fours, and products of few rows end at 8 or 9."""
CHEAP_ROWS, STEEP = (16, 8, 4), 1.5
"""Numbers of rows of which one is cheap, the last in any case; how much longer a pass of twice the rows takes where the
second half is not."""
SCORED_KNOT = 64
"""Rows of one request up to which a pass was timed with scores of each row, as a draft needs them. More rows are a
prompt's, whose last row alone is scored."""
RATE, DRIFT = 0.1, 0.2
"""How far one step moves the terms that it is made of; and `speed`, or all terms of a drafter."""
FLOOR = 1e-9
OFF = 2.0
"""Factor between what was measured and what was expected at which one interrupted step says little, if it took longer;
nothing makes a step that much faster by chance, so a price that is that much too high is mended at once."""
YOUNG = 4
"""Steps of a drafter in service, or rounds of it, in which it is hardly known: its price may be mended by any factor,
and its choice holds for as many steps. Those in which it had nothing to offer do not count."""

Features = Mapping[Any, float]


class Terms:
    """seconds = sum of weight * feature, all non-negative."""

    def __init__(self, weights: Mapping[Any, float]) -> None:
        self.weights: dict[Any, float] = dict(weights)

    def predict(self, x: Features) -> float:
        return sum((self.weights[k] * v for k, v in x.items()), 0.0)

    def scaled(self, factor: float) -> "Terms":
        return Terms({k: factor * w for k, w in self.weights.items()})

    def learn(self, x: Features, ratio: float, rate: float = RATE) -> None:
        """A step took `ratio` times what was predicted: each term moves by its share in the prediction."""
        total = self.predict(x) or FLOOR
        for k, v in x.items():
            self.weights[k] *= 1.0 + rate * (ratio - 1.0) * self.weights[k] * v / total

    def fit(self, samples: Sequence[tuple[Features, float]], power: int = 2, rounds: int = 300) -> None:
        """Least squares by multiplicative updates (Lee and Seung 2001), which keep the sign: of the error relative to
        the measured seconds, or at `power` 0 of the error itself, whose mean is then right."""
        for _ in range(rounds):
            above, below = dict.fromkeys(self.weights, 0.0), dict.fromkeys(self.weights, FLOOR)
            for x, seconds in samples:
                mine, weight = self.predict(x), seconds**-power
                for k, v in x.items():
                    above[k] += v * weight * seconds
                    below[k] += v * weight * mine
            for k, a in above.items():
                if a:
                    self.weights[k] *= a / below[k]


@lru_cache(maxsize=1 << 12)
def hats(rows: int) -> Mapping[int, float]:
    """Weights of the two knots around `rows`; beyond the last one, in proportion to that."""
    i = min(max(bisect_right(KNOTS, rows), 1), len(KNOTS) - 1)
    low, high = KNOTS[i - 1], KNOTS[i]
    if rows > high:
        return {high: rows / high}
    part = max(0.0, (rows - low) / (high - low))
    return {low: 1.0 - part, high: part}


def rising(values: Iterable[float]) -> list[float]:
    """The nearest values that never fall: neighbours that do get their mean (isotonic regression)."""
    pools = list[tuple[float, int]]()
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            before, many = pools.pop()
            mean, count = (mean * count + before * many) / (count + many), count + many
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Drafting:
    """One drafter's part of a step: how many requests it drafts for, its deepest chain, and all its nodes. The
    depth of trees is not counted: how many passes their nodes take is the drafter's own affair."""

    drafter: str
    requests: int
    depth: float
    nodes: int
    passes: int = 0
    """Passes of the run that it is a part of, with all that it drafts there; 0: a step of one pass."""

    def features(self) -> dict[str, float]:
        call = ("several", self.passes) if self.passes else ("call", 1.0)
        return {call[0]: call[1], "requests": self.requests, "depth": self.depth, "nodes": self.nodes}


def judged(parts: Iterable[Drafting]) -> int:
    """The nodes of a step that are judged one by one: not those of a run."""
    return sum(part.nodes for part in parts if not part.passes)


@dataclass(slots=True)
class Times:
    """Seconds of one step, by part; `rest` is all that is neither the target's pass nor drafting."""

    target: float
    drafts: dict[str, float]
    rest: float
    saved: float = 0.0
    """For which the target's pass and drafting ran at once, so that they count once."""
    reads: dict[str, int] = field(default_factory=dict)
    """{drafter: rows of texts that it read for requests for which it did not draft}"""

    @property
    def total(self) -> float:
        return self.target + sum(self.drafts.values()) + self.rest - self.saved


def _target() -> Terms:
    return Terms({**{k: 1e-3 * (1.0 + k / 64) for k in KNOTS}, "requests": 1e-5, "context": 1e-7, "pairs": 1e-8})


def _draft(tree: bool = False) -> Terms:
    """Before anything is known. The depth of a tree is not counted: it pays for half a level by each node."""
    nodes = 5e-5 if tree else 1e-6
    return Terms({"call": 1e-5, "several": 1e-5, "requests": 1e-5, "depth": 1e-4, "nodes": nodes})


@dataclass(slots=True)
class StepTimes:
    """The table. Before it has seen a step its figures are only a shape, and the first step sets the scale."""

    target: Terms = field(default_factory=_target)
    rest: Terms = field(default_factory=lambda: Terms({"call": 1e-4, "several": 1e-4, "requests": 5e-5, "nodes": 1e-6}))
    drafts: dict[str, Terms] = field(default_factory=dict)
    speed: float = 1.0
    seen: int = 0
    beside: dict[str, float] = field(default_factory=dict)
    """{drafter that works while the target's pass runs: share of the shorter of the two that costs no time}.
    1: they are never in each other's way; 0: one after the other would be as quick."""
    measured: bool = False
    """Were passes of many sizes timed before the first request (`fit_target`)? Else only those of its steps."""
    error: float = 0.0
    """Mean absolute percentage error of the latest predictions, as a fraction."""
    plains: int = 0
    """Plain steps in service."""
    served: dict[str, int] = field(default_factory=dict)
    """Steps in service of each drafter. Until there are some it was timed at start-up alone, and a
    machine that has changed since has changed for it, too."""
    reading: dict[str, float] = field(default_factory=dict)
    """{drafter: seconds that it reads a text, as a share of the target's}, by steps in which it read at least half as
    many rows as the target"""
    timed: set[int] = field(default_factory=set)
    """Knots that a pass has touched where nothing was measured before the first request."""
    latest: list[Drafting] = field(default_factory=list)
    """What the latest step drafted."""
    doubt: float = 1.0
    """Factor by which prices of drafts may be too high: above 1 where the table was measured while the process had not
    a CPU to itself, wall over CPU time then. It holds for drafters that have no YOUNG steps in service yet."""

    def of_target(self, work: Work) -> float:
        """Seconds of the target's pass: `Terms.predict` of its features, written out, for choices ask it often."""
        w, pass_ = self.target.weights, 0.0
        for knot, part in hats(work.rows).items():
            pass_ += w[knot] * part
        read = w["context"] * work.context + w["pairs"] * work.pairs
        return self.speed * work.passes * (pass_ + w["requests"] * work.requests + read)

    def cheap_rows(self, most: int) -> int:
        """Rows, at most `most`, up to which twice as many do not take much longer: drafts seldom bring as much more."""
        w, (*more, least) = self.target.weights, CHEAP_ROWS
        return min(most, next((rows for rows in more if w[rows] <= STEEP * w[rows // 2]), least))

    def of_level(self, drafters: Iterable[str]) -> float:
        """Seconds of a pass of the draft model, by the first of these drafters that was timed, each of whose nodes is
        one; 0 where none was."""
        return next((self.drafts[name].weights["depth"] for name in drafters if name in self.drafts), 0.0)

    def of_reading(self, drafters: Iterable[str], rows: int) -> float:
        """Seconds in which the draft model of these drafters reads `rows` of a text: it takes about as many times
        longer for them than for one as the target does."""
        each = list(drafters)
        share = next((self.reading[name] for name in each if name in self.reading), None)
        if share is None:
            share = self.of_level(each) / self.of_target(Work.of([(1, rows, 1)]))
        return share * self.of_target(text_work(rows))

    def hope(self, drafter: str) -> float:
        """Lowest share of a drafter's price that can be true."""
        return 1.0 / self.doubt if self.served.get(drafter, 0) < YOUNG else 1.0

    def of_draft(self, part: Drafting) -> float:
        """Seconds of one drafter's part."""
        w = (self.drafts.get(part.drafter) or self.strange()).weights
        call = w["several"] * part.passes if part.passes else w["call"]
        return call + w["requests"] * part.requests + w["depth"] * part.depth + w["nodes"] * part.nodes

    def of_rest(self, requests: int, nodes: float, passes: int = 1) -> float:
        """Seconds of everything else: planning, judging, book-keeping. With several passes it is less, as they draw
        their tokens."""
        w = self.rest.weights
        call = w["call" if passes == 1 else "several"]
        return self.speed * (call + w["requests"] * requests + w["nodes"] * nodes)

    def of_saved(self, work: Work, parts: Iterable[Drafting]) -> float:
        """Seconds for which the target's pass and drafting run at once."""
        mine = [(self.of_draft(part), self.beside[part.drafter]) for part in parts if part.drafter in self.beside]
        target = self.of_target(work) if mine else 0.0
        return sum(share * min(target, draft) for draft, share in mine)

    def window(self, drafter: str, work: Work) -> int:
        """Nodes of a draft that is made, with one token more, in the time of a pass that verifies as many (PEARL,
        arXiv 2408.11850, section 4: gamma = t_target / t_draft)."""
        n = work.requests
        for nodes in range(2, DEPTH + 1):
            part = Drafting(drafter, n, nodes + 1, n * nodes)
            if self.of_draft(part) > self.of_target(work.more(n * nodes)):
                return nodes - 1
        return DEPTH

    def predict(self, work: Work, parts: Iterable[Drafting] = ()) -> float:
        """Seconds of a whole step."""
        each = list(parts)
        rest = self.of_rest(work.requests, judged(each), work.passes)
        return self.of_target(work) + sum(map(self.of_draft, each)) + rest - self.of_saved(work, each)

    def like_latest(self, work: Work) -> float:
        """Seconds of a step whose pass is this work, and in which what was drafted last is drafted again."""
        return self.predict(work, self.latest)

    def become(self, other: "StepTimes") -> None:
        """Take over all that another table says."""
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))

    def strange(self) -> Terms:
        """Terms of a drafter that start-up had no time for: as slow as the slowest that was timed, in each term. One
        whose depth is not counted pays for it by its nodes, half a level each: trees and merged drafts run the same
        models. Where nothing was timed at start, nobody is known to be slow yet."""
        known = [terms.weights for terms in self.drafts.values()] if self.measured else []
        if not known:
            return _draft().scaled(self.speed)
        costliest = {k: max(weights[k] for weights in known) for k in known[0]}
        costliest["nodes"] = max(weights["nodes"] + weights["depth"] / 2 for weights in known)
        return Terms(costliest)

    def drafter(self, name: str) -> Terms:
        if name not in self.drafts:
            self.drafts[name] = self.strange()
        return self.drafts[name]

    def observe(self, work: Work, parts: Sequence[Drafting], times: Times) -> None:
        """One step, as planned and as it was."""
        if not self.seen:
            self.speed = max(times.target, FLOOR) / self.target.predict(_features(work))
            self.drafts = {name: terms.scaled(self.speed) for name, terms in self.drafts.items()}
        new = {part.drafter for part in parts} - self.drafts.keys()
        with_prompts = work.passes == 1 and work.rows > work.requests + sum(part.nodes for part in parts)
        self.latest = [] if with_prompts else [*parts]  # next to prompts drafters have read those, too
        for part in self.latest:
            if part.nodes:
                self.drafter(part.drafter)
                self.served[part.drafter] = self.served.get(part.drafter, 0) + 1
        nodes, target = judged(parts), self.of_target(work)
        wrong = abs(self.predict(work, parts) / max(times.total, FLOOR) - 1.0)
        self.error += (wrong - self.error) / min(self.seen + 1, 100)
        self.seen += 1
        if any(part.drafter in self.beside for part in parts):
            self._overlapped(parts, times, target, {})  # the pass had not the machine for itself: no word of its terms
        else:
            self._passed(work, times.target, target)
        for name in times.reads.keys() - {part.drafter for part in parts} if self.seen > 1 else ():
            if 2 * (rows := times.reads[name]) >= work.rows:
                share = times.drafts.get(name, 0.0) / self.of_target(text_work(rows))
                self.reading[name] = self.reading.get(name, share) + DRIFT * (share - self.reading.get(name, share))
        for part in self.latest:
            if part.drafter in times.drafts and part.drafter in self.drafts:
                self._drafted(part, times.drafts[part.drafter], part.drafter in new)
        self.rest.learn(_others(work, nodes), _ratio(times.rest, self.of_rest(work.requests, nodes, work.passes)))

    def _drafted(self, part: Drafting, seconds: float, new: bool) -> None:
        """Drafting took `seconds`. In the first steps of a drafter its price is corrected at once where it is far too
        high, or where the drafter is `new` and its price is that of others; a doubted price becomes the mean of these
        steps."""
        terms, ratio = self.drafts[part.drafter], seconds / max(self.of_draft(part), FLOOR)
        served = self.served.get(part.drafter, 0)
        young = part.nodes and served <= YOUNG and (self.measured or (new and self.plains > 0))
        if young and (ratio < 1.0 / OFF or (ratio > OFF and new)):
            terms = terms.scaled(max(ratio, FLOOR))
        elif young and self.doubt > 1.0:
            terms = terms.scaled(1.0 + (min(ratio, OFF) - 1.0) / served)
        else:
            ratio = min(OFF, max(1.0 / OFF, ratio))
            faster = 1.0 + DRIFT * (ratio - 1.0)
            terms = terms.scaled(faster)
            terms.learn(part.features(), ratio / faster)
        self.drafts[part.drafter] = terms

    def _passed(self, work: Work, seconds: float, expected: float) -> None:
        """A pass of the target took `seconds`. A plain one tells the machine's speed; one with further rows, whether
        that number of them is priced well. Where start-up was busy, or measured nothing, the first plain pass sets the
        speed in full; so does any pass that is far too quick, as far as there is doubt."""
        ratio = min(OFF, max(seconds, FLOOR) / max(expected, FLOOR))
        quick, plain, faster = ratio < 1.0 / OFF, work.rows == work.requests, 1.0
        near = {k for k, part in hats(work.rows).items() if part}
        if plain or quick:
            self.plains += plain
            first = plain and self.plains == 1 and (self.doubt > 1.0 or not self.measured)
            weight = 1.0 if first else DRIFT
            faster = max(ratio, 1.0 / self.doubt) if not plain else ratio if quick else 1.0 + weight * (ratio - 1.0)
            self.speed *= faster
            if first and not self.measured:  # what was timed keeps its seconds
                for k in self.timed - near:
                    self.target.weights[k] /= faster
            for name in self.drafts.keys() - {part.drafter for part in self.latest}:
                self.drafts[name] = self.drafts[name].scaled(faster)
            self.doubt = max(1.0, self.doubt * faster)
        ratio /= faster
        unknown = not self.measured and self.seen > 1 and not near <= self.timed
        if quick or unknown:
            if unknown:
                ratio = max(seconds, FLOOR) / max(expected, FLOOR) / faster
                self.timed |= near
            for k in near if unknown else hats(work.rows):
                self.target.weights[k] *= ratio
        else:
            self.target.learn(_features(work), ratio, RATE if plain else DRIFT)
        self._in_order(work.rows)

    def _overlapped(self, parts: Sequence[Drafting], times: Times, target: float, rates: dict[str, float]) -> None:
        """What a step saved by doing two things at once, next to a pass that takes `target` seconds alone. `rates`: how
        far it moves a drafter's figure, where that is not DRIFT."""
        for name in {part.drafter for part in parts} & self.beside.keys():
            draft = times.drafts.get(name, 0.0)
            spent = times.total - times.rest - sum(s for other, s in times.drafts.items() if other != name)
            share = (target + draft - spent) / max(min(target, draft), FLOOR)
            self.beside[name] += rates.get(name, DRIFT) * (min(1.0, max(-1.0, share)) - self.beside[name])

    def _in_order(self, rows: int) -> None:
        """Fewer rows never cost more: what was just seen at `rows` bounds the knots on both sides."""
        weights, near = self.target.weights, hats(rows)
        least, most = min(weights[k] for k in near), max(weights[k] for k in near)
        for k in KNOTS:
            if k < min(near):
                weights[k] = min(weights[k], most)
            elif k > max(near):
                weights[k] = max(weights[k], least)

    def fit_target(self, samples: Sequence[tuple[Work, float]], unscored: float = 1.0) -> None:
        """The target's terms from passes of it alone. Knots (numbers of rows) that none of them touches go on in
        proportion to those below. `unscored`: share of such a pass's time that it takes if its last row alone is
        scored: a large vocabulary is a good part of each row."""
        if not samples:
            return
        self.speed, self.seen, self.measured = 1.0, len(samples), True
        scale = samples[0][1] / self.target.predict(_features(samples[0][0]))
        self.target = self.target.scaled(scale)
        self.target.fit([(_features(work), seconds) for work, seconds in samples])
        weights = self.target.weights
        touched = {k for work, _ in samples for k, weight in hats(work.rows).items() if weight}
        known = [k for k in KNOTS if k in touched]
        weights.update(zip(known, rising(weights[k] for k in known)))
        for below, k in pairwise((KNOTS[0], *KNOTS)):
            if k not in touched:
                near = max((j for j in known if j < k), default=known[0])
                above = min((weights[j] for j in known if j > k), default=inf)
                share = unscored if near <= SCORED_KNOT < k else 1.0
                least = weights[max(below, near)]
                weights[k] = min(above, max(least, share * weights[near] * k / near))

    def fit(self, samples: Sequence[tuple[Work, Sequence[Drafting], Times]]) -> None:
        """What drafting and the rest take, from steps of an engine."""
        self.rest.fit([(_others(work, judged(parts)), max(times.rest, FLOOR)) for work, parts, times in samples])
        for name in sorted({part.drafter for _, parts, _ in samples for part in parts}):
            mine = [(p, t.drafts[name]) for _, ps, t in samples for p in ps if p.drafter == name]
            tree = not any(part.depth for part, _ in mine)
            self.drafts.setdefault(name, _draft(tree)).fit(
                [(p.features(), max(seconds, FLOOR)) for p, seconds in mine], power=0
            )
        seen = Counter[str]()
        for work, parts, took in samples:
            seen.update({part.drafter for part in parts})
            rates = {name: max(DRIFT, 1.0 / count) for name, count in seen.items()}
            self._overlapped(parts, took, self.of_target(work), rates)

    def dump(self) -> dict[str, Any]:
        """As JSON."""
        drafts = {name: terms.weights for name, terms in self.drafts.items()}
        target = {str(k): v for k, v in self.target.weights.items()}
        return {"target": target, "rest": self.rest.weights, "drafts": drafts, "speed": self.speed, "seen": self.seen,
                "beside": self.beside, "measured": self.measured, "doubt": self.doubt}  # fmt: skip

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "StepTimes":
        """From `dump`."""
        target = Terms({int(k) if k.isdigit() else k: v for k, v in data["target"].items()})
        drafts = {name: Terms(weights) for name, weights in data["drafts"].items()}
        rest, measured = Terms(data["rest"]), data.get("measured", False)
        seen, beside, doubt = data["seen"], data.get("beside", {}), data.get("doubt", 1.0)
        return cls(target, rest, drafts, data["speed"], seen, beside, measured, doubt=doubt)


def text_work(rows: int) -> Work:
    """Work of a pass that reads a text of one request."""
    return Work(rows, 1, rows, rows * rows // 2, 1)


def _features(work: Work) -> dict[Any, float]:
    one: dict[Any, float] = {"requests": work.requests, "context": work.context, "pairs": work.pairs}
    one.update(hats(work.rows))
    return {name: work.passes * x for name, x in one.items()}


def _others(work: Work, nodes: int) -> dict[str, float]:
    return {"call" if work.passes == 1 else "several": 1.0, "requests": work.requests, "nodes": nodes}


def _ratio(seconds: float, expected: float) -> float:
    """Measured over predicted, at most a factor of OFF."""
    return min(OFF, max(1.0 / OFF, seconds / max(expected, FLOOR)))
