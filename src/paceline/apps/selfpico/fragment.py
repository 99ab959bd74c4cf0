"""One fragment through the sandbox: what ran, what was put in, what went wrong.

A predictor that ranks values is asked only where the execution needs one (`search`); one that only names a value is
asked for each, and the fragment runs once.
"""

import json
import re
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import Signals
from typing import Any, Literal

from pydantic import TypeAdapter

from ..common.sandbox import AppLimits, AppOutcome, Job, run
from ..common.sandbox.said import read_said
from .box.modules import CALLED, PICO_BOX_MODULES
from .box.uncalled import CALL_S
from .events import events_in
from .instrument import FragmentError, PicoProgram, instrument, runnable
from .predict import STOP, Guess, Hole, PicoRanker, Predictor
from .search import PicoNeed, PicoSearch, conditions, needs
from .taint import tainted
from .uses import PicoUses, allowed, called, fields_of, files_within, form_of, given_argv, guess_of, uses_of

HOLE: TypeAdapter[Hole] = TypeAdapter(Hole)
PICO_BOX = Path(__file__).parent / "box"
PICO_LIMITS = AppLimits(wall_s=30, cpu_s=8, memory_mb=512, processes=16, disk_mb=16)
PICO_ANSWERS = b"1\n" * 200
"""What the fragment reads of standard input, as `input()` does."""
ENDLESS = "a loop does not end"
OWN = "own"
"""Stands in an order for the value that a predictor writes itself."""
READ_OF_STDIN = {"call:input", "attribute:stdin", "name:stdin", "attribute:argv", "name:argv"}
"""What reads standard input or the command line: a text for sure, whose value is made up."""
ENDED_ITSELF = "The fragment ended the process itself after the last line that ran."
LACKING = frozenset({"NameError", "ImportError", "ModuleNotFoundError", "SystemExit"})
"""Errors that say that something is not there, which is what a fragment is; and the end of a program."""


@dataclass(frozen=True, slots=True)
class Put:
    """A value that was put in at a line."""

    key: str
    line: int
    guess: Guess
    shown: str


@dataclass(frozen=True, slots=True)
class Finding:
    """An error of the fragment. `values` are those put in that its line reads; `reached` is whether a put-in value
    reaches the line at all, also by what was made from it: where none does, the error is the fragment's own. `passed`:
    the run went on with a value for the failed call."""

    line: int | None
    error: str
    message: str
    values: tuple[str, ...]
    passed: bool
    reached: bool = False

    @property
    def sure(self) -> bool:
        return not self.values and not self.reached and self.error not in LACKING


