"""`paceline bench --peers`: the same prompts through other tools, one process of one tool alive at a time.

    ROOT/peers.json (written by bench/peers/setup.sh) -> cases -> the best k of each, in a short first round -> rounds

Each case of each round is a fresh worker that answers JSON lines (bench/peers/protocol.py). Nothing here knows a tool.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from signal import SIGKILL
from statistics import median
from subprocess import PIPE, Popen, TimeoutExpired
from tempfile import TemporaryFile
from threading import Timer
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.bench.busy import CpuWatch
from paceline.bench.files import number, save_json
from paceline.bench.harness import WARM_UP, groups
from paceline.bench.prompts import encode, read_prompts
from paceline.bench.report import machine
from paceline.core.errors import InputError, PacelineError

if TYPE_CHECKING:
    from rich.table import Table

OWN_TOOL = "paceline"
FIRST_ROUND_PROMPTS = 4
"""Prompts of the first round, in which k is chosen (a whole batch where that is more)."""
WORKER_TIMEOUT_S = 1800.0
"""Seconds after which a worker that does not answer is ended."""
WORKER_FIELDS = ("ids", "seconds")
DRAFT_MODES = ("draft", "both", "auto")
"""Modes that use the draft model; `both` adds prompt lookup, in one tree; `auto` chooses."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
Progress = Callable[[int, int, str], None]
"""(cases done, cases in all, what is run now)"""


class PeerError(PacelineError):
    """A tool could not do what was asked of it; the message names the tool."""


@dataclass(frozen=True, slots=True)
class PeerWish:
    """What to measure. `model` and `draft` None: those that `root` was set up for."""

    root: Path
    prompts: Path
    model: Path | None = None
    draft: Path | None = None
    batches: Sequence[int] = (1, 8)
    max_tokens: int = 128
    num_prompts: int = 20
    repeat: int = 3
    threads: int | None = None

    def __post_init__(self) -> None:
        counts = {name: [value] for name in COUNT_OPTIONS if (value := getattr(self, name)) is not None}
        for name, values in {"batch": self.batches, **counts}.items():
            if not values or min(values) < 1:
                raise InputError(f"{name} is {min(values, default='empty')}, but it must be at least 1.")


COUNT_OPTIONS = ("max_tokens", "num_prompts", "repeat", "threads")


class PeerCase(NamedTuple):
    """One line of the report."""

    peer: str
    weights: str
    mode: str
    batch: int

    def __str__(self) -> str:
        return f"{self.peer} {self.mode}, {self.weights}, batch {self.batch}"


class Timing(NamedTuple):
    """One case once over all prompts; `ids` in their order."""

    seconds: float
    ids: list[list[int]]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.ids))

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class PeerRow:
    """Medians over the rounds. `ratio` is Paceline's speed over this one's at equal weights, mode and batch, and its
    range round by round; `same` counts the prompts answered as Paceline's plain decoding did (None: it did not run)."""

    peer: str
    weights: str
    mode: str
    batch: int
    k: int | None
    tokens: int
    tokens_per_second: float
    slowest: float
    fastest: float
    ratio: float | None
    ratio_min: float | None
    ratio_max: float | None
    same: int | None

    @classmethod
    def of(cls, case: PeerCase, k: int | None, results: "Mapping[PeerCase, Sequence[Timing]]") -> "PeerRow":
        runs, own = results[case], None if case.peer == OWN_TOOL else results.get(case._replace(peer=OWN_TOOL))
        plain = results.get(case._replace(peer=OWN_TOOL, mode="plain"))
        speeds = [run.speed for run in runs]
        ratios = [base.speed / run.speed for base, run in zip(own, runs)] if own else []
        return cls(
            *case,
            k,
            int(median(run.tokens for run in runs)),
            median(speeds),
            min(speeds),
            max(speeds),
            median(base.speed for base in own) / median(speeds) if own else None,
            min(ratios, default=None),
            max(ratios, default=None),
            sum(a == b for a, b in zip(runs[0].ids, plain[0].ids)) if plain else None,
        )


PEER_COLUMNS = ("tool", "weights", "mode", "k", "batch", "tokens/s", "range", "ratio", "range", "same")
PEER_KEYS = ("tool", "weights", "mode")


