"""Comparison of drafters that were trained alike for one target: the same texts, the same time or steps, the same
held-out prompts. It says which drafter serves the target best on this machine, and by how much.

Each candidate is trained (`train/loop.py`; hidden states are kept once for all), then an engine answers the held-out
prompts greedily, prompt by prompt in turns with plain decoding. What is compared is paired by prompt: an interval
(95 %) is that of a bootstrap over the prompts, and a ratio counts only where its interval leaves 1. What lies in `out`
already is not done again.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Any

import torch

from paceline.core.errors import InputError
from paceline.draft.grow import HEAD_TREE_NODES
from paceline.engine.options import Dtype
from paceline.train import TRAINERS
from paceline.train.data import Sample, answered, read_lines, usable
from paceline.train.evaluate import evaluate
from paceline.train.features import FeatureSource
from paceline.train.files import directory, put, whole_lines, writing
from paceline.train.loop import TrainingPlan, TrainingProgress, opened, texts, train
from paceline.train.target import TrainingTarget

PLAIN_ROW, LOOKUP_ROW, DRAFT_ROW = "plain", "ngram", "model"
"""Rows that need no training: plain decoding, prompt lookup, and the draft model that the user has."""
TRAINING_SHARE = 0.75
"""Share of the hours that are left once hidden states are kept: the rest is for measuring."""
RESAMPLES = 2000
TABLE_FILE, PLAIN_FILE = "table.jsonl", "plain.jsonl"


@dataclass(frozen=True, kw_only=True)
class DrafterCandidate:
    """A drafter to train: a method with its settings."""

    name: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    lr: float | None = None
    """Learning rate; None: the method's."""
    begins: str = ""
    """The candidate, or `draft` (the plan's draft model), whose model it begins with; only for draft models."""
    data: tuple[Path, ...] = ()
    """Files to learn from; (): those of the plan."""
    answers: bool | None = None
    """Learn from the target's answers; None: as the method's card says."""
    head: bool = True
    """It has a `depth`, for which the plan may have a value."""

    @property
    def drafter(self) -> str:
        """Name of the drafter that serves it."""
        return TRAINERS.card(self.method).drafter or self.method


HEAD_CANDIDATES = (
    DrafterCandidate(name="medusa", method="medusa"),
    DrafterCandidate(name="hydra", method="hydra"),
    DrafterCandidate(name="hydra++", method="hydra", settings={"prefix": True, "layers": 4}),
    DrafterCandidate(name="clover-2", method="clover"),
    DrafterCandidate(name="eagle-1", method="eagle3", settings={"fused": False}),
    DrafterCandidate(name="eagle-3", method="eagle3"),
    DrafterCandidate(name="falcon", method="falcon"),
    DrafterCandidate(name="longspec", method="longspec"),
    DrafterCandidate(name="ppd", method="ppd"),
)


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """A comparison. Give `hours` or `steps`."""

    target: str | Path
    data: tuple[Path, ...]
    out: Path
    candidates: tuple[DrafterCandidate, ...] = HEAD_CANDIDATES
    hours: float | None = None
    """Hours for all of it: what is left after hidden states are kept is shared out evenly."""
    steps: int | None = None
    """Training steps of each candidate, whatever time they take: equal tokens."""
    draft: Path | None = None
    """A draft model that is there already, measured as `model`."""
    tests: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    """Kind -> files of prompts to measure on; {}: texts of `data` that are held out."""
    each: int = 40
    """Held-out prompts of each kind."""
    answer: int = 96
    """Most tokens of an answer."""
    depth: int | None = None
    """Tokens that heads draft below one another; None: as each method has it."""
    nodes: int | None = None
    """Most drafted tokens a pass; None: as the planner likes."""
    rounds: int = 3
    """Measurements of each prompt, of which the median counts. 0: nothing is timed, which needs no quiet machine; each
    drafter answers once, with as many nodes a pass whatever a row costs, and plain decoding once for all of them."""
    prompts: int = 2000
    seed: int = 0
    dtype: Dtype = "bfloat16"
    cache_bytes: int = 2 << 30

    def training(self, candidate: DrafterCandidate, minutes: float | None) -> TrainingPlan:
        settings = dict(candidate.settings)
        if candidate.begins:
            settings["draft"] = str(self.draft if candidate.begins == "draft" else self.out / candidate.begins)
        elif self.depth is not None and candidate.head:
            settings.setdefault("depth", self.depth)
        return TrainingPlan(
            method=candidate.method, target=self.target, data=candidate.data or self.data,
            out=self.out / candidate.name, minutes=minutes, steps=self.steps, settings=settings,
            answers=candidate.answers, prompts=self.prompts, answer=max(self.answer, 120), lr=candidate.lr,
            seed=self.seed, held=self.each, dtype=self.dtype,
            cache=self.out / "cache", cache_bytes=self.cache_bytes,
        )  # fmt: skip


