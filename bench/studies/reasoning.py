"""Reasoning with two models on questions that a program judges: what is right, what it costs.

    python bench/studies/reasoning.py DATA BASE SMALL --task gsm8k --out rows.jsonl [--questions 200] [--minutes 4]
    python bench/studies/reasoning.py DATA BASE SMALL --task gsm8k --out rows.jsonl --calibrate 40
    python bench/studies/reasoning.py DATA BASE SMALL --task gsm8k --timed --out times.jsonl --rows "small,base,tau 7"
        [--skip 40] [--questions 6]

The first asks all questions of each row, many at once, and prints for each row how many are right (95 % interval), the
difference to `base` on the same questions, tokens by author, and judged and accepted steps. It can be stopped and begun
again: answers that are in --out stay, and an --out of other models, questions or options is refused. Rows of steps
share what they have in common: the same draft, score or rewrite behind the same text is computed once, and its
hand-over is counted in each row.

The second says which of the thresholds in --out is the lowest by which the first N questions are answered as well as by
`base`, less one standard error; the others are then a test of it. With a row `odds 0` it also fits scale and shift,
by the steps of the same N questions. The first command with `--skip N` shows the others alone.

The third asks one question at a time, every row in turns, each with empty caches, and records seconds and seconds of
processor time. Beside a row's seconds stand those of the cost model: requests, tokens computed and passes of each
model, as the answers counted them, at the pace that each model alone had in the same run; what drafting costs within
the base model's steps (`tau X spec`, which needs --draft) is not in it. Seconds need an idle machine; processor time
with one thread needs it less. Leave out the questions that chose a threshold (`--skip`).

Rows: small, base, `tau X` and `odds X` (SpecReason; X from 0 to 9; `odds X SCALE SHIFT` calibrates the odds with
these), `tau X spec` (its rewrites drafted by token),
`mentor` (Speculative Thinking: each paragraph begins with the mentor) and `mentor cues`. DATA: see judged.py.
"""

import argparse
import math
import random
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from judged import MOST_TOKENS, TASKS, Question, Record, difference, digest, share, task_settings, within

from paceline import SamplingParams
from paceline.engine.loop import Engine
from paceline.reason import Cues, Ensemble, MentorSettings, StepSettings
from paceline.reason.ensemble import PolicySettings
from paceline.reason.judge import HIGHEST_SCORE
from paceline.reason.pen import HandOver, Pen, PenPart
from paceline.reason.runner import BASE, SMALL, Stage
from paceline.reason.steps import StepwiseAnswer

ROWS = "small,base,tau 5,tau 6,tau 7,tau 8,tau 8.5,mentor,mentor cues"
SPEC = " spec"
TIMED = " timed"
BATCH = 40
"""Questions asked at once."""


def wishes(name: str, separator: str) -> PolicySettings:
    """PolicySettings of a row."""
    plain: dict[str, PolicySettings] = {
        "small": StepSettings(tau=-1, budget=0, separator=separator),
        "base": StepSettings(first=10**6, separator=separator),
        "mentor": MentorSettings(begin=20, always=True, separator=separator),
        "mentor cues": MentorSettings(separator=separator),
    }
    if name in plain:
        return plain[name]
    kind, tau, *line = name.removesuffix(SPEC).split()
    score, (scale, shift) = "odds" if kind == "odds" else "mean", map(float, line or (1, 0))
    return StepSettings(
        tau=float(tau), score=score, scale=scale, shift=shift, speculate=name.endswith(SPEC), separator=separator
    )


def ask(pair: Ensemble, question: Question, name: str, params: SamplingParams, known: Any = None) -> tuple[Any, Any]:
    """Begin an answer: its policy and its request. `known`: what earlier rows have computed."""
    policy: Any = pair.policy(wishes(name, question.separator), question.messages)
    if known is not None and isinstance(policy, StepwiseAnswer):
        policy = Remembering(policy.judge, policy.settings, known=known)
    params = replace(params, drafter="model") if name.endswith(SPEC) else params
    return policy, pair.runner.submit(pair.llm.text.chat(question.messages), params, policy)[0]