@dataclass(slots=True)
class PeerReport:
    rows: list[PeerRow]
    machine: dict[str, Any]
    versions: dict[str, str]
    args: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    """What was left out, and why."""
    warnings: list[str] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """As JSON. Raises InputError when the file cannot be written."""
        save_json(path, asdict(self))

    def table(self) -> "Table":
        """For a terminal."""
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
        for name in PEER_COLUMNS:
            table.add_column(name, justify="left" if name in PEER_KEYS else "right", no_wrap=True)
        for row in self.rows:
            spread = "-" if row.ratio_min is None else f"{row.ratio_min:.2f}-{row.ratio_max:.2f}"
            table.add_row(
                row.peer, row.weights, row.mode, number(row.k, "d"), str(row.batch), f"{row.tokens_per_second:.1f}",
                f"{row.slowest:.0f}-{row.fastest:.0f}", number(row.ratio, ".2f"), spread, number(row.same, "d"),
            )  # fmt: skip
        return table


class Worker:
    """One tool in a process of its own, which ends with the `with` block. Raises PeerError when it cannot start."""

    def __init__(self, entry: Mapping[str, Any], case: PeerCase) -> None:
        self.case = case
        self.log = TemporaryFile()  # noqa: SIM115 - closed with the block
        command = [entry["python"] or sys.executable, entry["worker"]]
        environment = {**os.environ, **OFFLINE}
        try:
            self.process = Popen(
                command, stdin=PIPE, stdout=PIPE, stderr=self.log, text=True, start_new_session=True, env=environment
            )
        except OSError as error:
            self.log.close()
            raise PeerError(f"{case} is left out: {command[0]} cannot be started ({error.strerror}).") from None

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process.stdin and self.process.stdout
        with suppress(OSError):
            self.process.stdin.close()
        with suppress(TimeoutExpired):
            self.process.wait(0 if error[0] else 20)
        self._kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def _kill(self) -> None:
        """The worker and whatever it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, SIGKILL)

    def ask(self, request: Mapping[str, Any], *fields: str) -> dict[str, Any]:
        """The answer to one request. Raises PeerError when there is none, when it is an error or lacks a field."""
        assert self.process.stdin and self.process.stdout
        timer = Timer(WORKER_TIMEOUT_S, self._kill)
        timer.start()
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = ""
        finally:
            timer.cancel()
        answer = parsed(line) if line else {"error": self._end()}
        if "error" in answer:
            raise PeerError(f"{self.case} is left out: {answer['error']}")
        if not answer.keys() >= set(fields):
            wanted = " and ".join(fields)
            raise PeerError(f"{self.case} is left out: its worker answered {line[:80]!r}, not JSON with {wanted}.")
        return answer

    def _end(self) -> str:
        with suppress(TimeoutExpired):
            self.process.wait(5)
        self.log.seek(0)
        said = self.log.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(said) if line.strip()), "it said nothing")
        return f"its worker gave no answer and ended with code {self.process.poll()} ({last})."


def parsed(line: str) -> dict[str, Any]:
    """A line of JSON; {} when it is no object."""
    try:
        answer = json.loads(line)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


@dataclass(slots=True)
class Comparison:
    """The tools of one ROOT on one set of prompts (ids)."""

    entries: dict[str, dict[str, Any]]
    wish: PeerWish
    prompts: list[list[int]]
    common: dict[str, Any]
    """Fields of the protocol's SPEC that are the same for every case."""
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def cases(self) -> Iterator[PeerCase]:
        """Cases that can run. Cases to be compared are neighbours."""
        for batch in self.wish.batches:
            for weights in dict.fromkeys(w for entry in self.entries.values() for w in entry["models"]):
                for mode in dict.fromkeys(m for entry in self.entries.values() for m in entry["modes"]):
                    for name, entry in self.entries.items():
                        fits = entry["batches"] is None or batch in entry["batches"]
                        if fits and weights in entry["models"] and mode in entry["modes"]:
                            yield PeerCase(name, weights, mode, batch)

    def time(self, case: PeerCase, k: int | None, prompts: Sequence[list[int]]) -> Timing:
        """Load, warm up, and answer the prompts batch by batch in a fresh worker. Raises PeerError."""
        entry = self.entries[case.peer]
        models = entry["models"][case.weights]
        spec = {**self.common, **case._asdict(), "k": k, "options": entry["options"], "model": models["model"]}
        spec["draft"] = models["draft"] if case.mode in DRAFT_MODES else None
        seconds, ids = 0.0, []
        with Worker(entry, case) as worker:
            self.versions.update(worker.ask({"load": spec}, "ready")["ready"])
            short = min(WARM_UP, self.wish.max_tokens)
            worker.ask({"generate": {"prompts": prompts[: case.batch], "max_tokens": short}}, *WORKER_FIELDS)
            for group in groups(len(prompts), case.batch):
                some = [prompts[i] for i in group]
                answer = worker.ask({"generate": {"prompts": some, "max_tokens": self.wish.max_tokens}}, *WORKER_FIELDS)
                seconds += answer["seconds"]
                ids += answer["ids"]
                if len(ids) != group.stop or not all(ids):
                    raise PeerError(f"{case} is left out: it did not answer every prompt.")
        return Timing(seconds, ids)

    def best_k(self, case: PeerCase) -> int | None:
        """The quickest of the tool's k over a few prompts; None where the tool has its own number."""
        ks: list[int] = self.entries[case.peer]["modes"][case.mode]
        if len(ks) < 2:
            return next(iter(ks), None)
        few = self.prompts[: max(FIRST_ROUND_PROMPTS, case.batch)]
        return max(ks, key=lambda k: self.time(case, k, few).speed)

    def run(self, progress: Progress) -> list[PeerRow]:
        """Every case, `repeat` rounds; one that fails is dropped with a note."""
        ks: dict[PeerCase, int | None] = {}
        results: dict[PeerCase, list[Timing]] = {case: [] for case in self.cases()}
        total, done = len(results) * (self.wish.repeat + 1), 0
        for turn in range(self.wish.repeat + 1):
            order = list(results)
            for case in order if turn % 2 == 0 else reversed(order):
                progress(done, total, str(case))
                done += 1
                try:
                    if turn == 0:
                        ks[case] = self.best_k(case)
                    else:
                        results[case].append(self.time(case, ks[case], self.prompts))
                except PeerError as error:
                    self.notes.append(str(error))
                    del results[case]
        return [PeerRow.of(case, ks[case], results) for case in results]


