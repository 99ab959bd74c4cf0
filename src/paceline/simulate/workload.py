"""What to simulate: the requests of a decision log with the outputs they got, and how much of each draft was kept."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from statistics import median

from paceline.core.errors import InputError
from paceline.core.noise import SimulationNoise, uniform
from paceline.core.plan import Item
from paceline.core.request import FinishReason
from paceline.core.result import Result
from paceline.plan import DrafterFacts
from paceline.plan.belief import DEPTH, Beliefs, Expected, Key, Tally
from paceline.plan.cost import StepTimes, judged
from paceline.simulate.log import Arrival, Departure, Enrolled, Event, Given, Outcome, Setup, Step
from paceline.simulate.replay import replay


@dataclass(frozen=True, slots=True)
class Speech:
    """A request's whole output."""

    tokens: list[int]
    finish: FinishReason


@dataclass(frozen=True, slots=True)
class WorkloadJob:
    """The samples of one prompt, which arrive together."""

    at: float
    """Seconds from the start."""
    arrivals: list[Arrival]


@dataclass(slots=True)
class DraftRates:
    """How much of a draft is drawn and kept. `beliefs` count all rounds alike; a size of tree that was never drawn
    has the rates of the nearest one that was, a drafter that was never tried those that the planner begins with."""

    entries: Mapping[str, DrafterFacts]
    beliefs: Beliefs = field(default_factory=Beliefs)

    def count(self, given: Given, result: Result) -> None:
        """One recorded round."""
        if not given.nodes or not result.tokens:
            return
        key = self._key(given.drafter, given.nodes)
        belief = self.beliefs.belief(key)
        own = belief.own.setdefault(given.id, Tally())
        deepest = min(given.nodes, given.depth, DEPTH)
        for _, kept, round in result.heard():
            if self.entries[given.drafter].ahead == "path":  # nothing prepared says nothing of the draft
                deepest = len(round.offered)
            for depth in range(deepest):
                belief.rows.tries[depth] += 1.0
                belief.rows.hits[depth] += round.offered[depth] if depth < len(round.offered) else 0
            for counts in (belief.mean, own):
                counts.add(deepest, [int(depth < kept) for depth in range(len(round.offered))], 0)

    def draw(self, item: Item, noise: SimulationNoise, ahead: int = 0) -> tuple[list[int], int]:
        """Rows per depth, and how deep the draft is kept, `ahead` tokens further. Always the same for one (request,
        index), whatever the load."""
        number, index = item.request.id, len(item.request.output) + ahead
        deepest = min(item.nodes, item.depth - ahead, DEPTH)
        expected = self.beliefs.expected(number, self._nearest(item), deepest)
        chance, more = (uniform(noise.key(number, index, which)) for which in (0, 1))
        kept = sum(chance < alive for alive in expected.kept)
        drawn = _chain if self.entries[item.drafter].chain else _tree
        offered: list[int] = []
        for depth, rows in enumerate(drawn(expected, more), 1):
            room = item.nodes - sum(offered) - max(0, kept - depth)  # what is kept has its rows
            if here := min(max(rows, int(depth <= kept)), room):
                offered.append(here)
        return offered, min(kept, len(offered))

    def _key(self, drafter: str, nodes: int) -> Key:
        return drafter, 0 if self.entries[drafter].chain else nodes

    def _nearest(self, item: Item) -> Key:
        key = self._key(item.drafter, item.nodes)
        known = [size for drafter, size in self.beliefs.of if drafter == item.drafter]
        return item.drafter, min(known, key=lambda size: (abs(size - key[1]), size), default=key[1])


def _chain(expected: Expected, more: float) -> list[int]:
    """Rows per depth of a draft of which nothing is kept; each depth has what the kept leave of its mean."""
    rest = ((r - alive) / (1.0 - alive) if alive < r else 0.0 for alive, r in zip(expected.kept, expected.rows))
    return [int(chance + more) for chance in accumulate(rest, min)]


def _tree(expected: Expected, more: float) -> list[int]:
    """The mean rows per depth, rounded so that their sum is never off by one or more."""
    edges = [int(total + more) for total in accumulate(expected.rows, initial=0.0)]
    return [b - a for a, b in pairwise(edges)]


