"""`steps` (SpecReason, arXiv 2504.07891): the small model drafts a step, the base model gives it one digit, and writes
the step itself where that is below tau.

    draft = small(text); if judge(text + draft) < tau: draft = base(text); text += draft

A step ends at a blank line behind some text. The answer ends where its author ends it, or at a limit: a word such as
"boxed" in passing ends nothing, and a blank step is no step.
"""

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from paceline.core.errors import InputError, RefusalError
from paceline.core.operations import Submit
from paceline.core.params import SamplingParams
from paceline.engine.loop import Engine
from paceline.reason.judge import JUDGE_SCORES, DraftJudge, score
from paceline.reason.level import Level
from paceline.reason.pen import ForeignPen, HandOver, Pen, PenPart, counters, shown
from paceline.reason.runner import BASE, SMALL, Script, Stage, need_small
from paceline.reason.transcript import Transcript

SEPARATOR = "\n\n"


@dataclass(frozen=True, slots=True)
class StepSettings:
    """How steps are judged. InputError for values out of range."""

    tau: float = 7.0
    """A draft with a score of at least this is accepted: at most 0 takes all, above 9 none."""
    score: str = "mean"
    """`mean` of the digit's distribution, its `argmax`, or `odds`: nine times the chance that the judge says yes."""
    scale: float = 1.0
    """Factor of the log-odds, by which `odds` are calibrated."""
    shift: float = 0.0
    """Number that is added to the log-odds of `odds`."""
    first: int = 0
    """Number of first steps that the base model writes, unscored."""
    step_tokens: int = 512
    """Most tokens of a step."""
    repeats: int | None = None
    """Number of equal steps in a row after which the answer ends; None: never."""
    budget: int | None = None
    """Tokens that the base model may write; then the small one goes on alone, unscored. None: no limit."""
    speculate: bool = False
    """The base model's own steps are drafted token by token, too, by its engine's drafter."""
    deadline_s: float | None = None
    separator: str = SEPARATOR
    """What ends a step."""

    def __post_init__(self) -> None:
        if self.score not in JUDGE_SCORES:
            raise InputError(f"score is {self.score!r}, but it must be one of {', '.join(JUDGE_SCORES)}.")
        if not math.isfinite(self.shift) or not (math.isfinite(self.scale) and self.scale > 0):
            raise InputError(
                f"scale is {self.scale!r} and shift {self.shift!r}, but they must be finite, scale above 0."
            )
        if self.score != "odds" and (self.scale, self.shift) != (1, 0):
            raise InputError(f"scale and shift are of score odds, but score is {self.score}; leave them out.")
        check_separator(self.separator)
        for name, least in (("first", 0), ("step_tokens", 1), ("repeats", 2), ("budget", 0), ("deadline_s", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value!r}, but it must be at least {least}.")


@dataclass(eq=False)
class StepwiseAnswer:
    """One answer by steps."""

    judge: DraftJudge
    settings: StepSettings = field(default_factory=StepSettings)
    foreign: ForeignPen | None = None
    """Translation to the small model's tokens, if its tokenizer is another."""
    name: str = "reasoning"
    kind: str = "steps"
    level: Level = field(default_factory=Level)
    report: dict[str, Any] = field(default_factory=dict)
    log: list[HandOver] = field(default_factory=list)
    rollbacks: list[dict[str, Any]] = field(default_factory=list)
    """Drafts that were not accepted: where, their score, their text."""

    @property
    def deadline_s(self) -> float | None:
        return self.settings.deadline_s

    def check(self, params: SamplingParams, engines: Mapping[str, Engine]) -> None:
        need_small(engines)
        for name in ("logit_bias", "allowed_tokens", "stop_token_ids", "bad_words"):
            if self.foreign is not None and getattr(params, name):
                raise RefusalError(f"{name} speaks of tokens, and the small model has others; leave it out.")

    def script(self, stage: Stage) -> Script:
        text, wish = stage.transcript, self.settings
        base = Pen(stage, BASE, self.log, stage.params.drafter if wish.speculate else "none")
        small = Pen(stage, SMALL, self.log, foreign=self.foreign)
        count, spent, same, last = 0, 0, 0, ""
        while text.open:
            notes: dict[str, Any] = {"step": count + 1}
            author, alone = small, wish.budget is not None and spent >= wish.budget
            if count < wish.first and not alone:
                author, part = base, (yield from self.step(base, "first"))
            else:
                part = yield from self.step(small, "draft")
                if not alone:
                    notes["score"] = yield from self.grade(stage, base, small.home(part))
                    accepted = notes["score"] >= wish.tau
                    self.judged(accepted, text, notes["score"], part)
                    if not accepted:
                        author, part = base, (yield from self.step(base, "rewrite"))
            taken = text.add(author.home(part), author.name, **notes)
            small.heard(part, author)
            spent += taken if author is base else 0
            self.level.kept += taken if author is small else 0
            count += 1
            same, last = (same + 1 if part.text == last else 1), part.text
            if wish.repeats is not None and same >= wish.repeats:
                text.end("stop", "repeat")

    def step(self, pen: Pen, why: str) -> Generator[None, None, PenPart]:
        """The next step: at least some text, up to a blank line, the end, or the limit."""
        most = min(self.settings.step_tokens, pen.stage.transcript.left)
        tokens, said = list[int](), ""
        while True:
            part = yield from pen.write(most - len(tokens), why, (self.settings.separator,), tokens)
            tokens, said = [*tokens, *part.tokens], said + part.text
            if part.ended or part.cut or said.strip() or not part.tokens or len(tokens) >= most:
                return PenPart(tokens, said, part.ended, part.cut)

    def grade(self, stage: Stage, base: Pen, draft: list[int]) -> Generator[None, None, float]:
        """The base model's score of a draft (its tokens)."""
        text, begun = stage.transcript, stage.clock()
        body = [token for token in draft if token not in text.request.eos]
        prompt = [*text.prompt, *text.tokens, *body, *self.judge.suffix]
        wish = SamplingParams(
            temperature=0, max_tokens=1, allowed_tokens=self.judge.digits, logprobs=len(self.judge.digits),
            ignore_eos=True, drafter="none", priority=stage.params.priority, user=stage.params.user,
        ).resolve({})  # fmt: skip
        engine = stage.engines[BASE]
        [request] = engine.apply(Submit(prompt, wish))
        try:
            yield from base.wait(request)
        finally:
            engine.abort(request)
        base.note(request, 0, begun, "judge")
        wished = self.settings
        return score(request.logprobs[0].top, self.judge.digits, wished.score, wished.scale, wished.shift)

    def judged(self, accepted: bool, text: Transcript, grade: float, part: PenPart) -> None:
        self.level.proposed += 1
        self.level.accepted += accepted
        if not accepted:
            self.rollbacks.append(
                {"at": len(text.tokens), "score": grade, "tokens": len(part.tokens), "text": part.text}
            )

    def ended(self, stage: Stage) -> None:
        conclude(self, stage)


def check_separator(separator: str) -> None:
    """InputError for one that is empty or too long."""
    if not 0 < len(separator) <= 64:
        raise InputError(f"separator has {len(separator)} characters, but it must have 1 to 64.")


class TwoModelAnswer(Protocol):
    """What a policy of two models knows when its answer has ended."""

    kind: str
    level: Level
    log: list[HandOver]
    rollbacks: list[dict[str, Any]]
    report: dict[str, Any]


def conclude(policy: TwoModelAnswer, stage: Stage) -> None:
    """Complete the report of an answer that has ended."""
    level, log, request = policy.level, policy.log, stage.transcript.request
    tally(level, log)
    policy.report.update(
        policy=policy.kind, ended=stage.transcript.why or request.finish, proposed=level.proposed,
        accepted=level.accepted, segments=stage.transcript.shown(), rollbacks=policy.rollbacks, models=counters(log),
        handovers=shown(log),
    )  # fmt: skip
    request.stats.passes = counters(log).get(BASE, {}).get("passes", 0)


def tally(level: Level, log: list[HandOver]) -> None:
    """Seconds and tokens by what they were for."""
    for each in log:
        if each.why == "judge":
            level.judge_s += each.seconds
        elif each.model == SMALL:
            level.cheap_s += each.seconds
        else:
            level.expensive, level.expensive_s = level.expensive + each.wrote, level.expensive_s + each.seconds
