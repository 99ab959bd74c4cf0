"""AFL++ over a plan's commands in the sandbox, for a given time; and the planted target that shows what it is worth."""

import json
import random
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ..common.sandbox import AppLimits, Job, run
from ..common.sandbox.said import Said, read_said
from .assemble import DEFAULT_SEEDS, INPUT, FuzzCommand, FuzzPlan, command, distinct
from .combine import at_random
from .constraints import Constraints
from .manual import Manual

FUZZ_HERE = Path(__file__).parent
PLANTED, PLANTED_PAGE = FUZZ_HERE / "planted" / "planted.c", FUZZ_HERE / "planted" / "planted.1"
PLANTED_BUGS = 10
GUESSES = ("0", "1", "2", "8", "16", "64")
FUZZ_GRACE_S = 90.0
FUZZ_SHARED_MB = 64
"""AFL++ and its target tell each other in shared memory which edges ran, and the inputs."""


class FuzzError(Exception):
    """A campaign that cannot be run; nothing was."""


@dataclass(frozen=True, slots=True)
class Crash:
    """A kind of crash: the first three frames that are the target's own name it. `seconds` from the campaign's
    start."""

    hash: str
    kind: str
    frames: tuple[str, ...]
    command: FuzzCommand
    seconds: float
    count: int
    input: bytes


class CrashSaid(Said):
    """A crash as the driver in the box writes it."""

    hash: str
    kind: str
    frames: list[str]
    command: int
    seconds: float
    count: int


class CampaignSaid(Said):
    """The driver's result."""

    commands: list[dict[str, int | float | str | list[str] | None]]
    crashes: list[CrashSaid]
    curve: list[list[float]]
    seconds: float


CAMPAIGN: TypeAdapter[CampaignSaid] = TypeAdapter(CampaignSaid)


@dataclass(frozen=True, slots=True)
class FuzzResult:
    """What a campaign brought. `rows` has figures per command; `limit` names the sandbox's limit if one ended it."""

    crashes: tuple[Crash, ...]
    rows: tuple[Mapping[str, Any], ...]
    seconds: float
    limit: str | None = None
    attempts: tuple[str, ...] = ()
    curve: tuple[tuple[float, int], ...] = ()
    """(seconds, edges of the target that all commands together have reached) after each slice; none when blind."""

    @property
    def execs(self) -> int:
        return sum(row["execs"] for row in self.rows)

    @property
    def execs_per_second(self) -> float:
        """Runs of the target per second of fuzzing."""
        spent = sum(row["seconds"] for row in self.rows)
        return round(self.execs / spent, 1) if spent else 0.0


def missing() -> str:
    """What AFL++ lacks here; empty where nothing."""
    absent = [name for name in ("afl-fuzz", "afl-clang-fast") if shutil.which(name) is None]
    return f"{absent[0]} is missing: apt-get install afl++ libclang-rt-14-dev." if absent else ""


async def build(source: Path) -> bytes:
    """A C file compiled by afl-clang-fast with AddressSanitizer, in the sandbox. Raises FuzzError."""
    if why := missing():
        raise FuzzError(why)
    outcome = await run(
        Job(
            ("afl-clang-fast", "-g", "-O1", "-o", "target", source.name),
            {source.name: source},
            env={"AFL_USE_ASAN": "1", "AFL_QUIET": "1"},
            limits=AppLimits(wall_s=120, cpu_s=60, memory_mb=1024, address_mb=None, disk_mb=128),
            collect=True,
            watch=False,
        )
    )
    if outcome.status != "ok":
        raise FuzzError(f"{source.name} does not compile ({outcome.limit or outcome.errors.strip()[-300:]}).")
    return outcome.files["target"]


@dataclass(frozen=True, slots=True)
class FuzzBudget:
    """Time and space of a campaign. `blind` is for targets without instrumentation: no coverage guides the fuzzer."""

    seconds: float = 60.0
    slice_s: float = 3.0
    seed: int = 0
    blind: bool = False
    persistent: bool = False
    memory_mb: int = 1024
    disk_mb: int = 256

    def limits(self) -> AppLimits:
        wall = self.seconds + FUZZ_GRACE_S
        return AppLimits(wall, int(2 * wall), self.memory_mb, None, 64, self.disk_mb, shared_mb=FUZZ_SHARED_MB)


USAGE = re.compile(
    r"usage|(invalid|illegal|unknown|unrecogni[sz]ed|bad) (option|argument|value)|unexpected argument|"
    r"try .{0,200}--help|(can ?not|may not|must not|can't) be (used|combined|given|specified|mixed)|"
    r"mutually exclusive|conflict|"
    r"incompatible|only one of|requires|must be (used|combined|given|specified)|not allowed with|out of range",
    re.IGNORECASE,
)
"""What programs say on standard error of options that they do not take."""
DRY_S = 5


async def dry(plan: FuzzPlan, target: bytes | Path) -> tuple[FuzzPlan, dict[FuzzCommand, str]]:
    """The plan without commands that the target refuses: each runs once, on the first seed, in the sandbox; one that
    ends with an error and says that its options are wrong, where the program without options does not, is left out,
    with what it said. A crash or a time limit is no refusal."""
    installed = isinstance(target, Path)
    program = str(target) if installed else "./target"
    data = next(iter((plan.seeds or distinct(DEFAULT_SEEDS)).values()))
    files: dict[str, str | bytes | Path] = {**plan.files, "input": data}
    if isinstance(target, bytes):
        files["target"] = target
    script = 'chmod +x target 2>/dev/null; exec "$@" < input'

    async def said(args: Sequence[str]) -> str:
        line = [program, *("input" if arg == INPUT else arg for arg in args)]
        outcome = await run(
            Job(
                ("sh", "-c", script, "sh", *line), files, read=(target.resolve(),) if isinstance(target, Path) else (),
                limits=AppLimits(wall_s=DRY_S, cpu_s=DRY_S, memory_mb=1024, address_mb=None, disk_mb=64), watch=False,
            )
        )  # fmt: skip
        refused = outcome.status == "failed" and USAGE.search(outcome.text + outcome.errors)
        return (outcome.errors or outcome.text).strip()[:200] if refused else ""

    usual = await said((INPUT,) if any(INPUT in c.args for c in plan.commands) else ())
    dropped = {c: why for c in plan.commands if (why := await said(c.args)) and why != usual}
    return replace(plan, commands=tuple(c for c in plan.commands if c not in dropped)), dropped