# -- counting --------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Remembering(StepwiseAnswer):
    """Steps, of which the same one behind the same text is written or graded once."""

    known: dict[Any, tuple[Any, list[HandOver]]] | None = None

    def step(self, pen: Pen, why: str) -> Generator[None, None, PenPart]:
        text = pen.stage.transcript
        key = ("step", pen.name, *text.prompt, *text.tokens)
        return (yield from self._once(key, lambda: super(Remembering, self).step(pen, why)))

    def grade(self, stage: Stage, base: Pen, draft: list[int]) -> Generator[None, None, float]:
        text = stage.transcript
        key = ("grade", self.settings.score, *text.prompt, *text.tokens, "draft", *draft)
        return (yield from self._once(key, lambda: super(Remembering, self).grade(stage, base, draft)))

    def _once(self, key: Any, work: Any) -> Generator[None, None, Any]:
        assert self.known is not None
        if key in self.known:
            made, log = self.known[key]
            self.log += log
            return made
        before = len(self.log)
        made = yield from work()
        self.known[key] = made, self.log[before:]
        return made


def count(pair: Ensemble, questions: Sequence[Question], name: str, known: Any, record: Record, task: str) -> None:
    """Ask all of them at once, and write down what came."""
    params = SamplingParams(temperature=0, max_tokens=MOST_TOKENS[task]).resolve({})
    begun = time.monotonic()
    asked = [(question, *ask(pair, question, name, params, known)) for question in questions]
    while pair.runner.busy:
        pair.runner.step()
    seconds = (time.monotonic() - begun) / len(asked)
    for question, policy, request in asked:
        report = policy.report
        hands = report["handovers"]
        record.add(
            f"{task} {name}", question.id, right=question.right(request.text), tokens=len(request.output),
            whole=request.finish == "stop", wrote={model: total(hands, "wrote", model) for model in (BASE, SMALL)},
            computed={m: total(hands, "at", m) - total(hands, "cached", m) for m in (BASE, SMALL)},
            requests={m: sum(each["model"] == m for each in hands) for m in (BASE, SMALL)},
            passes={model: total(hands, "passes", model) for model in (BASE, SMALL)},
            judges=sum(each["why"] == "judge" for each in hands), proposed=report["proposed"],
            accepted=report["accepted"], seconds=round(seconds, 3), text=request.text,
            mentor=sum(each["tokens"] for each in report["segments"] if each["author"] != SMALL),
            scores=[round(each["score"], 4) for each in report["segments"] if "score" in each],
        )  # fmt: skip


def total(hands: Sequence[dict[str, Any]], what: str, model: str) -> int:
    """Sum over a model's hand-overs."""
    return sum(each[what] for each in hands if each["model"] == model)


def counting(pair: Ensemble, questions: Sequence[Question], record: Record, args: argparse.Namespace) -> None:
    until, known = time.monotonic() + args.minutes * 60, dict[Any, Any]()
    for start in range(0, len(questions), args.batch):
        known.clear()
        for name in args.rows.split(","):
            left = record.left(f"{args.task} {name}", questions[start : start + args.batch])
            if left and time.monotonic() < until:
                count(pair, left, name, known, record, args.task)
                print(f"{name}: {start + len(left)}", file=sys.stderr, flush=True)


