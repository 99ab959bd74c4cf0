"""A predictor of types in the manner of LExecutor (Souza and Pradel, FSE 2023): what is called so is usually of this
type.

Where LExecutor fine-tunes a code model on recorded values, this is a naive Bayes classifier over a site's words:
kind, name, parts of the name, and what stands around it on its line. It is trained by running whole programs
(`record`), and ships with what the standard library's own tests showed; no model is asked.
"""

import json
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from pydantic import TypeAdapter

from ..common.sandbox import AppLimits, Job, run
from ..common.sandbox.said import read_said
from .box.dummies import PICO_TYPES
from .instrument import Site, instrument
from .predict import Hole, usual_order

PICO_TABLE_BOX = Path(__file__).parent / "box"
SHIPPED = Path(__file__).parent / "table.json"
SMOOTH = 0.5
VALUE_ROWS: TypeAdapter[list[tuple[int, str, int]]] = TypeAdapter(list[tuple[int, str, int]])
RECORD_LIMITS = AppLimits(wall_s=300, cpu_s=120, memory_mb=1024, processes=64, disk_mb=64)


class RecordError(Exception):
    """A program that cannot be recorded."""


def words(kind: str, name: str, line: str) -> list[str]:
    """Features of a site: its kind, its name and the name's parts, and its surroundings on the line."""
    last = re.sub(r"\(.*|\[.*", "", name).rpartition(".")[2] or name
    parts = [p.lower() for p in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", last)]
    found = [f"kind {kind}", f"{kind} {last}", *(f"part {p}" for p in parts)]
    if parts:
        found.append(f"{kind} last {parts[-1]}")
    if place := re.search(rf"(?:(?<!\w)(\w+)|(?<![ (]))[ (]*\b{re.escape(last)}\b\s*(\W?=?)", line):
        found += [f"{kind} before {place[1] or ''}", f"{kind} after {place[2]}"]
    return found


@dataclass(slots=True)
class Table:
    """How often each word went with each type."""

    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    @classmethod
    def read(cls, path: Path = SHIPPED) -> "Table":
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls({word: Counter({PICO_TYPES[int(t)]: n for t, n in row.items()}) for word, row in data.items()})

    def write(self, path: Path, least: int = 1) -> None:
        """Words that were seen at least so often."""
        rows = {
            word: {PICO_TYPES.index(t): n for t, n in sorted(row.items())}
            for word, row in sorted(self.counts.items())
            if row.total() >= least
        }
        path.write_text("{\n" + ",\n".join(f"{json.dumps(w)}:{json.dumps(r)}" for w, r in rows.items()) + "\n}\n")

    def add(self, kind: str, name: str, line: str, type_: str, count: int = 1) -> None:
        for word in words(kind, name, line):
            self.counts.setdefault(word, Counter())[type_] += count

    def choose(self, hole: Hole, fragment: str) -> str:
        """The most probable type for a hole."""
        lines = fragment.splitlines()
        line = lines[hole.line - 1] if 0 < hole.line <= len(lines) else ""
        scores = self.scores(hole.kind, hole.name, line)
        return max(scores, key=scores.__getitem__)

    def order(self, hole: Hole, fragment: str, words: Sequence[str]) -> list[str]:
        """Words of values by the probability of their types; those that are no type follow in the usual order."""
        lines = fragment.splitlines()
        line = lines[hole.line - 1] if 0 < hole.line <= len(lines) else ""
        scores = self.scores(hole.kind, hole.name, line)
        return sorted(usual_order(hole, fragment, words), key=lambda word: -scores.get(word, -1e9))

    def scores(self, kind: str, name: str, line: str) -> Mapping[str, float]:
        """The log-probability of each type, up to a constant; words never seen say nothing."""
        prior = self.counts.get(f"kind {kind}", Counter())
        total = prior.total() + SMOOTH * len(PICO_TYPES)
        scores = {t: math.log((prior[t] + SMOOTH) / total) for t in PICO_TYPES}
        for word in words(kind, name, line)[1:]:
            if row := self.counts.get(word):
                for t in PICO_TYPES:
                    base = (prior[t] + SMOOTH) / total
                    scores[t] += math.log((row[t] + base) / (row.total() + 1)) - math.log(base)
        return scores


@dataclass(frozen=True, slots=True)
class Subject:
    """A program to record: instrumented `modules` (name and source) that shadow the installed ones, and a command."""

    modules: tuple[tuple[str, str], ...]
    command: tuple[str, ...]

    @classmethod
    def script(cls, path: Path) -> "Subject":
        return cls((("fragment", path.read_text(encoding="utf-8")),), (sys.executable, "fragment.py"))

    @classmethod
    def tested(cls, module: str) -> "Subject":
        """A module of the standard library and its own tests. Raises RecordError."""
        spec = find_spec(module)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            raise RecordError(f"{module} is not a Python module; give one such as textwrap.")
        source = Path(spec.origin).read_text(encoding="utf-8")
        return cls(((module, source),), (sys.executable, "-m", "unittest", "-q", f"test.test_{module}"))


async def record(subject: Subject, table: Table) -> int:
    """Run a program with watching hooks and add what was seen; the number of sites. Raises RecordError."""
    files: dict[str, str | bytes | Path] = {
        "sitecustomize.py": PICO_TABLE_BOX / "recorder.py",
        "dummies.py": PICO_TABLE_BOX / "dummies.py",
    }
    sites: list[tuple[Site, str]] = []
    for name, source in subject.modules:
        program = instrument(source, first=len(sites))
        files[f"{name.replace('.', '/')}.py"] = program.source
        lines = source.splitlines()
        sites += [(site, lines[site.line - 1]) for site in program.sites]
    files["attributes.json"] = json.dumps({i: (s.owner, s.name) for i, (s, _) in enumerate(sites)})
    outcome = await run(
        Job(subject.command, files, env={"PYTHONPATH": "/box"}, limits=RECORD_LIMITS, collect=True, watch=False)
    )
    seen = list(types_in(outcome.files))
    if not seen:
        raise RecordError(f"{subject.modules[0][0]} showed nothing: {outcome.errors[-300:]}")
    for number, type_, count in seen:
        if not 0 <= number < len(sites):
            continue
        site, line = sites[number]
        table.add(site.kind, site.name, line, type_, min(count, 3))
    return len({number for number, _, _ in seen})


def types_in(files: Mapping[str, bytes]) -> Iterator[tuple[int, str, int]]:
    for name, data in files.items():
        if name.startswith("types-") and data:
            yield from read_said(VALUE_ROWS, data) or ()


def accuracy(table: Table, held_out: Iterable[tuple[str, str, str, str]]) -> float:
    """Share of (kind, name, line, type) that the table gets right."""
    right = [max(s, key=s.__getitem__) == t for k, n, line, t in held_out if (s := table.scores(k, n, line))]
    return sum(right) / len(right) if right else 0.0