@dataclass(slots=True)
class Workload:
    setup: Setup
    """With the drafters that requests named later."""
    jobs: list[WorkloadJob]
    outputs: dict[int, Speech]
    rates: DraftRates
    times: StepTimes
    """What steps cost."""
    between: float = 0.0
    """Seconds from the end of one step to the start of the next, while there is work."""
    catching: float = 0.0
    """Seconds per row for a drafter that only catches up in the step."""

    @classmethod
    def of(cls, events: Sequence[Event], *, fit: bool = True) -> "Workload":
        """From a log. A request that has not ended ends where the log does; a request without a token is left out.
        `times` is the engine's own table as it was at the end, with `fit` scaled to what the log's steps took.
        InputError when the log does not replay: its times would be another engine's."""
        setup = events[0]
        assert isinstance(setup, Setup)
        done = replay(events)
        if done.difference is not None:
            raise InputError(f"The log does not replay, so it cannot be simulated: {done.difference}.")
        entries = {**setup.entries, **{e.drafter: e.facts for e in events if isinstance(e, Enrolled)}}
        steps = [e for e in events if isinstance(e, Step)]
        rates, outputs = DraftRates(entries), dict[int, Speech]()
        for step in steps:
            for given, result in zip(step.decision.items, step.outcome.results if step.outcome else ()):
                rates.count(given, result)
                before = outputs.get(given.id, Speech([], "length"))
                tokens = [*before.tokens, *result.tokens[: result.emitted]]
                outputs[given.id] = Speech(tokens, result.finish or "length")
        aborted = {
            e.id: replace(outputs[e.id], finish="abort") for e in events if isinstance(e, Departure) and e.id in outputs
        }
        outputs = {i: speech for i, speech in {**outputs, **aborted}.items() if speech.tokens}
        jobs = _jobs([e for e in events if isinstance(e, Arrival) and e.id in outputs])
        times = done.twin.table.times
        if fit:
            scale(times, [step.outcome for step in steps if step.outcome is not None])
        known = replace(setup, entries=entries)
        return cls(known, jobs, outputs, rates, times, _between(steps), _catching(steps))


def _jobs(arrivals: Sequence[Arrival]) -> list[WorkloadJob]:
    groups: dict[int, list[Arrival]] = {}
    for arrival in arrivals:
        groups.setdefault(arrival.group, []).append(arrival)
    if not groups:
        raise InputError("The log holds no request that got a token; there is nothing to simulate.")
    start = min(arrival.now for arrival in arrivals)
    return sorted((WorkloadJob(each[0].now - start, each) for each in groups.values()), key=lambda job: job.at)


def scale(times: StepTimes, outcomes: Sequence[Outcome]) -> None:
    """Make the table's predictions of these steps add up to what they took, part by part: a table follows the latest
    steps, and another load on the machine may have been another one's doing."""
    target = _ratio((o.times.target, times.of_target(o.work)) for o in outcomes)
    rest = _ratio((o.times.rest, times.of_rest(o.work.requests, judged(o.parts), o.work.passes)) for o in outcomes)
    drafted: dict[str, list[tuple[float, float]]] = {}
    for outcome in outcomes:
        for part in outcome.parts:
            seconds = outcome.times.drafts.get(part.drafter, 0.0)
            drafted.setdefault(part.drafter, []).append((seconds, times.of_draft(part)))
    terms = [(times.target, target), (times.rest, rest)]
    terms += [(times.drafter(name), _ratio(pairs)) for name, pairs in drafted.items()]
    for each, by in terms:
        each.weights = {name: weight * by for name, weight in each.weights.items()}


def _ratio(pairs: Iterable[tuple[float, float]]) -> float:
    """Ratio of the sums of measured and predicted seconds; 1 if either is 0."""
    measured, predicted = (sum(side) for side in zip(*pairs)) if (pairs := list(pairs)) else (0.0, 0.0)
    return measured / predicted if measured > 0.0 and predicted > 0.0 else 1.0


def _catching(steps: Sequence[Step]) -> float:
    seconds, rows = 0.0, 0
    for outcome in (step.outcome for step in steps if step.outcome is not None):
        for name in outcome.times.reads.keys() - {part.drafter for part in outcome.parts}:
            seconds += outcome.times.drafts.get(name, 0.0)
            rows += outcome.times.reads[name]
    return seconds / rows if rows else 0.0


def _between(steps: Sequence[Step]) -> float:
    gaps = [b.now - a.now - a.outcome.times.total for a, b in pairwise(steps) if a.outcome is not None]
    return max(0.0, median(gaps)) if gaps else 0.0
