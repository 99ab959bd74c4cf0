"""`mentor` (Speculative Thinking, arXiv 2504.12329): the small model writes; where a paragraph begins with a cue, the
base model takes the pen for a burst.

    small ... blank line | peek of 20 tokens
                           no cue: they stand, and the small model simply goes on
                           a cue:  the mentor writes 20 from the blank line; if they verify, `verify` more
    after `excess` reflections the mentor writes a recapitulation, longer each time

A peek is the small model's own next tokens, held back until they are classified, so a neutral one costs nothing. All
hand-overs are of token ids: both models need one tokenizer.
"""

from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.core.errors import InputError
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.engine.detokenize import Detokenizer
from paceline.engine.loop import Engine
from paceline.reason.cues import Cues
from paceline.reason.level import Level
from paceline.reason.pen import HandOver, Pen, PenPart
from paceline.reason.runner import BASE, SMALL, Script, Stage, need_small
from paceline.reason.steps import SEPARATOR, check_separator, conclude

CHECK = "Let me check what I have so far.\n\n"


@dataclass(frozen=True, slots=True)
class MentorSettings:
    """When the mentor writes, and how many tokens. InputError for values out of range."""

    peek: int = 20
    """Tokens that are classified, and the mentor's in their place."""
    verify: int = 125
    """Tokens more where the peek verifies."""
    begin: int = 0
    """Tokens of the answer's beginning; 100 suits a small model that was not trained to reason."""
    always: bool = False
    """Every paragraph begins with the mentor, cue or not."""
    choose: str = "mentor"
    """Rule that picks the peek: the `mentor`'s always, or the mentor's only where both are of `opposite` sign."""
    excess: int = 15
    """Number of reflections after which the mentor recapitulates; it grows by 5 each time, to 30."""
    recap: int = 125
    """Tokens of a recapitulation; it grows by 25 each time, to 200."""
    check: str = CHECK
    """What is written before a recapitulation."""
    budget: int | None = None
    """Maximum tokens that the mentor writes; then the small model continues alone. None: no limit."""
    deadline_s: float | None = None
    cues: Cues = field(default_factory=Cues)
    separator: str = SEPARATOR
    """What ends a paragraph."""

    def __post_init__(self) -> None:
        if self.choose not in ("mentor", "opposite"):
            raise InputError(f"choose is {self.choose!r}, but it must be mentor or opposite.")
        check_separator(self.separator)
        least = {"peek": 1, "verify": 0, "begin": 0, "excess": 1, "recap": 1, "budget": 0, "deadline_s": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise InputError(f"{name} is {value!r}, but it must be at least {low}.")


@dataclass(eq=False)
class Mentor:
    """One answer with a mentor."""

    settings: MentorSettings = field(default_factory=MentorSettings)
    name: str = "reasoning"
    kind: str = "mentor"
    level: Level = field(default_factory=Level)
    report: dict[str, Any] = field(default_factory=dict)
    log: list[HandOver] = field(default_factory=list)
    rollbacks: list[dict[str, Any]] = field(default_factory=list)
    reflections: int = 0
    """Since the last recapitulation."""
    spent: int = 0

    def __post_init__(self) -> None:
        self.excess, self.recap = self.settings.excess, self.settings.recap

    @property
    def deadline_s(self) -> float | None:
        return self.settings.deadline_s

    def check(self, params: SamplingParams, engines: Mapping[str, Engine]) -> None:
        need_small(engines)

    def script(self, stage: Stage) -> Script:
        text = stage.transcript
        student, mentor = Pen(stage, SMALL, self.log), Pen(stage, BASE, self.log, stage.params.drafter)
        if self.settings.begin:
            yield from self.burst(mentor, self.settings.begin, "begin")
        while text.open:
            peek = yield from self.study(student)
            if peek is None or not text.open:
                continue
            if self.reflections >= self.excess:
                yield from self.recapitulate(mentor)
            else:
                yield from self.take(mentor, peek)

    # -- the student -------------------------------------------------------------------------------------------------

    def study(self, pen: Pen) -> "Generator[None, None, PenPart | None]":
        """The student writes until it needs the mentor: what it would have written then; None: it ended, or was cut."""
        stage, text = pen.stage, pen.stage.transcript
        before, begun = len(text.tokens), stage.clock()
        request = pen.begin(text.left)
        words = Detokenizer(stage.engines[SMALL].session.tokenizer, True, [*text.prompt, *text.tokens])
        reader = Breaks(words, text.text.rsplit(self.settings.separator, 1)[-1], self.settings.separator)
        needed = None
        try:
            while needed is None and text.open:
                ended = request.finish is not None
                needed = self.read(request, reader, pen, before, ended)
                if ended:
                    stage.check(request)
                    break
                if needed is None:
                    yield
        finally:
            stage.engines[SMALL].abort(request)
        pen.note(request, before, begun, "student")
        return needed

    def read(self, request: Request, reader: "Breaks", pen: Pen, before: int, ended: bool) -> PenPart | None:
        """Take in what the student wrote, up to a peek that is not complete; the peek that needs the mentor."""
        text, wish = pen.stage.transcript, self.settings
        new = request.output[before:]
        while text.open:
            at = reader.next(new, len(text.tokens) - before)
            spent = wish.budget is not None and self.spent >= wish.budget
            if at is None or spent:
                self.keep(text.add(new[len(text.tokens) - before :], SMALL))
                return None
            self.keep(text.add(new[len(text.tokens) - before : at], SMALL))
            peek = new[at : at + wish.peek]
            if not text.open or (len(peek) < wish.peek and not ended) or not peek:
                return None
            said = pen.say(peek)
            needs = wish.always or wish.cues.sentiment(said) != 0 or self.reflections >= self.excess
            self.level.proposed += 1
            self.level.accepted += not needs
            reader.found.popleft()
            if needs:
                return PenPart(peek, said, False, False)
            self.keep(text.add(peek, SMALL))
        return None

    def keep(self, taken: int) -> None:
        self.level.kept += taken

    # -- the mentor --------------------------------------------------------------------------------------------------

    def burst(self, pen: Pen, most: int, why: str) -> Generator[None, None, PenPart]:
        """Let the mentor write up to `most` tokens."""
        part = yield from pen.write(min(most, pen.stage.transcript.left), why)
        self.spent += pen.stage.transcript.add(part.tokens, "mentor", why=why)
        return part

    def take(self, pen: Pen, peek: PenPart) -> Script:
        """A cue: whose peek stands, and is it verified?"""
        text, cues = pen.stage.transcript, self.settings.cues
        part = yield from pen.write(min(self.settings.peek, text.left), "peek")
        opposite = cues.sentiment(part.text) * cues.sentiment(peek.text) < 0
        taken, winner = self.settings.choose == "mentor" or opposite, peek
        if taken:
            winner = part
            self.rollbacks.append({"at": len(text.tokens), "tokens": len(peek.tokens), "text": peek.text})
            self.spent += text.add(part.tokens, "mentor", why="peek")
        else:
            self.keep(text.add(peek.tokens, SMALL))
        self.reflections += cues.sentiment(winner.text) < 0
        if text.open and cues.verifies(winner.text) and self.settings.verify:
            yield from self.burst(pen, self.settings.verify, "verify")

    def recapitulate(self, pen: Pen) -> Script:
        """Too many reflections: the mentor takes stock, and next time at more length."""
        text = pen.stage.transcript
        if self.settings.check:
            text.add(pen.encode(self.settings.check), "mentor", why="recap")
        if text.open:
            yield from self.burst(pen, self.recap, "recap")
        self.reflections, self.recap, self.excess = 0, min(self.recap + 25, 200), min(self.excess + 5, 30)

    def ended(self, stage: Stage) -> None:
        conclude(self, stage)


@dataclass(eq=False)
class Breaks:
    """Finds where paragraphs end in a growing list of tokens. Of several blank lines in a row the first counts."""

    detokenizer: Detokenizer
    tail: str
    """The text since the last break."""
    separator: str = SEPARATOR
    found: deque[int] = field(default_factory=deque)
    """Token counts up to and including each blank line after some text, of those not handled yet."""
    _read: int = 0

    def next(self, tokens: list[int], least: int) -> int | None:
        """The first remaining break with at least `least` tokens before it; earlier ones lie in accepted text."""
        for token in tokens[self._read :]:
            self._read += 1
            self.tail += self.detokenizer.push(token)
            if self.separator in self.tail.lstrip():
                self.found.append(self._read)
                self.tail = ""
        while self.found and self.found[0] < least:
            self.found.popleft()
        return self.found[0] if self.found else None