def show(record: Record, ids: Sequence[str], args: argparse.Namespace) -> None:
    """The table over questions that all rows have answered."""
    names = [name for name in args.rows.split(",") if record.row(f"{args.task} {name}")]
    rows = {name: record.row(f"{args.task} {name}") for name in names}
    common = [each for each in ids if all(each in row for row in rows.values())]
    print(f"{args.task}, {len(common)} questions; cues: words of reflection or checking in 1,000 tokens")
    print("row            right [95 %]           less base        tokens  by base  judged  accepted    cues  breaks")
    for name, row in rows.items():
        mine = [row[each] for each in common]
        of = max(1, len(mine))
        right = [each["right"] for each in mine]
        mean, half = difference(right, [rows["base"][each]["right"] for each in common]) if "base" in rows else (0, 0)
        written = sum(each["tokens"] for each in mine)
        cues = sum(abs(count_cues(each["text"])) for each in mine)
        breaks = sum(each["text"].count(args.separator) for each in mine) / of
        print(f"{name:12}  {share(sum(right), len(mine)):22} {mean:+.3f} {within(half)}  {written / of:6.0f} "
              f"{sum(each['mentor'] for each in mine) / max(1, written):8.2f}"
              f"{sum(x['proposed'] for x in mine) / of:8.1f}"
              f" {sum(x['accepted'] for x in mine) / max(1, sum(x['proposed'] for x in mine)):9.2f}"
              f" {1000 * cues / max(1, written):7.2f} {breaks:7.1f}")  # fmt: skip


def count_cues(text: str) -> int:
    """Cue words of reflection and verification."""
    from paceline.reason.cues import count as counted

    cues = Cues()
    return counted(cues.negative, text) + counted(cues.verify, text)


def chosen(record: Record, task: str, names: Sequence[str], ids: Sequence[str]) -> tuple[str | None, list[str]]:
    """The lowest threshold whose answers to these questions are right as often as the base model's, less one standard
    error (None: none is), and what was found."""
    base = record.row(f"{task} base")
    known = [each for each in ids if each in base]
    right = sum(base[each]["right"] for each in known)
    share_right = right / max(1, len(known))
    least = share_right - (share_right * (1 - share_right) / max(1, len(known))) ** 0.5
    told = [f"base: {right} of {len(known)}; at least {least:.3f} is asked for"]
    taus = [name for name in names if name.startswith(("tau", "odds")) and not name.endswith(SPEC)]
    found = None
    for name in sorted(taus, key=lambda each: float(each.split()[1])):
        row = record.row(f"{task} {name}")
        mine = [row[each] for each in known if each in row]
        good = sum(each["right"] for each in mine) / max(1, len(mine))
        if found is None and mine and len(mine) == len(known) and good >= least:
            found = name
        told.append(f"{name:9} {good:.3f} of {len(mine)}")
    return found, told


def calibrate(questions: Sequence[Question], record: Record, args: argparse.Namespace) -> None:
    """The lowest threshold that is as good as the base model, less one standard error, on the first questions."""
    first = [question.id for question in questions[: args.calibrate]]
    found, told = chosen(record, args.task, args.rows.split(","), first)
    print("\n".join(told), f"\ncalibrated: {found or 'none; use base'}", sep="")
    scored = graded(record, args.task, first)
    if len({right for _, right in scored}) > 1:
        scale, shift = platt([log_odds(score) for score, _ in scored], [right for _, right in scored])
        print(f"odds over {len(scored)} steps of the small model, by whether its answer was right: "
              f"scale {scale:.2f}, shift {shift:.2f}")  # fmt: skip


def graded(record: Record, task: str, ids: Sequence[str]) -> list[tuple[float, bool]]:
    """Score of each step of these questions' answers in the row `odds 0`, and whether the answer was right."""
    row = record.row(f"{task} odds 0")
    return [(score, row[each]["right"]) for each in ids if each in row for score in row[each].get("scores", ())]


def log_odds(score: float) -> float:
    """Of a score from 0 to 9 by `odds`."""
    chance = min(max(score / HIGHEST_SCORE, 1e-6), 1 - 1e-6)
    return math.log(chance / (1 - chance))