async def fuzz(plan: FuzzPlan, target: bytes | Path, budget: FuzzBudget) -> FuzzResult:
    """Run the plan's commands on a target, by turns. Raises FuzzError."""
    if why := missing():
        raise FuzzError(why)
    if not plan.commands:
        raise FuzzError("The plan has no commands; predict some first.")
    installed = isinstance(target, Path)
    job = {
        "target": str(target) if installed else "./target",
        "commands": [list(c.args) for c in plan.commands],
        "seconds": budget.seconds,
        "slice": budget.slice_s,
        "seed": budget.seed,
        "blind": budget.blind,
        "persistent": budget.persistent,
    }
    box: dict[str, str | bytes | Path] = {"job.json": json.dumps(job), "driver.py": FUZZ_HERE / "box" / "driver.py"}
    files = {**plan.files, **box}
    files |= {f"seeds/{name}": data for name, data in (plan.seeds or distinct(DEFAULT_SEEDS)).items()}
    if isinstance(target, bytes):
        files["target"] = target
    outcome = await run(
        Job(
            (sys.executable, "driver.py"), files, read=(target.resolve(),) if isinstance(target, Path) else (),
            limits=budget.limits(), collect=True, watch=False,
        )
    )  # fmt: skip
    if "result.json" not in outcome.files:
        raise FuzzError(f"The campaign did not begin ({outcome.limit or outcome.errors.strip()[-300:]}).")
    data = read_said(CAMPAIGN, outcome.files["result.json"])
    whole = data is not None and all(isinstance(row.get("execs"), int) for row in data.commands)
    whole = whole and data is not None and all(len(point) == 2 for point in data.curve)
    if data is None or not whole or any(not 0 <= c.command < len(plan.commands) for c in data.crashes):
        raise FuzzError("The campaign's result is not what its driver writes; the target may have written it.")
    idle = not data.crashes and not any(row["execs"] for row in data.commands)
    if idle and outcome.limit in (None, "time"):
        said = "; ".join(dict.fromkeys(str(row.get("state", ""))[:120] for row in data.commands))
        raise FuzzError(
            f"afl-fuzz has run nothing in {data.seconds:.0f} s ({said}); mend that, or give more --seconds."
        )
    crashes = tuple(
        Crash(c.hash, c.kind, tuple(c.frames), plan.commands[c.command], c.seconds, c.count,
              outcome.files.get(f"repro/{c.hash}", b""))
        for c in data.crashes
    )  # fmt: skip
    attempts = tuple(f"{a.kind}: {a.what}" for a in outcome.attempts)
    curve = tuple((at, int(edges)) for at, edges in data.curve)
    return FuzzResult(crashes, tuple(data.commands), data.seconds, outcome.limit, attempts, curve)


def default_plan(program: str) -> FuzzPlan:
    """The program without options: a baseline."""
    return FuzzPlan(program, (FuzzCommand((), (INPUT,)),), distinct(DEFAULT_SEEDS))


def random_plan(manual: Manual, count: int, seed: int) -> FuzzPlan:
    """Combinations drawn evenly, values from a short list: a baseline that reads only the options' names."""
    draw = random.Random(seed)
    commands = []
    for risky in at_random(manual, count, seed):
        options = [o for key in risky.options if (o := manual.option(key))]
        commands.append(command(options, {o.key: draw.choice(GUESSES) for o in options if o.value}))
    return FuzzPlan(manual.program, tuple(commands), distinct(DEFAULT_SEEDS))


@dataclass(slots=True)
class FuzzComparison:
    """Planted bugs found per strategy and seed, by the planted functions' names."""

    found: dict[str, list[frozenset[str]]] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)

    async def run(self, plans: Mapping[str, Sequence[FuzzPlan]], target: bytes, budget: FuzzBudget, step: Any) -> None:
        """Give each plan of each strategy the same time; strategies by turns, so that a busy machine hurts all
        alike."""
        for number in range(max(len(p) for p in plans.values())):
            for name, each in plans.items():
                result = await fuzz(each[number % len(each)], target, replace(budget, seed=budget.seed + number))
                bugs = {f for crash in result.crashes for f in crash.frames if f.startswith("planted_")}
                self.found.setdefault(name, []).append(frozenset(bugs))
                self.rates.setdefault(name, []).append(result.execs_per_second)
                step()

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "strategy": name,
                "found": [len(bugs) for bugs in each],
                "mean": round(sum(map(len, each)) / len(each), 2),
                "ever": sorted(frozenset[str]().union(*each), key=lambda n: int(n.rpartition("_")[2])),
                "execs_per_second": round(sum(self.rates[name]) / len(each), 1),
            }
            for name, each in self.found.items()
        ]


def within(plan: FuzzPlan, constraints: Constraints) -> bool:
    """Whether no command breaks a constraint."""
    return all(constraints.broken(c.options) is None for c in plan.commands)