@dataclass(frozen=True)
class MeasuredPrompt:
    """One prompt's answer: tokens behind the first, the passes and the seconds that they took, and plain decoding's
    seconds for the same."""

    tokens: int
    passes: int
    seconds: float
    plain_seconds: float


@dataclass(frozen=True)
class ComparedRow:
    """A drafter in the table."""

    name: str
    drafter: str
    trained_tokens: int
    train_seconds: float
    chain: float | None
    """Simulated tokens a pass with a chain; None for a method that has no ranks."""
    same: bool
    """Were all texts plain decoding's?"""
    asked: dict[str, list[MeasuredPrompt]]
    """Kind of prompts -> its prompts, in one order for all rows."""

    def pairs(self, kind: str | None = None) -> list[MeasuredPrompt]:
        return [one for name, them in self.asked.items() if kind in (None, name) for one in them]


@dataclass(frozen=True)
class Estimate:
    """A ratio with its interval (95 %)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"

    @property
    def sign(self) -> int:
        """1: above 1, -1: below, 0: the interval holds 1."""
        return (self.low > 1) - (self.high < 1)


def estimated(over: Sequence[tuple[float, float]], under: Sequence[tuple[float, float]] | None = None) -> Estimate:
    """The ratio of sums of pairs (a, b), a over b; with `under`, over that of these pairs of the same prompts. Both are
    drawn with the same prompts, so that what is hard for both does not widen the interval."""
    numbers = torch.tensor([over, under if under is not None else [(1.0, 1.0)] * len(over)], dtype=torch.float64)
    draws = torch.randint(len(over), (RESAMPLES, len(over)), generator=torch.Generator().manual_seed(0))

    def of(picked: torch.Tensor) -> torch.Tensor:  # [2, ..., prompts, 2] -> [...]
        sums = picked.sum(-2)
        rate = sums[..., 0] / sums[..., 1].clamp(min=1e-9)
        return rate[0] / rate[1].clamp(min=1e-9)

    low, high = of(numbers[:, draws]).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Estimate(float(of(numbers)), low, high)


def tau_of(row: ComparedRow, kind: str | None = None) -> Estimate:
    """Tokens per pass of the target."""
    return estimated([(it.tokens, it.passes) for it in row.pairs(kind)])


def speed_of(row: ComparedRow, kind: str | None = None) -> Estimate:
    """Speed over plain decoding."""
    return estimated([(it.plain_seconds, it.seconds) for it in row.pairs(kind)])


def tau_ratio(one: ComparedRow, other: ComparedRow, kind: str | None = None) -> Estimate:
    """Tokens per pass of one drafter over those of another, paired by prompt."""
    over, under = ([(it.tokens, it.passes) for it in row.pairs(kind)] for row in (one, other))
    return estimated(over, under)


def were_timed(rows: Sequence[ComparedRow]) -> bool:
    """Has every row seconds?"""
    return all(it.plain_seconds > 0 for row in rows for it in row.pairs())


def best_of(rows: Sequence[ComparedRow]) -> ComparedRow | None:
    """The row that is most surely faster than plain decoding; None where no interval is above 1, or no text equal."""
    sure = [row for row in rows if row.same and speed_of(row).low > 1]
    return max(sure, key=lambda row: speed_of(row).value, default=None)


def compare(
    plan: ComparisonPlan, report: Callable[[str, TrainingProgress], None] = lambda name, now: None
) -> list[ComparedRow]:
    """Train and measure, or go on where an earlier call was stopped. Raises InputError, CheckpointError or
    RefusalError, for what can be known before anything is trained."""
    check_plan(plan)
    begun = monotonic()
    directory(plan.out)
    target = TrainingTarget(plan.target, plan.dtype)
    samples = keep_states(plan, target)
    minutes = minutes_of(plan, monotonic() - begun)
    tests = {kind: prompts_in(plan, target, files) for kind, files in plan.tests.items()} or {"held out": samples}
    return list(rows(plan, target, tests, minutes, report))


def check_plan(plan: ComparisonPlan) -> None:
    """InputError for what would fail only later."""
    if (plan.hours is None) == (plan.steps is None):
        raise InputError("Give hours or steps of the comparison, one of them: it would not end, or end at either.")
    for name in ("hours", "steps", "each", "answer", "rounds"):
        value = getattr(plan, name)
        if value is not None and not 0 < value < float("inf") and (name, value) != ("rounds", 0):
            raise InputError(f"{name} is {value}, but it must be a positive number.")
    names = [candidate.name for candidate in plan.candidates]
    if not names or len({*names}) < len(names):
        raise InputError(f"The methods to compare are {', '.join(names) or 'none'}; name at least one, each once.")
    for candidate in plan.candidates:
        TRAINERS.card(candidate.method)


def keep_states(plan: ComparisonPlan, target: TrainingTarget) -> list[Sample]:
    """Keep all hidden states that some candidate reads, in one pass over each text. Returns the texts that none of them
    learns from."""
    first, taps = plan.training(plan.candidates[0], 1.0), dict[str, None]()
    for candidate in plan.candidates:
        if not candidate.begins:
            taps |= dict.fromkeys(TRAINERS.get(candidate.method)(target, plan.training(candidate, 1.0).settings).taps)
    samples = texts(first, target)
    if taps:
        source = FeatureSource(target, samples, sorted(taps), first.cache, plan.cache_bytes)
        for name in range(len(samples)):
            source.states(name)
    return samples[: min(plan.each, max(1, len(samples) // 10))]


def minutes_of(plan: ComparisonPlan, spent: float) -> float | None:
    """Minutes of each training; None where its steps are given. Kept in `out`, so that a comparison that goes on shares
    out the same time."""
    if plan.hours is None:
        return None
    file = plan.out / "minutes.json"
    if not file.is_file():
        left = TRAINING_SHARE * (60 * plan.hours - spent / 60) / len(plan.candidates)
        if left < 0.05:
            raise InputError(
                f"To keep the hidden states took {spent / 60:.1f} minutes, so {plan.hours:g} hours leave none for "
                f"{len(plan.candidates)} trainings; give more hours, fewer prompts or fewer methods."
            )
        put(file, json.dumps(left))
    return float(json.loads(file.read_text(encoding="utf-8")))


def prompts_in(plan: ComparisonPlan, target: TrainingTarget, files: Sequence[Path]) -> list[Sample]:
    """The target's answers to the first prompts of these files."""
    lines = [line for file in files for line in read_lines(file)][: plan.each]
    return answered(target, usable(lines, True), 512, answer=plan.answer, cache=plan.out / "cache")