def platt(odds: Sequence[float], right: Sequence[bool], rounds: int = 100) -> tuple[float, float]:
    """Scale and shift by which the log-odds tell best who is right: logistic regression by Newton's method, whose steps
    are halved until the loss is less, with a slight pull to a scale of 1."""
    x, y = np.stack([np.asarray(odds, float), np.ones(len(odds))], 1), np.asarray(right, float)
    at, pull, first = np.array([1.0, 0.0]), np.array([1.0, 0.01]), np.array([1.0, 0.0])

    def loss(where: Any) -> float:
        """Surprise of what is right, and the pull."""
        line = x @ where
        return float((np.logaddexp(0, line) - y * line).sum() + (pull * (where - first) ** 2).sum() / 2)

    for _ in range(rounds):
        chance = 1 / (1 + np.exp(-np.clip(x @ at, -700, 700)))
        slope = x.T @ (chance - y) + pull * (at - first)
        bend = (x * (chance * (1 - chance))[:, None]).T @ x + np.diag(pull)
        step, now = np.linalg.solve(bend, slope), loss(at)
        while loss(at - step) > now and abs(step).max() > 1e-8:
            step = step / 2
        at = at - step
        if abs(step).max() <= 1e-8:
            break
    return float(at[0]), float(at[1])


# -- timing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of one model: a request takes `start`, and a fixed time for each token computed before its first, and for
    each pass behind that. Passes, not tokens: a model's own drafter may write several a pass."""

    start: float
    computed: float
    written: float

    @classmethod
    def of(cls, engine: Engine, tries: int = 3) -> "Pace":
        """As measured now: medians of requests of three lengths for one token, and of 24 tokens more."""
        draw, lengths = random.Random(0), (4, 48, 128)
        words = [i for i in range(engine.model.vocab_size * 2 // 3) if i not in engine.session.eos]

        def once(length: int, tokens: int) -> float:
            wish = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, drafter="none").resolve({})
            begun = time.perf_counter()
            [request] = engine.submit(draw.choices(words, k=length), wish)
            while request.finish is None:
                engine.step()
            return time.perf_counter() - begun

        firsts = [median(once(length, 1) for _ in range(tries)) for length in lengths]
        slope, start = np.polyfit(lengths, firsts, 1)
        long = median(once(48, 25) for _ in range(tries))
        return cls(max(0.0, float(start)), float(slope), (long - firsts[1]) / 24)

    def seconds(self, hands: Sequence[dict[str, Any]], model: str) -> float:
        mine = [each for each in hands if each["model"] == model]
        computed, passes = total(mine, "at", model) - total(mine, "cached", model), total(mine, "passes", model)
        return len(mine) * self.start + computed * self.computed + (passes - len(mine)) * self.written


def timing(pair: Ensemble, questions: Sequence[Question], record: Record, args: argparse.Namespace) -> None:
    params = SamplingParams(temperature=0, max_tokens=MOST_TOKENS[args.task]).resolve({})
    until, names = time.monotonic() + args.minutes * 60, args.rows.split(",")
    rows = {name: f"{args.task} {name}{TIMED}" for name in names}
    todo = [each for each in questions if any((row, each.id) not in record.known for row in rows.values())]
    pace = {name: Pace.of(engine) for name, engine in pair.runner.engines.items()} if todo else {}
    for name, it in pace.items():
        print(f"{name}: {it.start * 1e3:.1f} ms a request, {it.computed * 1e3:.1f} a token computed, "
              f"{it.written * 1e3:.1f} a token written", file=sys.stderr, flush=True)  # fmt: skip
    for number, question in enumerate(todo):
        if time.monotonic() > until:
            break
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if (rows[name], question.id) in record.known:
                continue
            for engine in pair.runner.engines.values():
                engine.cache.drop_prefix()
            started, cpu = time.perf_counter(), time.process_time()
            policy, request = ask(pair, question, name, params)
            while request.finish is None:
                pair.runner.step()
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
            hands = policy.report["handovers"]
            record.add(
                rows[name], question.id, seconds=round(seconds, 4), cpu=round(cpu, 4), tokens=len(request.output),
                predicted=round(sum(it.seconds(hands, model) for model, it in pace.items()), 4), text=request.text,
                right=question.right(request.text),
            )  # fmt: skip


def show_times(record: Record, rows: dict[str, str], ids: Sequence[str]) -> None:
    """`of base`: the base model's processor time over the row's, with the least and the greatest of one question."""
    known = {name: record.row(row) for name, row in rows.items()}
    common = [each for each in ids if all(each in row for row in known.values())]
    print(f"{len(common)} questions\nrow       seconds a question (range)    processor  of base (range)"
          "        tokens  ms a token  predicted  measured/predicted  right")  # fmt: skip
    if not common:
        return
    for name, row in known.items():
        mine = [row[each] for each in common]
        seconds, cpu, tokens = ([each[what] for each in mine] for what in ("seconds", "cpu", "tokens"))
        ratios = [each["seconds"] / each["predicted"] for each in mine]
        base = [known["base"][each]["cpu"] for each in common] if "base" in known else cpu
        gains = [one / other for one, other in zip(base, cpu)]
        print(f"{name:10} {median(seconds):8.2f} ({min(seconds):.2f} to {max(seconds):.2f}) {sum(cpu) / len(cpu):9.2f}"
              f" {sum(base) / sum(cpu):8.2f} ({min(gains):.2f} to {max(gains):.2f}) {sum(tokens):8}"
              f" {sum(seconds) / sum(tokens) * 1e3:11.1f} {median(each['predicted'] for each in mine):10.2f}"
              f" {median(ratios):9.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
              f" {sum(each['right'] for each in mine) / len(mine):6.3f}", flush=True)  # fmt: skip
        if (plain := name.removesuffix(SPEC)) != name and plain in known:
            same = [row[each]["text"] == known[plain][each]["text"] for each in common]
            print(f"{name}: the texts of {plain}: {all(same)}")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("base")
    parser.add_argument("small")
    parser.add_argument("--task", choices=list(TASKS), default="svamp")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--batch", type=int, default=BATCH, help="questions asked at once")
    parser.add_argument("--minutes", type=float, default=600, help="begin nothing new after these")
    parser.add_argument("--quantize", default=None)
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--draft", help="drafts tokens of the base model's own steps in rows that end with `spec`")
    parser.add_argument("--timed", action="store_true", help="one question at a time, with the cost model")
    parser.add_argument("--calibrate", type=int, default=0, metavar="N", help="choose a threshold by the first N")
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON lines: answers that are there are not asked again"
    )
    args = parser.parse_args(words)
    every = TASKS[args.task](args.data)
    questions = every[args.skip :][: args.questions]
    if not questions:
        parser.error(f"{args.task} has {len(every)} questions; none is left behind --skip {args.skip}")
    args.separator = questions[0].separator
    settings = {"base": digest(args.base), "small": digest(args.small), "quantize": args.quantize}
    if any(name.endswith(SPEC) for name in args.rows.split(",")):
        settings["draft"] = digest(args.draft)
    if args.timed:
        settings["threads of times"] = torch.get_num_threads()
    record = Record(args.out, {**settings, **task_settings(args.task, every)})
    if args.calibrate:
        calibrate(questions, record, args)
        return
    rows = {name: f"{args.task} {name}{TIMED * args.timed}" for name in args.rows.split(",")}
    if any(record.left(row, questions) for row in rows.values()):
        options = {"quantize": args.quantize, "drafter": "none", "blocks": 2400}
        with Ensemble(args.base, small=args.small, draft=args.draft, **options) as pair:
            (timing if args.timed else counting)(pair, questions, record, args)
    ids = [question.id for question in questions]
    if args.timed:
        show_times(record, rows, ids)
    else:
        show(record, ids, args)


if __name__ == "__main__":
    main()