@dataclass(frozen=True, slots=True)
class PicoFound:
    """What a name stood for, with the statements that import it; a file or folder that was made; or a function that
    was called because nobody else did, with the values of its parameters."""

    line: int
    kind: Literal["import", "file", "folder", "called", "late"]
    name: str
    shown: str = ""
    imports: tuple[str, ...] = ()
    gets: str = ""
    arguments: tuple[tuple[str, Guess], ...] = ()
    named: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        if self.kind == "called":
            return f"nobody calls {self.name}, so it was called"
        if self.kind == "late":
            return f"{self.name} had not ended after {CALL_S} seconds and was left"
        shown = re.sub(r"^<module '([\w.]+)'.*>$", r"the module \1", self.shown)
        return f"{self.name} is {shown}" if self.kind == "import" else f"{self.kind} {self.name} made"


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a fragment. `stopped` names the limit that ended it, of the sandbox or ENDLESS; `problem` says why
    it could not start."""

    name: str
    source: str
    lines: frozenset[int] = frozenset()
    ran: frozenset[int] = frozenset()
    puts: tuple[Put, ...] = ()
    findings: tuple[Finding, ...] = ()
    end: str | None = None
    stopped: str | None = None
    attempts: tuple[str, ...] = ()
    runs: int = 1
    output: str = ""
    problem: str = ""
    found: tuple[PicoFound, ...] = ()
    """Modules that were imported, files that were made, functions that were called."""
    absent: tuple[str, ...] = ()
    """Modules that are not installed, with objects of which nothing is known in place of what they hold."""

    @property
    def share(self) -> float:
        """Lines run of those with code, in [0, 1]."""
        return len(self.ran) / len(self.lines) if self.lines else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "lines": len(self.lines),
            "ran": len(self.ran),
            "share": round(self.share, 4),
            "end": self.end,
            "stopped": self.stopped,
            "attempts": list(self.attempts),
            "runs": self.runs,
            "problem": self.problem,
            "found": [{"line": each.line, "what": each.what} for each in self.found],
            "values": [{"key": p.key, "line": p.line, "shown": p.shown, **p.guess} for p in self.puts],
            "findings": [
                {"line": f.line, "error": f.error, "message": f.message, "values": list(f.values), "sure": f.sure}
                for f in self.findings
            ],
        }


@dataclass(slots=True)
class PicoRunner:
    """Runs fragments under one predictor, each at most `rounds` times."""

    predictor: Predictor
    rounds: int = 8
    limits: AppLimits = field(default_factory=lambda: PICO_LIMITS)
    calls: bool = False
    """Whether functions that nobody calls are called at the end."""

    async def run(self, name: str, source: str) -> Ran:
        try:
            program = instrument(source)
        except FragmentError as error:
            return Ran(name, source, problem=str(error))
        facts = facts_of(source)
        if not isinstance(self.predictor, PicoRanker):
            return await self.once(name, source, program, {}, facts)
        return await self.searched(name, source, program, facts, self.predictor)

    async def searched(
        self, name: str, source: str, program: PicoProgram, facts: Mapping[str, Any], ranker: PicoRanker
    ) -> Ran:
        """The best of `rounds` runs, each with one value changed where the best so far needs it."""
        text, shift = runnable(textwrap.dedent(source))
        uses, search = uses_of(text), PicoSearch()
        best = await self.once(name, source, program, {}, facts)
        chosen: dict[str, Guess] = {}
        for number in range(2, self.rounds + 1):
            need = next((each for each in wanted(best, program, text, shift) if search.left(each)), None)
            if need is None:
                break
            at = (need.key, need.line)
            if at not in search.orders:
                search.orders[at] = await self.ordered(ranker, need, best, uses.get(need.key), text, source)
            word = search.next(need)
            made = await ranker.own(hole_of(need), source) if word == OWN else {**guess_of(word), "how": word}
            if made is None:
                continue
            guess = {**made, "why": need.why}
            ran = await self.once(name, source, program, {**chosen, need.key: guess}, facts)
            if (len(ran.ran), ran.end is None) > (len(best.ran), best.end is None):
                best, chosen = ran, {**chosen, need.key: guess}
            best = replace(best, runs=number)
        return best

    async def ordered(
        self, ranker: PicoRanker, need: PicoNeed, best: Ran, uses: PicoUses | None, text: str, source: str
    ) -> list[str]:
        now = next((p.guess for p in best.puts if p.key == need.key), {})
        words = [word for word in allowed(uses, text) if word not in ("Object", now.get("how"))]
        return [*(await ranker.ranked(hole_of(need), source, words) if words else []), OWN]

    async def once(
        self, name: str, source: str, program: PicoProgram, known: Mapping[str, Guess], facts: Mapping[str, Any]
    ) -> Ran:
        asks = self.predictor.name != "nothing"
        job = {
            "source": program.source,
            "known": known,
            "ask": asks,
            "calls": self.calls and asks,
            **facts,
            "argv": facts["argv"] if asks else [],
            **program.as_dict(),
        }
        given = {written_by(guess) for guess in known.values()}

        async def talk(line: str) -> str:
            hole = read_said(HOLE, line)
            if hole is None:
                return json.dumps(STOP)
            guess = await self.predictor.predict(hole, source)
            given.add(written_by(guess))
            return json.dumps(guess)

        files: dict[str, str | bytes | Path] = {
            "job.json": json.dumps(job),
            **{f"{module}.py": PICO_BOX / f"{module}.py" for module in PICO_BOX_MODULES},
        }
        command = (sys.executable, "runtime.py")
        outcome = await run(
            Job(command, files, PICO_ANSWERS, limits=self.limits, talk=talk if asks else None, collect=True)
        )
        return read(name, source, program, outcome, given)


def facts_of(source: str) -> dict[str, Any]:
    """What the runtime gets of a fragment: attributes read of each name, fields, files, words of a command line."""
    text, _ = runnable(textwrap.dedent(source))
    return {"read": attributes_of(source), "fields": fields_of(text), "within": files_within(source),
            "form": form_of(source),             "argv": given_argv(text)}  # fmt: skip


def written_by(guess: Mapping[str, Any]) -> tuple[str, str]:
    """The code of a guess, and its expression."""
    return str(guess.get("code", "")), str(guess.get("expression", ""))


def attributes_of(source: str) -> dict[str, list[str]]:
    """Attributes that the fragment reads of each name, and whether it calls it."""
    text, _ = runnable(textwrap.dedent(source))
    found = {key[5:]: uses for key, uses in uses_of(text).items() if key.startswith("name:")}
    return {name: sorted(uses.attributes) + [CALLED] * (called in uses.checks) for name, uses in found.items()}


def hole_of(need: PicoNeed) -> Hole:
    kind, _, name = need.key.partition(":")
    return Hole(need.key, kind, name, need.line, need.why, "", 0)


def wanted(ran: Ran, program: PicoProgram, text: str, shift: int) -> Iterator[PicoNeed]:
    """What a run needs, in order."""
    keys = {p.key for p in ran.puts}
    last = ran.findings[-1] if ran.end is not None and ran.findings else None
    end = None if last is None else (last.line, f"It ended with {last.error}: {last.message}")
    on = {line: on_line(program, line, keys) for line in ran.ran}
    recent = list(dict.fromkeys(p.key for p in reversed(ran.puts)))
    return needs(end, conditions(text, shift, ran.ran, program.lines), on, recent)


def read(name: str, source: str, program: PicoProgram, outcome: AppOutcome, given: Collection[tuple[str, str]]) -> Ran:
    """What the runtime wrote, up to where it was stopped. Code of a value counts only where it was `given`: the
    fragment can write to the report, too."""
    events, strange = events_in(outcome.files.get("events.jsonl", b""))
    known = [each for each in events if all(guess_given(guess, given) for guess in guesses_of(each))]
    events, strange = known, strange + len(events) - len(known)
    ran = frozenset(e["line"] for e in events if e["event"] == "line") & program.lines
    puts = tuple(Put(e["key"], e["line"], e["guess"], e["shown"]) for e in events if e["event"] == "value")
    keys = {p.key for p in puts}
    guessed = keys | {f"name:{e['name']}" for e in events if e["event"] == "import"}
    found = [
        PicoFound(e["line"], "import", e["name"], e["shown"], tuple(e["imports"]))
        for e in events
        if e["event"] == "import"
    ]
    found += [
        PicoFound(e["line"], "folder" if e["folder"] else "file", e["name"]) for e in events if e["event"] == "file"
    ]
    found += [
        PicoFound(e["line"], "called", e["name"], gets=e["gets"], arguments=tuple(e["arguments"].items()),
                  named=tuple(e["named"]))
        for e in events if e["event"] == "called"
    ]  # fmt: skip
    found += [PicoFound(e["line"], "late", e["name"]) for e in events if e["event"] == "late"]
    absent = {e["line"] for e in events if e["event"] == "module"}
    made = {e["line"] for e in events if e["event"] == "file"}
    text = runnable(textwrap.dedent(source))[0]
    reached = tainted(text, program.shift, guessed, absent, made)
    by_text = tainted(text, program.shift, guessed | READ_OF_STDIN, absent, made)
    findings = [
        Finding(
            e["line"],
            e["error"],
            e["message"],
            on_line(program, e["line"], keys),
            True,
            e["line"] in (reached if e["error"] == "TypeError" else by_text),
        )
        for e in events
        if e["event"] == "call"
    ]
    end = next((e for e in events if e["event"] == "end"), None)
    if end is not None and end["error"] is not None:
        values = on_line(program, end["line"], keys)
        far = reached if end["error"] == "TypeError" else by_text
        findings.append(Finding(end["line"], end["error"], end["message"], values, False, end["line"] in far))
    problem = "" if end or outcome.status == "stopped" else crashed(outcome)
    if strange:
        problem = f"{problem} {strange} lines of its report are not the runtime's and were not used.".strip()
    attempts = tuple(f"{a.kind}: {a.what}" for a in outcome.attempts)
    ended = end["error"] if end else None
    stopped = (ENDLESS if end["endless"] else None) if end else outcome.limit
    return Ran(name, source, program.lines, ran, puts, tuple(findings), ended, stopped, attempts, 1,
               outcome.text[:2000], problem, tuple(found),
               tuple(e["name"] for e in events if e["event"] == "module"))  # fmt: skip


def crashed(outcome: AppOutcome) -> str:
    """Why a run left no end: a signal, as native code raises, or a fault of the runtime."""
    if outcome.signal is not None:
        return f"The process crashed after the last line that ran ({Signals(outcome.signal).name})."
    return f"The runtime failed: {outcome.errors[-300:]}" if outcome.errors.strip() else ENDED_ITSELF


def guesses_of(event: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [event["guess"]] if event["event"] == "value" else list(event.get("arguments", {}).values())


def guess_given(guess: Mapping[str, Any], given: Collection[tuple[str, str]]) -> bool:
    """Whether a value's code was given from here, or is the words of a command line alone."""
    words, made = guess.get("argv", []), written_by(guess)
    if "argv" in guess and not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
        return False
    return made in given or made == ("", "") or made == ("", repr(words))


def on_line(program: PicoProgram, line: int | None, keys: set[str]) -> tuple[str, ...]:
    """Values put in that the line reads."""
    read = {f"{s.kind}:{s.name}" for s in program.sites if s.line == line}
    return tuple(sorted(read & keys))
