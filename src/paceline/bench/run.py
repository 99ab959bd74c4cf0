"""`paceline bench` from files and options to a report."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from paceline.bench import limit
from paceline.bench.busy import CpuWatch
from paceline.bench.files import versions
from paceline.bench.harness import PLAIN_METHOD, BenchCell, BenchPlan, Results, groups, measure
from paceline.bench.identity import Referee
from paceline.bench.prompts import encode, read_prompts
from paceline.bench.report import BenchReport, BenchRow, machine
from paceline.bench.synthetic import Synthetic
from paceline.core.errors import InputError, RefusalError
from paceline.core.params import SamplingParams
from paceline.core.registry import refusal
from paceline.draft import DRAFTERS
from paceline.engine.build import build
from paceline.engine.loop import Engine
from paceline.engine.options import Options
from paceline.verify import VERIFIERS

Progress = Callable[[int, int, str], None]
"""(batches done, batches in all, what was run)"""


@dataclass(frozen=True, slots=True)
class Bench:
    """What to measure. `methods` are drafters, or ("all",)."""

    prompts: Path
    methods: Sequence[str] = ("all",)
    batches: Sequence[int] = (1,)
    temperatures: Sequence[float] = (0.0,)
    max_tokens: int = 128
    num_prompts: int = 20
    repeat: int = 3
    seed: int = 0
    synthetic_acceptance: float | None = None
    """Adds `user`, a drafter whose tokens are right with this chance (bench/synthetic.py)."""

    def __post_init__(self) -> None:
        for name, values in (("batch", self.batches), ("repeat", [self.repeat]), ("num_prompts", [self.num_prompts])):
            if not values or min(values) < 1:
                raise InputError(f"{name} is {min(values, default='empty')}, but it must be at least 1.")
        if self.synthetic_acceptance is not None and len(self.temperatures) > 1:
            raise InputError("--synthetic-acceptance knows the texts of one temperature; give one.")


def bench(options: Options, wish: Bench, progress: Progress = lambda done, total, what: None) -> BenchReport:
    """Run the benchmark. Raises PacelineError, before anything is timed, for what cannot be served."""
    texts = read_prompts(wish.prompts, wish.num_prompts)
    params = SamplingParams(max_tokens=wish.max_tokens, max_nodes=options.nodes)
    for temperature in wish.temperatures:
        replace(params, temperature=temperature)
    requests = max(options.max_requests, *wish.batches)
    chance = wish.synthetic_acceptance
    synthetic = None if chance is None else Synthetic(chance, wish.seed)
    drafter, names = (options.drafter, []) if synthetic is None else (synthetic.propose, ["user"])
    engine, text = build(replace(options, drafter=drafter, nodes=None, max_requests=requests, prefix_cache=False))
    prompts = [encode(text, prompt) for prompt in texts]
    plan = BenchPlan(
        methods_of(engine, wish.methods, options.verifier, names),
        wish.batches,
        wish.temperatures,
        options.verifier,
        params.resolve(text.defaults),
        wish.repeat,
        wish.seed,
    )
    if synthetic is not None:
        synthetic.rehearse(engine, prompts, plan)
    watch = CpuWatch()
    warnings = [watch.before()]
    results = _timed(engine, prompts, plan, progress)
    bound = limit.measure(engine, prompts[0], plan.wish(PLAIN_METHOD, plan.temperatures[0], 0))
    warnings.append(watch.during())
    warnings.extend(complaints(engine, results))
    guarantee = VERIFIERS.card(options.verifier).guarantee
    rows, differences = judged(Referee(engine, options.dtype), prompts, plan, results, guarantee)
    shown = {**asdict(options), **asdict(wish), "token": None}
    return BenchReport(
        rows,
        bound,
        guarantee,
        machine(options.device),
        dict(versions()),
        shown,
        differences,
        [w for w in warnings if w],
    )


def methods_of(engine: Engine, names: Sequence[str], verifier: str, more: Sequence[str] = ()) -> list[str]:
    """The drafters to run, `none` first. `all`: every registered one that can serve here; `more` in any case.
    RefusalError for a named one that cannot."""
    accepts = VERIFIERS.card(verifier)
    every = list(names) == ["all"]
    chosen = [PLAIN_METHOD]
    for name in DRAFTERS.names() if every else [*names, *more]:
        reason = refusal(name, DRAFTERS.card(name), verifier, accepts, engine.drafters.have)
        if reason and not every:
            raise RefusalError(reason)
        if not reason and name not in chosen:
            chosen.append(name)
    return chosen


def _timed(engine: Engine, prompts: Sequence[Sequence[int]], plan: BenchPlan, progress: Progress) -> Results:
    per_repeat = sum(len(list(groups(len(prompts), cell.batch))) for cell in plan.cells())
    total, done = per_repeat * plan.repeat, 0

    def tick(what: str) -> None:
        nonlocal done
        done += 1
        progress(done, total, what)

    return measure(engine, prompts, plan, tick)


def complaints(engine: Engine, results: Results) -> list[str]:
    """What went otherwise than a reader of the figures would think."""
    found = [f"A drafter failed and its requests went on without it: {e!r}." for e in engine.drafters.errors]
    preempted = sum(run.preempted for runs in results.values() for run in runs)
    if preempted:
        found.append(f"The K/V cache was full: {preempted} requests were pre-empted and recomputed; raise --memory.")
    return found


def judged(
    referee: Referee,
    prompts: Sequence[Sequence[int]],
    plan: BenchPlan,
    results: Results,
    guarantee: Literal["text", "distribution", "none"],
) -> tuple[list[BenchRow], list[dict[str, Any]]]:
    """Rows of the report, and every difference found. The reference is the first plain run at the same batch size and
    temperature; that of plain decoding itself, the first plain run at the first batch size."""
    rows: list[BenchRow] = []
    differences: list[dict[str, Any]] = []
    for cell, runs in results.items():
        plain = results[cell._replace(method=PLAIN_METHOD)]
        verifier = "exact" if cell.method == PLAIN_METHOD else plan.verifier
        if cell.method != PLAIN_METHOD and guarantee != "text" and cell.temperature > 0:
            rows.append(BenchRow.of(cell, verifier, runs, plain, None, None))
            continue
        first = (
            results[BenchCell(PLAIN_METHOD, plan.batches[0], cell.temperature)]
            if cell.method == PLAIN_METHOD
            else plain
        )
        found = []
        for i, prompt in enumerate(prompts):
            params, other = plan.wish(PLAIN_METHOD, cell.temperature, i), {tuple(run.outputs[i]) for run in runs}
            for text in sorted(other):
                difference = referee.difference(prompt, params, first[0].outputs[i], text)
                if difference:
                    found.append({**cell._asdict(), "prompt": i, **asdict(difference)})
        identical = all(d["near_tie"] for d in found)
        near = len({d["prompt"] for d in found if d["near_tie"]})
        rows.append(BenchRow.of(cell, verifier, runs, plain, identical, near))
        differences.extend(found)
    return rows, differences
