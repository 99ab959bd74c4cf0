"""One fragment through the sandbox: what ran, what was put in, what went wrong.

A run that ends with an error on a line that holds values which were put in is mended where the predictor can: those
values are asked for once more, with the error, and the fragment runs again with all others as they were. The run with
the most lines counts.
"""

import json
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ..common.sandbox import AppLimits, AppOutcome, Job, run
from ..common.sandbox.said import read_said
from .events import events_in
from .instrument import FragmentError, PicoProgram, instrument, runnable
from .predict import STOP, Guess, Hole, PicoModel, Predictor
from .taint import tainted

HOLE: TypeAdapter[Hole] = TypeAdapter(Hole)
PICO_BOX = Path(__file__).parent / "box"
PICO_LIMITS = AppLimits(wall_s=30, cpu_s=8, memory_mb=512, processes=16, disk_mb=16)
MENDED = frozenset({"TypeError", "AttributeError", "ValueError", "IndexError", "KeyError", "UnboundLocalError",
                    "ZeroDivisionError", "AssertionError", "NotImplementedError"})  # fmt: skip


LACKING = frozenset({"NameError", "ImportError", "ModuleNotFoundError"})
"""Errors that say that something is not there, which is what a fragment is."""


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
class Ran:
    """What became of a fragment. `stopped` names the limit that ended it; `problem` says why it could not start."""

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
    rounds: int = 3
    limits: AppLimits = field(default_factory=lambda: PICO_LIMITS)

    async def run(self, name: str, source: str) -> Ran:
        try:
            program = instrument(source)
        except FragmentError as error:
            return Ran(name, source, problem=str(error))
        best: Ran | None = None
        known: dict[str, Guess] = {}
        problems: dict[str, str] = {}
        for number in range(1, self.rounds + 1):
            ran = await self.once(name, source, program, known, problems)
            better = best is None or len(ran.ran) > len(best.ran)
            best = replace(ran if better else best or ran, runs=number)
            if ran.end is None or ran.end not in MENDED or not isinstance(self.predictor, PicoModel):
                break
            known = {p.key: p.guess for p in ran.puts}
            last = ran.findings[-1]
            problems = dict.fromkeys(last.values, f"line {last.line} then raised {last.error}: {last.message}")
            if not problems or (number > 1 and not better):
                break
            known = {key: guess for key, guess in known.items() if key not in problems}
        assert best is not None
        if isinstance(self.predictor, PicoModel) and best.end is None and best.stopped is None:
            self.predictor.keep({p.key: p.guess for p in best.puts})
        return best

    async def once(
        self, name: str, source: str, program: PicoProgram, known: Mapping[str, Guess], problems: Mapping[str, str]
    ) -> Ran:
        asks = self.predictor.name != "nothing"
        job = {"source": program.source, "known": known, "ask": asks, **program.as_dict()}

        async def talk(line: str) -> str:
            hole = read_said(HOLE, line)
            if hole is None:
                return json.dumps(STOP)
            if not hole.problem and hole.key in problems:
                hole = replace(hole, problem=problems[hole.key])
            return json.dumps(await self.predictor.predict(hole, source))

        files: dict[str, str | bytes | Path] = {
            "job.json": json.dumps(job),
            "runtime.py": PICO_BOX / "runtime.py",
            "dummies.py": PICO_BOX / "dummies.py",
        }
        command = (sys.executable, "runtime.py")
        outcome = await run(Job(command, files, limits=self.limits, talk=talk if asks else None, collect=True))
        return read(name, source, program, outcome)


def read(name: str, source: str, program: PicoProgram, outcome: AppOutcome) -> Ran:
    """What the runtime wrote, up to where it was stopped."""
    events, strange = events_in(outcome.files.get("events.jsonl", b""))
    ran = frozenset(e["line"] for e in events if e["event"] == "line") & program.lines
    puts = tuple(Put(e["key"], e["line"], e["guess"], e["shown"]) for e in events if e["event"] == "value")
    keys = {p.key for p in puts}
    absent = {e["line"] for e in events if e["event"] == "module"}
    reached = (
        tainted(runnable(textwrap.dedent(source))[0], program.shift, keys, absent) if keys or absent else frozenset()
    )
    findings = [
        Finding(e["line"], e["error"], e["message"], on_line(program, e["line"], keys), True, e["line"] in reached)
        for e in events
        if e["event"] == "call"
    ]
    end = next((e for e in events if e["event"] == "end"), None)
    if end is not None and end["error"] is not None:
        values = on_line(program, end["line"], keys)
        findings.append(Finding(end["line"], end["error"], end["message"], values, False, end["line"] in reached))
    problem = "" if end or outcome.status == "stopped" else f"The runtime failed: {outcome.errors[-300:]}"
    if strange:
        problem = f"{problem} {strange} lines of its report are not the runtime's and were not used.".strip()
    attempts = tuple(f"{a.kind}: {a.what}" for a in outcome.attempts)
    ended = end["error"] if end else None
    return Ran(name, source, program.lines, ran, puts, tuple(findings), ended, outcome.limit, attempts, 1,
               outcome.text[:2000], problem)  # fmt: skip


def on_line(program: PicoProgram, line: int | None, keys: set[str]) -> tuple[str, ...]:
    """Values put in that the line reads."""
    read = {f"{s.kind}:{s.name}" for s in program.sites if s.line == line}
    return tuple(sorted(read & keys))
