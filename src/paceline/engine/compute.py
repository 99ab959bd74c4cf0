"""`Compute`: how a plan is computed, by one pass of the target or by a run of several, and what each item got of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from torch import Tensor

from paceline.cache.txn import Txn
from paceline.core.component import Model, Runs
from paceline.core.errors import IntegrityError
from paceline.core.forest import Forest
from paceline.core.plan import Item, Plan
from paceline.core.program import Entry, Program, under
from paceline.core.proposer import Continuation
from paceline.core.result import Result, Round
from paceline.core.rows import Out, Rows
from paceline.core.verdict import Verdict
from paceline.engine.ahead import hang
from paceline.engine.config import Timer
from paceline.engine.judge import Judge, add_prompt_logprobs
from paceline.engine.layout import Layout, lay_out
from paceline.engine.placement import Done, Placement, Ticket
from paceline.engine.watch import Seconds, watch_for
from paceline.model import spans

if TYPE_CHECKING:
    from paceline.engine.drafters import Drafts


def nothing() -> float:
    """Seconds of what was not computed."""
    return 0.0


def nothing_judged(place: int) -> Tensor:
    """Scores of a run."""
    raise IntegrityError(f"Nothing was judged for place {place}: it has no scores.")


@dataclass(slots=True)
class Computed:
    """Results by place, and what else drafters may see of the pass (`View`)."""

    results: list[Result]
    probes: dict[int, Tensor] = field(default_factory=dict)
    scores: Callable[[int], Tensor] = nothing_judged
    hidden: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    """Candidates of each item that had a row."""
    target: float = 0.0
    """Seconds of the target's passes."""
    drafting: float = 0.0
    """Seconds of the drafts of a run."""
    error: Exception | None = None
    """What a run's proposer raised."""
    saved: float = 0.0
    """Seconds for which the passes and what was drafted meanwhile ran at once; below 0: they were in each other's
    way."""


@dataclass(slots=True)
class Started:
    """A step whose passes have begun, or come to their end."""

    layout: Layout
    rows: Rows
    ticket: "Ticket[tuple[Out, Seconds]]"
    at: float
    """Time at which the passes began, in seconds."""
    exits: dict[int, Tensor] = field(default_factory=dict)
    """{place: logits [rows, V] of the target's lower layers, of its root and its nodes}"""
    before: Seconds = nothing
    """Seconds of the lower layers."""
    taps: dict[str, Tensor] = field(default_factory=dict)
    """Hidden states that those gave."""