def rows(
    plan: ComparisonPlan, target: TrainingTarget, tests: Mapping[str, Sequence[Sample]], minutes: float | None,
    report: Callable[[str, TrainingProgress], None],
) -> Iterator[ComparedRow]:  # fmt: skip
    """Each drafter's row, trained and measured where it is not known yet. One after the other: a comparison that is
    stopped has the rows of those that were done."""
    file = plan.out / TABLE_FILE
    known = {row.name: row for row in (read_row(json.loads(line)) for line in whole_lines(file))}
    wanted: list[tuple[str, str, Path | None, DrafterCandidate | None]] = [(LOOKUP_ROW, LOOKUP_ROW, None, None)]
    if plan.draft is not None:
        wanted.append((DRAFT_ROW, DRAFT_ROW, plan.draft, None))
    wanted += [(it.name, it.drafter, plan.out / it.name, it) for it in plan.candidates]
    for name, drafter, path, candidate in wanted:
        if name not in known:
            tokens, seconds, chain = 0, 0.0, None
            if candidate is not None:
                training = plan.training(candidate, minutes)
                if not (training.out / "config.json").is_file():
                    train(training, partial(report, name), target)
                run, _ = opened(training, target)
                tokens, seconds = run.tokens, run.seconds
                scores = [
                    evaluate(run.method, FeatureSource(target, list(them), run.method.taps), range(len(them)))
                    for them in tests.values()
                ]
                chain = None if scores[0] is None else sum(it.tau for it in scores if it is not None) / len(scores)
            same, asked = timed(plan, drafter, path, tests)
            known[name] = ComparedRow(name, drafter, tokens, seconds, chain, same, asked)
            with writing(plan.out), file.open("a", encoding="utf-8") as handle:
                handle.write(f"{json.dumps(asdict(known[name]))}\n")
        yield known[name]


