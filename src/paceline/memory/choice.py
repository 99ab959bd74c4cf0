"""Choice of a memory plan: of the shapes that fit a byte budget, the one of most predicted throughput (after SpecMemo,
arXiv 2506.01986). The choice is of all at once: whether a draft model is kept, rows of a pass, drafted rows (none is
one of the choices) and requests. The table of step times says what a step takes, the acceptance that earlier starts
learned what is kept of drafts, and the policy that serves who would draft how much.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import exp, log
from operator import attrgetter
from typing import Any, NamedTuple

from paceline.core.errors import CapacityError
from paceline.core.forest import MAX_CANDIDATES
from paceline.core.params import SamplingParams
from paceline.core.plan import Work
from paceline.core.request import Request
from paceline.memory.sums import MEMORIES, BudgetShape, MemoryModel
from paceline.plan import NONE, DrafterFacts
from paceline.plan.allocate import MARGIN
from paceline.plan.choose import Goodput
from paceline.plan.cost import StepTimes
from paceline.plan.fixed import chains

LOADS = 1, 4, 16, 64
"""Requests at once for which throughput is predicted; a plan is as good as the geometric mean over them."""
OBEYED_REQUESTS = 4
"""Requests at once for which a drafter that the user names has room, wherever there is any."""
USUAL_TEXT = 256, 256
"""Tokens of a usual prompt and of its answer. A cache that cannot hold one such text is worse than any that can."""
FEWEST_TEXTS = 4
"""Usual texts for which a cache has room, if rows and drafts are to have more than half of what the weights leave."""

GUESSED_MARGIN = 1.1
"""Factor of throughput by which a plan with the draft model may be behind the best where nothing was timed."""


class LoadSpeed(NamedTuple):
    """Prediction for a number of requests at once: tokens a second, drafter and nodes."""

    requests: int
    tokens: float
    drafter: str
    nodes: int


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """A way to use a budget."""

    shape: BudgetShape
    draft: bool
    """Whether the draft model is kept."""
    slots: int
    speeds: tuple[LoadSpeed, ...]

    @property
    def score(self) -> float:
        """Geometric mean of the predicted tokens a second."""
        return exp(sum(log(each.tokens) for each in self.speeds) / len(self.speeds))

    @property
    def kind(self) -> tuple[bool, bool]:
        """Kind of the plan: whether the draft model is kept, and whether anything is drafted."""
        return self.draft, self.shape.drafted > 0

    def words(self, draft: str, absolute: bool) -> str:
        """In words. `draft`: "kept", "left out" or none at all. `absolute`: are the figures tokens a second of this
        machine?"""
        it, first = self.shape, self.speeds[0]
        what = f"{draft}, " if draft else ""
        drafted = f"up to {it.drafted:,} drafted rows a step" if it.drafted else "no speculation"
        size = f"{what}{drafted}, {it.rows:,} rows a pass, {it.requests} at once, K/V of {self.slots:,} tokens"
        who = "plainly" if first.drafter == NONE else f"by {first.drafter} x{first.nodes}"
        if not absolute:
            return size
        each = ", ".join(f"{speed.tokens:.3g} tokens/s for {speed.requests}" for speed in self.speeds)
        return f"{size}; predicted {each}, one {who}"


class BudgetChoice(NamedTuple):
    """The plan that was chosen, and the best of another kind: None where nothing else fits."""

    plan: BudgetPlan
    other: BudgetPlan | None


@dataclass(slots=True)
class SpeedModel:
    """Predicts throughput from step times and acceptance, by the policy that serves. `facts`: who may draft; `known`:
    `LengthPolicy.state` of an earlier start."""

    times: StepTimes
    facts: Mapping[str, DrafterFacts]
    known: Mapping[str, Any] | None = None
    patience: float = 0.0
    text: tuple[int, int] = USUAL_TEXT
    policy: Goodput = field(init=False)
    _decoding: dict[tuple[tuple[str, ...], int, int], LoadSpeed] = field(default_factory=dict)
    _reading: dict[tuple[int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.policy = Goodput(self.times, lambda request, drafter: MAX_CANDIDATES, patience=self.patience)
        if self.known is not None:
            self.policy.beliefs.recall(self.known["beliefs"])
        for name, facts in self.facts.items():
            self.policy.enrol(name, facts)

    def arms(self, draft: bool) -> tuple[str, ...]:
        """Drafters that may draft, with the draft model or without it."""
        return tuple(name for name, it in self.facts.items() if draft or it.group is None)

    def decoding(self, arms: tuple[str, ...], requests: int, room: int) -> LoadSpeed:
        """Throughput while `requests` decode, with `room` for drafted rows."""
        key = arms, requests, min(room, requests * MAX_CANDIDATES)
        if (found := self._decoding.get(key)) is None:
            prompt, output = self.text
            params = SamplingParams(temperature=0.0, max_tokens=output)
            each = [
                Request(i, [0], params, 0, drafter="auto", arms=arms, judge_free=True, max_tokens=output)
                for i in range(requests)
            ]
            base = Work.of([(1, prompt + output // 2, 1)] * requests)
            choice, goodput = self.policy.best(each, key[2], base, alike=True)
            used = Counter((name, point.nodes) for name, point in choice.values())
            name, nodes = used.most_common(1)[0][0] if used else (NONE, 0)
            found = self._decoding[key] = LoadSpeed(requests, goodput, name, nodes)
        return found

    def reading(self, rows: int, requests: int) -> float:
        """Seconds in which the target reads a prompt, in passes of at most `rows`, next to others like it."""
        prompt = self.text[0]
        several = max(1, min(requests, rows // prompt))
        if (found := self._reading.get((rows, several))) is None:
            found = 0.0
            for start in range(0, prompt, rows):
                own = min(rows, prompt - start)
                found += self.times.predict(Work.of([(own, start, 1)] * several)) / several
            self._reading[rows, several] = found
        return found

    def speed(self, draft: bool, shape: BudgetShape, slots: int, load: int) -> LoadSpeed:
        """Tokens a second of `load` requests at once, as many of them together as the shape lets."""
        prompt, output = self.text
        together = max(1, min(load, shape.requests, slots // (prompt + output)))
        arms = self.arms(draft)
        decoding = self.decoding(arms, together, min(shape.drafted, shape.rows - together))
        reading = self.reading(shape.rows, together)
        group = self.facts[decoding.drafter].group if decoding.drafter in self.facts else None
        if group is not None:
            reading += self.times.of_reading(chains(dict(self.facts), group), prompt)
        seconds = together * reading + together * output / decoding.tokens
        return decoding._replace(requests=load, tokens=together * output / seconds)


@dataclass(slots=True)
class BudgetPlanner:
    """Planner of a byte budget. `models` {whether the draft model is kept: its arithmetic}: both where that is open.
    `whole`: whether as many rows are reserved for drafts as a pass has, whatever is chosen. `named`: nodes of a
    request of the drafter that the user names, which drafts for a few requests at once wherever there is room; or 0.
    `guessed`: whether step times were never measured here. A draft model that was given is then left out only where it
    is predicted to cost much: what is left out is never measured."""

    models: Mapping[bool, MemoryModel]
    speeds: SpeedModel
    whole: bool = False
    named: int = 0
    guessed: bool = False

    def least(self, blocks: int | None = None) -> int:
        """The smallest budget that does."""
        return min(model.total(model.smallest(blocks)) for model in self.models.values())

    def choose(self, budget: int, rows: int, requests: int, blocks: int | None = None) -> BudgetChoice:
        """The best plan of at most `rows` a pass and `requests` at once, with exactly `blocks` if given. CapacityError
        names the smallest budget that would do."""
        need = self.least(blocks)
        if budget < need:
            raise CapacityError(
                f"A memory of {budget:,} bytes is too little for weights, cache and scratch; give at least "
                f"{need:,} bytes."
            )
        plans = [*self.plans(budget, rows, requests, blocks)]
        usual = sum(self.speeds.text)
        most = max(plan.shape.drafted for plan in plans)
        obedient = [
            it for it in plans if it.shape.drafted >= min(most, self.named * min(it.shape.requests, OBEYED_REQUESTS))
        ]
        plan = first(obedient, usual, GUESSED_MARGIN if self.guessed else MARGIN)
        others = [other for other in plans if other.kind != plan.kind]
        return BudgetChoice(plan, first(others, usual) if others else None)

    def plans(self, budget: int, rows: int, requests: int, blocks: int | None = None) -> Iterator[BudgetPlan]:
        """All that fit: of what the weights leave, rows and drafts get up to half, or more where the K/V cache still
        has room for usual texts of all requests, and of FEWEST_TEXTS. The cache gets the rest, no more than the full
        contexts of all requests. One row a pass is always among them."""
        loads = [load for load in LOADS if load <= requests] or [requests]
        for draft, memory in self.models.items():
            smallest = memory.smallest(blocks)
            if (need := memory.total(smallest)) > budget:
                continue
            remember = min(MEMORIES[1], MEMORIES[0] + (budget - need) // 16)
            for shape in shapes(rows, requests, self.whole):
                shape = replace(shape, blocks=smallest.blocks, remember=remember)
                if memory.total(shape) > budget:
                    if shape.rows > 1:
                        continue
                    shape = replace(shape, remember=smallest.remember)
                wanted = blocks or -(-memory.max_len // memory.block_size) * shape.requests
                shape = replace(shape, blocks=memory.most_blocks(budget, shape, wanted))
                parts = memory.parts(shape)
                modest = 2 * (parts["logits"] + parts["scratch"]) <= budget - parts["weights"] - parts["rest"]
                slots = shape.blocks * memory.block_size
                roomy = slots >= max(FEWEST_TEXTS, shape.requests) * sum(self.speeds.text)
                if modest or roomy or shape.blocks == wanted or shape.rows == 1:
                    speed = partial(self.speeds.speed, draft, shape, slots)
                    yield BudgetPlan(shape, draft, slots, tuple(map(speed, loads)))


def first(plans: Sequence[BudgetPlan], usual: int, margin: float = MARGIN) -> BudgetPlan:
    """The best: one that holds a text of `usual` tokens, of most throughput; of those within `margin` of it, one with
    the draft model, or else of those within `MARGIN`; and of these the one that leaves most open."""
    held = max(min(plan.slots, usual) for plan in plans)
    plans = [plan for plan in plans if min(plan.slots, usual) == held]
    most = max(plan.score for plan in plans)
    if kept := [plan for plan in plans if plan.draft and plan.score * margin >= most]:
        plans, most = kept, max(plan.score for plan in kept)
    near = [plan for plan in plans if plan.score * MARGIN >= most]
    most_open = attrgetter("draft", "shape.requests", "shape.rows", "slots", "shape.drafted")
    return max(near, key=most_open)


def shapes(rows: int, requests: int, whole: bool = False) -> Iterator[BudgetShape]:
    """Rows, requests and drafted rows to choose from, each in powers of two below its bound; of one block each."""
    for most in halved(rows):
        for together in dict.fromkeys(min(each, most) for each in halved(requests)):
            for drafted in [most - 1] if whole else [*halved(most - 1), 0]:
                yield BudgetShape(1, most, drafted, together)


def halved(most: int) -> Iterator[int]:
    """`most`, and the powers of two below it, down to 1."""
    if most > 0:
        yield most
        yield from (1 << i for i in reversed(range((most - 1).bit_length())) if 1 << i < most)


def times_by_size(target: int, draft: int, facts: Mapping[str, DrafterFacts], row: float) -> StepTimes:
    """Step times where none were measured, in proportion to the bytes of the weights that a pass reads. `row`: what a
    row more costs, in passes of one row. Only ratios of these figures mean anything."""
    times = StepTimes()
    one = target / BYTES_PER_S
    for knot in times.target.weights:
        if isinstance(knot, int):
            times.target.weights[knot] = one * (1.0 + row * (knot - 1))
    for name, it in facts.items():
        price_by_size(times, name, it, draft / BYTES_PER_S if it.group is not None else 0.0)
    return times


def price_by_size(times: StepTimes, name: str, facts: DrafterFacts, level: float) -> None:
    """Price of a drafter that was never timed: `level` seconds for a pass of its model."""
    terms = times.drafter(name).weights
    terms["depth"], terms["nodes"] = (level, 1e-6) if facts.chain else (0.0, max(1e-6, level / 2))


BYTES_PER_S = 1e10
"""Bytes that a machine of unknown speed reads in a second."""