class Compute:
    """The computing half of a step. `ends`: the tokens that end a request, by its id."""

    def __init__(
        self,
        model: Model,
        judge: Judge,
        timer: Timer,
        clock: Callable[[], float],
        ends: Callable[[int], frozenset[int]],
        place: Placement,
    ) -> None:
        self.model, self.judge, self.timer, self.clock, self.ends = model, judge, timer, clock, ends
        self.place, self.watch = place, watch_for(model.device, clock)

    def start(self, plan: Plan, txns: Sequence[Txn], drafts: "Drafts") -> Started:
        """Begin the step's passes. They continue to run if a drafter works meanwhile, else they are done."""
        layout = lay_out(drafts.forest, plan.items, txns)
        entries, exits = drafts.entries, list[int | None]()
        if any(item.first or item.partial for item in plan.items):
            own = entries or [None] * len(plan.items)
            entries = [txn.held if item.first else entry for item, txn, entry in zip(plan.items, txns, own)]
            exits = [item.last for item in plan.items]
        rows, at = layout.builder.build(self.model.device, plan.taps), self.clock()
        if drafts.run:
            texts = [self._continuation(item, plan.passes) for item in plan.items]
            run = cast(Runs, self.model).run
            return Started(
                layout, rows, Done(lambda: self.watch.time(run, rows, plan.passes, texts, drafts.proposer)), at
            )
        if not any(item.further for item in plan.items):
            begun = Done(lambda: self.watch.time(spans.forward, self.model, rows, entries, exits))
            return Started(layout, rows, begun, at)
        started, upper = Started(layout, rows, Done(lambda: (Out(Tensor()), nothing)), at), rows
        if drafts.exit and "program" in self.model.abilities and not any(drafts.entries):
            upper, started.before = self.watch.time(self._enter, plan, started, drafts.exit)
        started.ticket = self.place.start(lambda: self.watch.time(spans.forward, self.model, upper, drafts.entries))
        return started

    def _enter(self, plan: Plan, started: Started, share: float) -> Rows:
        """Run the target's lower layers, with the head behind them; the pass over the others."""
        rows, layers = started.rows, sum(place.startswith("input:") for place in self.model.places)
        at = max(1, min(layers - 1, round(share * layers)))
        lower = tuple(tap for tap in rows.taps if tap.startswith("input:") and int(tap.removeprefix("input:")) < at)
        out = self.model.forward(replace(rows, program=Program(last=at), taps=(*lower, "pre_norm")))
        for place, root in started.layout.roots.items():
            nodes = started.layout.candidates[place]
            started.exits[place] = out.logits[[started.layout.line[node] for node in (root, *nodes)]]
        started.taps = {tap: out.taps[tap] for tap in lower}
        taps = tuple(tap for tap in rows.taps if tap not in lower)
        return replace(rows, program=Program(first=at), hidden=out.taps["pre_norm"], taps=taps)

    def collect(self, plan: Plan, txns: Sequence[Txn], drafts: "Drafts", started: Started) -> Computed:
        """Wait for the passes, judge what they say, and tell each item what it got."""
        out, seconds = started.ticket.collect()
        layout, rows, out.taps = started.layout, started.rows, {**started.taps, **out.taps}
        done = Computed([], drafting=out.drafting, error=out.error)
        if drafts.grown:  # drafters that ran meanwhile have waited for its end
            done.saved = started.before() + seconds() - out.drafting + drafts.beside - (self.clock() - started.at)
        for number, name in enumerate(drafts.names):
            if name in drafts.grown:
                hang(drafts.forest, number, drafts.forests[name], drafts.grown[name], layout.children)
        judging = self.clock()
        add_prompt_logprobs(plan.items, layout, out)
        if drafts.run:
            self._told(plan, out, done)
        else:
            verdict = self.judge.judge(plan.items, drafts.forest, layout, out, rows)
            self._judged(plan, drafts, layout, out, verdict, done)
        self._tapped(plan, rows, out, done)
        self._held(plan, txns, rows, out)
        done.target = started.before() + seconds() - out.drafting  # on a GPU the verdict has waited for the pass
        self.timer.target += done.target
        self.timer.sample += max(0.0, self.clock() - max(judging, started.at + done.target + done.drafting))
        return done

    def _continuation(self, item: Item, passes: int) -> Continuation:
        """Continuation of a text over `passes` passes."""
        request, most = item.request, 1 + item.reserved(passes)
        warp = self.judge.sampler.warp(request)
        assert warp is not None, "a run is of requests that need no judge"
        keys = [request.target_noise.key(request.index(depth)) for depth in range(most)] if not warp.greedy else []
        return Continuation(warp, keys, self.ends(request.id), most)

    @staticmethod
    def _told(plan: Plan, out: Out, done: Computed) -> None:
        """The results of a run, which has judged and made its K/V contiguous itself."""
        for drawn in out.drawn:
            done.results.append(Result(drawn.tokens, list(range(len(drawn.tokens) - 1)), drawn.rounds))
        done.rows = [0] * len(plan.items)

    @staticmethod
    def _judged(plan: Plan, drafts: "Drafts", layout: Layout, out: Out, verdict: Verdict, done: Computed) -> None:
        """The results of one pass."""
        forest, scores = drafts.forest, verdict.scores
        if scores is not None:
            done.scores = lambda place: scores[verdict.score_rows[place]]
        for place, item in enumerate(plan.items):
            path, last, candidates = verdict.path[place], verdict.next_token[place], layout.candidates[place]
            result = Result()
            done.results.append(result)
            done.rows.append(len(candidates))
            if place in layout.probes:
                done.probes[place] = out.logits[layout.probes[place]]
                result.probes = len(layout.probes[place])
            if last is None:
                continue
            result.tokens = [*(forest.token[node] for node in path), last]
            result.ranks = [forest.row[node] - item.given for node in path]
            result.rounds = [Round.of(by_depth(forest, candidates), len(path))]
            if path:
                sources = [forest.source[node] for node in path]
                result.accepted = {drafts.names[sources[0][0]]: [node for _, node in sources]}

    @staticmethod
    def _tapped(plan: Plan, rows: Rows, out: Out, done: Computed) -> None:
        """Hidden states of the rows that each item will commit."""
        start = 0
        for place, (item, segment, result) in enumerate(zip(plan.items, rows.segments, done.results)):
            if out.drawn:
                mine = [*range(start, start + len(result.tokens))]
                start += len(result.tokens)
            else:
                ranks = [*range(item.given), *(item.given + rank for rank in result.ranks)]
                mine = [segment.start + rank for rank in ranks]
            if item.taps and not item.partial:
                done.hidden[place] = {tap: out.taps[tap][mine] for tap in item.taps}

    @staticmethod
    def _held(plan: Plan, txns: Sequence[Txn], rows: Rows, out: Out) -> None:
        """What the rows that wait between two layers left with stays with their open transactions."""
        for item, txn, segment in zip(plan.items, txns, rows.segments):
            if item.last is None:
                continue
            assert out.leave is not None
            own = slice(segment.start, segment.start + segment.rows)
            below = [tap for tap in item.taps if tap in out.taps and under(tap, item.last)]
            taps = {tap: out.taps[tap][own].clone() for tap in below}
            txn.held = Entry(item.last, out.leave[own].clone(), taps)


def by_depth(forest: Forest, nodes: Sequence[int]) -> list[int]:
    """How many of these nodes are at depth 1, 2, ..."""
    depths = [forest.depth[node] for node in nodes]
    return [depths.count(depth) for depth in range(1, max(depths, default=0) + 1)]