def compare(wish: PeerWish, progress: Progress = lambda done, total, what: None) -> PeerReport:
    """Measure. Raises InputError for a ROOT that was not set up, or for another pair, and for bad prompts."""
    import torch

    from paceline.engine.text import Text

    setup = read(wish)
    texts, text = read_prompts(wish.prompts, wish.num_prompts), Text(Path(setup["model"]))
    prompts = [encode(text, prompt) for prompt in texts]
    entries, notes = ready(wish.root, setup)
    common = {
        "threads": wish.threads or torch.get_num_threads(),
        "max_len": max(map(len, prompts)) + wish.max_tokens,
        "eos": sorted({*text.eos()}),
    }
    warnings = [CpuWatch().before()]
    comparison = Comparison(entries, wish, prompts, common, notes)
    rows = comparison.run(progress)
    if not rows:
        raise InputError(f"Nothing could be measured: {' '.join(comparison.notes)}")
    shown = {**asdict(wish), "model": setup["model"], "draft": setup["draft"], **common}
    return PeerReport(rows, machine("cpu"), comparison.versions, shown, comparison.notes, [w for w in warnings if w])


def read(wish: PeerWish) -> dict[str, Any]:
    """peers.json of ROOT. Raises InputError when it is not there, not whole, or of another pair than the wish's."""
    path = wish.root / "peers.json"
    try:
        setup = json.loads(path.read_text(encoding="utf-8"))
        known = {"model": Path(setup["model"]), "draft": Path(setup["draft"])}
        whole = all(entry.keys() >= RESULT_FIELDS for entry in setup["peers"].values())
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); run bench/peers/setup.sh first.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise InputError(f"{path} is not as bench/peers/setup.sh writes it; run that again.")
    for role, given in (("model", wish.model), ("draft", wish.draft)):
        if given is not None and given.resolve() != known[role].resolve():
            raise InputError(f"{wish.root} was set up for the {role} {known[role]}, not {given}; set it up again.")
    return dict(setup)


RESULT_FIELDS = {"python", "worker", "modes", "batches", "note", "models", "options", "needs"}


def ready(root: Path, setup: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The tools that are set up, and a sentence on each that is not or runs in part only."""
    found, notes = {}, []
    pair = f"--model {setup['model']} --draft {setup['draft']}"
    for name, entry in setup["peers"].items():
        missing = next((path for path in entry["needs"] if not Path(path).exists()), None)
        if missing:
            notes.append(f"{name} is left out: {missing} is missing; run bench/peers/setup.sh {name} {root} {pair}.")
            continue
        found[name] = entry
        if entry["note"]:
            notes.append(entry["note"])
    return found, notes
