"""From drafts to items: templates in turn, truth by running."""

import random
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...common.dag import gather
from ...common.sandbox import Job, Limits, Outcome, run
from ..extract import trimmed
from ..items import KINDS, Item, question
from ..toolchains import Language, found
from .dialects import dialects
from .draft import Draft, Template
from .faults import FAULTS
from .proofs import CHECK, formal
from .repositories import REPOSITORIES
from .science import LONG, SCIENCE
from .small import COMPETITION, MANY

LONGEST = 1500
"""Characters of the longest truth that is kept."""
LIMITS = Limits(wall_s=60, cpu_s=40, memory_mb=1536, address_mb=None, processes=96, disk_mb=128)
"""Compilers and virtual machines need address space and threads; each program itself needs little."""


@dataclass(frozen=True)
class Refused:
    """A draft that makes no item, and why."""

    kind: str
    number: int
    why: str


def templates(kind: str) -> list[Template]:
    """The templates of a kind whose languages are here, in turn over the languages."""
    rows: dict[str, Sequence[tuple[Language, Template]]] = {
        "ML": MANY,
        "CL": COMPETITION,
        "RL": REPOSITORIES,
        "SC": SCIENCE,
        "TC": LONG,
        "BG": FAULTS,
        "DR": dialects(),
        "FL": formal(),
    }
    here = [(language, template) for language, template in rows[kind] if language.present]
    if kind == "RL" and not found("make"):
        here = [row for row in here if row[0].name == "Python"]
    queues: dict[str, list[Template]] = {}
    for language, template in here:
        queues.setdefault(language.name, []).append(template)
    turns = max((len(queue) for queue in queues.values()), default=0)
    return [queue[turn] for turn in range(turns) for queue in queues.values() if turn < len(queue)]


def drafts(kind: str, count: int, seed: int) -> list[Draft]:
    """`count` drafts of a kind, templates in turn; each from a seed of its own, so that counts do not matter."""
    makers = templates(kind)
    return [makers[i % len(makers)](random.Random(f"{seed} {kind} {i}")) for i in range(count)] if makers else []


@cache
def rust() -> tuple[str, tuple[Path, ...]]:
    """Where the real rustc is (a shim on the path may need its home), and what the box must show of it."""
    if not found("rustc"):
        return "rustc", ()
    home = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True).stdout.strip()
    return (f"{home}/bin/rustc", (Path(home),)) if home and (Path(home) / "bin/rustc").is_file() else ("rustc", ())


def job(files: "dict[str, str]", command: str) -> Job:
    """A shell line over files, in the box; both streams together."""
    compiler, read = rust()
    line = command.replace("rustc ", f"{compiler} ") if "rustc " in command else command
    shown = read if "rustc " in command else ()
    return Job(("sh", "-c", f"({line}) 2>&1"), dict(files), read=shown, limits=LIMITS, watch=False)


def said(outcome: Outcome) -> str:
    return trimmed(outcome.text)


async def checked(kind: str, number: int, draft: Draft) -> Item | Refused:
    """The item of a draft, its truth from two runs that must agree."""
    outcomes = [await run(job(dict(draft.files), draft.command)) for _ in range(2)]
    stopped = next((outcome for outcome in outcomes if outcome.status == "stopped"), None)
    if stopped is not None:
        return Refused(kind, number, f"was stopped by the limit on {stopped.limit}")
    truth, again = (said(outcome) for outcome in outcomes)
    if truth != again:
        return Refused(kind, number, "prints something else each time")
    if not truth or len(truth) > LONGEST:
        return Refused(kind, number, f"prints {len(truth)} characters; 1 to {LONGEST} are wanted")
    return Item(
        f"{kind}-{number:03}",
        kind,
        draft.language,
        question(shown(draft), command_of(draft)),
        truth,
        draft.rule,
        draft.files,
        draft.command,
        draft.features,
    )


def shown(draft: Draft) -> dict[str, str]:
    """The files that a model sees: not the checker of formal items, which only prints the verdict."""
    return {name: text for name, text in draft.files.items() if name != CHECK and text}


def command_of(draft: Draft) -> str:
    if draft.rule != "errors":
        return draft.command
    return "mypy --strict program.py" if draft.features["checker"] == "mypy" else "python3 -m ast program.py"


async def generate(
    kinds: Sequence[str], count: int, seed: int, width: int = 2, step: Callable[[], None] = lambda: None
) -> tuple[list[Item], list[Refused]]:
    """`count` items of each kind, and the drafts that made none. `step` is called after each."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise ValueError(f"There is no kind {unknown[0]}; there are {', '.join(KINDS)}.")
    todo = [(kind, i, draft) for kind in kinds for i, draft in enumerate(drafts(kind, count, seed))]

    async def one(row: tuple[str, int, Draft]) -> Item | Refused:
        made = await checked(*row)
        step()
        return made

    made = await gather(one, todo, width)
    lacking = [Refused(kind, 0, "has no language that this machine can run") for kind in kinds if not templates(kind)]
    items = [item for item in made if isinstance(item, Item)]
    return items, [*lacking, *(item for item in made if isinstance(item, Refused))]