def read_row(line: Mapping[str, Any]) -> ComparedRow:
    asked = {kind: [MeasuredPrompt(**one) for one in them] for kind, them in line["asked"].items()}
    return ComparedRow(**{**line, "asked": asked})


def timed(
    plan: ComparisonPlan, drafter: str, path: Path | None, tests: Mapping[str, Sequence[Sample]]
) -> tuple[bool, dict[str, list[MeasuredPrompt]]]:
    """Are all texts plain decoding's; and each prompt's answer. One engine, one request at a time, plain decoding and
    the drafter in turns; the first prompt is asked once more, before the others, to warm up. See
    `ComparisonPlan.rounds` for answers that are not timed."""
    from paceline import LLM, SamplingParams

    nodes = HEAD_TREE_NODES if plan.nodes is None and not plan.rounds else plan.nodes
    same, found, file = True, dict[str, list[MeasuredPrompt]](), plan.out / PLAIN_FILE
    plainly = {tuple(asked): text for asked, text in map(json.loads, whole_lines(file))} if not plan.rounds else {}
    with LLM(plan.target, path, dtype=plan.dtype, drafter=drafter, max_requests=1, prefix_cache=False) as llm:

        def ask(sample: Sample, by: str) -> tuple[float, int, list[int]]:
            params = SamplingParams(
                temperature=0.0, drafter=by, max_tokens=plan.answer, ignore_eos=True, max_nodes=nodes
            )
            begun = perf_counter()
            output = llm.generate([list(sample.ids[: sample.start])], [params], progress=False)[0]
            return perf_counter() - begun, output.stats.passes, list(output.token_ids)

        def once(sample: Sample) -> MeasuredPrompt:
            nonlocal same
            asked = sample.ids[: sample.start]
            if asked not in plainly:
                plainly[asked] = ask(sample, "none")[2]
                with writing(plan.out), file.open("a", encoding="utf-8") as handle:
                    handle.write(f"{json.dumps([asked, plainly[asked]])}\n")
            _, passes, text = ask(sample, drafter)
            same &= text == plainly[asked]
            return MeasuredPrompt(tokens=len(text) - 1, passes=max(passes - 1, 0), seconds=0.0, plain_seconds=0.0)

        for kind, samples in tests.items():
            found[kind] = []
            for number, sample in enumerate(samples):
                if not plan.rounds:
                    found[kind].append(once(sample))
                    continue
                turns: dict[str, list[tuple[float, int, list[int]]]] = {"none": [], drafter: []}
                for _ in range(plan.rounds + (number == 0)):
                    for by, seen in turns.items():
                        seen.append(ask(sample, by))
                plain, ours = turns["none"], turns[drafter]
                same &= all(text == plain[0][2] for _, _, text in (*plain, *ours))
                found[kind].append(
                    MeasuredPrompt(
                        tokens=len(ours[-1][2]) - 1, passes=max(ours[-1][1] - 1, 0),
                        seconds=median(took for took, _, _ in ours[number == 0 :]),
                        plain_seconds=median(took for took, _, _ in plain[number == 0 :]),
                    )
                )  # fmt: skip
    return same, found
