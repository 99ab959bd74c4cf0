"""From a combination to a command and seed files (ProphetFuzz, section 4.3).

The model gives a value for each option that takes one, and a small Python program that writes seeds; the program runs
in the sandbox, a name that it forgot to import is imported once, and what it cannot do is reported: the given seeds
stand in.
"""

import ast
import importlib.util
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from typing import Annotated, Any

from pydantic import BaseModel, Field, create_model

from ..common.ask import AppSettings, Prompt, ask
from ..common.client import AppClient
from ..common.forms import Json
from ..common.sandbox import AppLimits, Job, run
from .combine import Risky
from .manual import Manual, Option, described

INPUT = "@@"
LARGEST_SEED = 1024
RESERVED = frozenset(
    ["target", "input", "said", "seeds", "job.json", "driver.py", "result.json", "result.tmp", "repro", "out", "in"]
)
"""Names in the working directory of a campaign that are its own."""
DEFAULT_SEEDS = {"text": b"P5\n111\n222\n", "empty": b"\n", "bytes": bytes(range(32, 96))}
FUZZ_SYSTEM = "You write test inputs for command-line programs. You answer as JSON."
VALUES_TASK = (
    "Give a value for each, one that stresses the program most while it still accepts it. Example: of --level N "
    "(1 to 9), --block-size SIZE and --dictionary FILE, with a file words.txt in the working directory: value0: 9, "
    "value1: 65535, value2: words.txt. Now:"
)
Value = Annotated[str, Field(min_length=1, max_length=20)]
FUZZ_PLAIN = re.compile(r"^[\w.,:=+/@%-]+$")
MAKE_LIMITS = AppLimits(wall_s=10, cpu_s=5, memory_mb=256, disk_mb=8, processes=8)


@dataclass(frozen=True, slots=True)
class FuzzCommand:
    """Arguments after the program's name; INPUT is the fuzzed file, which goes to standard input where no argument is.
    `problem` says what of the model's was left out."""

    options: tuple[str, ...]
    args: tuple[str, ...]
    count: int = 1
    problem: str = ""

    def text(self, program: str) -> str:
        return shlex.join([program, *self.args])


@dataclass(frozen=True, slots=True)
class Assembled:
    """Commands without duplicates, and seeds by name."""

    commands: tuple[FuzzCommand, ...]
    seeds: Mapping[str, bytes]
    problems: tuple[str, ...] = ()


class Seeds(BaseModel):
    """A program that writes seed files into its working directory."""

    program: Annotated[str, Field(max_length=700)]


@dataclass(frozen=True, slots=True)
class Around:
    """What is around a program's runs: `files`, further ones by name, that its options may be given, whether it reads
    standard input in place of a file, and how many sets of values a combination gets."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    stdin: bool = False
    values: int = 1


ALONE = Around()


async def assemble(
    client: AppClient,
    manual: Manual,
    risky: Sequence[Risky],
    around: Around = ALONE,
    deadline_s: float | None = None,
    seeds: Mapping[str, bytes] | None = None,
) -> Assembled:
    """A command for each combination and set of values, and seeds: the model's in addition to the given ones."""
    commands, problems = [], []
    for r in risky:
        options = [o for key in r.options if (o := manual.option(key))]
        for number in range(around.values if any(o.value for o in options) else 1):
            given, problem = await valued(client, manual, options, number, deadline_s, tuple(around.files))
            commands.append(command(options, given, r.count, problem, around.stdin))
    made, problem = await seeded(client, manual, deadline_s)
    problems += [problem] if problem else []
    unique = {c.args: c for c in reversed(commands)}
    kept = tuple(c for c in commands if unique.get(c.args) is c)
    return Assembled(kept, distinct({**(seeds or DEFAULT_SEEDS), **made}), tuple(problems))


def command(
    options: Iterable[Option], values: Mapping[str, str], count: int = 1, problem: str = "", stdin: bool = False
) -> FuzzCommand:
    """The options in their manual's order, each with its value as its spelling wants it, then the input file, which
    with `stdin` is not named."""
    args: list[str] = []
    chosen = list(options)
    for option in chosen:
        value = values.get(option.key, "1") if option.value else ""
        if value and option.key.startswith("--"):
            short = next((s for s in option.spellings if not s.startswith("--")), None)
            args += [short, value] if short else [f"{option.key}={value}"]
        else:
            args += [option.key, value] if value else [option.key]
    return FuzzCommand(tuple(o.key for o in chosen), (*args, *(() if stdin else (INPUT,))), count, problem)


async def valued(
    client: AppClient, manual: Manual, options: Sequence[Option], number: int, deadline_s: float | None,
    files: Sequence[str] = (),
) -> tuple[dict[str, str], str]:  # fmt: skip
    """Values of the options that take one, and what went wrong; the `number`-th set differs by its seed. `files` can be
    named."""
    taking = [o for o in options if o.value]
    if not taking:
        return {}, ""
    fields: dict[str, Any] = {f"value{i}": (Value, ...) for i, _ in enumerate(taking)}
    model = create_model("Values", **fields)
    task = f"{VALUES_TASK}\n" + "\n".join(f"value{i}: {o.key} {o.value}" for i, o in enumerate(taking))
    data = f"Options of {manual.program}:\n" + "\n".join(described(o) for o in options)
    data += f"\nFiles in the working directory: {', '.join(files)}" if files else ""
    settings = AppSettings(
        max_tokens=40 * len(taking) + 20, temperature=0.7, seed=number, logprobs=False, deadline_s=deadline_s
    )
    answer = await ask(client, Json(model), Prompt(task, data, FUZZ_SYSTEM), settings)
    if answer.value is None:
        return {}, f"no values ({answer.problem}): 1 stands in"
    given = {o.key: str(getattr(answer.value, f"value{i}")) for i, o in enumerate(taking)}
    wrong = [key for key, value in given.items() if not FUZZ_PLAIN.match(value) or value.startswith("-")]
    return {k: v for k, v in given.items() if k not in wrong}, f"unusable value of {', '.join(wrong)}" if wrong else ""


async def seeded(client: AppClient, manual: Manual, deadline_s: float | None) -> tuple[dict[str, bytes], str]:
    """Seed files as the model's program writes them, and what went wrong."""
    task = (
        "Write a Python program that writes three small valid input files of this program, file0, file1 and file2, "
        "into the working directory, each under 500 bytes. Standard library only."
    )
    settings = AppSettings(max_tokens=350, logprobs=False, deadline_s=deadline_s)
    head = f"{manual.program}: {manual.description}\nSynopsis: {manual.synopsis}"
    answer = await ask(client, Json(Seeds), Prompt(task, head, FUZZ_SYSTEM), settings)
    if answer.value is None:
        return {}, f"no program for seeds ({answer.problem})"
    files, problem = await written(answer.value.program)
    return files, f"the program for seeds failed: {problem}" if problem else ""


async def written(program: str) -> tuple[dict[str, bytes], str]:
    """Files that a program writes in the sandbox; a standard module that it forgot to import is imported once."""
    try:
        ast.parse(program)
    except (SyntaxError, ValueError) as error:
        return {}, f"SyntaxError: {error}"
    problem = ""
    for _ in range(2):
        outcome = await run(Job((sys.executable, ".make.py"), {".make.py": program}, limits=MAKE_LIMITS, collect=True))
        files = {n: data[:LARGEST_SEED] for n, data in outcome.files.items() if n != ".make.py" and data}
        if outcome.status == "ok":
            return files, "" if files else "it wrote nothing"
        problem = outcome.limit or (outcome.errors.strip().splitlines() or ["no message"])[-1]
        missing = re.search(r"NameError: name '(\w+)' is not defined", problem)
        if missing is None or importlib.util.find_spec(missing[1]) is None:
            return files, problem
        program = f"import {missing[1]}\n{program}"
    return {}, problem


def distinct(seeds: Mapping[str, bytes]) -> dict[str, bytes]:
    """Seeds that differ, by names that are safe as file names."""
    found: dict[str, tuple[str, bytes]] = {}
    for name, data in seeds.items():
        found.setdefault(md5(data, usedforsecurity=False).hexdigest(), (re.sub(r"\W+", "_", name) or "seed", data))
    return {f"{i:02d}_{name}": data for i, (name, data) in enumerate(found.values())}


@dataclass(frozen=True, slots=True)
class FuzzPlan:
    """What `predict` writes and `fuzz` reads."""

    program: str
    commands: tuple[FuzzCommand, ...]
    seeds: Mapping[str, bytes] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Further files in the working directory, by name."""

    def as_dict(self) -> dict[str, Any]:
        rows = [{"options": c.options, "args": c.args, "count": c.count, "problem": c.problem} for c in self.commands]
        seeds, files = ({name: data.hex() for name, data in each.items()} for each in (self.seeds, self.files))
        return {"program": self.program, "commands": rows, "seeds": seeds, "files": files}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "FuzzPlan":
        """Raises KeyError, TypeError or ValueError for other data."""
        commands = tuple(
            FuzzCommand(tuple(c["options"]), tuple(c["args"]), c["count"], c["problem"]) for c in data["commands"]
        )
        seeds, files = (
            {n: bytes.fromhex(d) for n, d in each.items()} for each in (data["seeds"], data.get("files", {}))
        )
        return cls(data["program"], commands, seeds, {own_name(n): d for n, d in files.items()})


def own_name(name: str) -> str:
    """A further file's name. Raises ValueError for one that is a path, or that a campaign itself uses."""
    if not FUZZ_PLAIN.match(name) or "/" in name or name.startswith((".", "-")) or name in RESERVED:
        raise ValueError(f"{name!r} cannot be the name of a further file: give letters, digits, dots and dashes, and "
                         f"none of {', '.join(sorted(RESERVED))}.")  # fmt: skip
    return name
