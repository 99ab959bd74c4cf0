"""From drafts to items: templates in turn, truth by running."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...common.dag import gather
from ...common.sandbox import run
from ..execute import job
from ..extract import trimmed
from ..items import SURGE_KINDS, SurgeItem, question
from ..scorers import verdict
from ..toolchains import Language, found
from .dialects import dialects
from .draft import Draft, Template
from .faults import SURGE_FAULTS
from .proofs import SURGE_PROOFS_CHECK, formal
from .repositories import REPOSITORIES
from .science import SCIENCE, SURGE_LONG
from .small import COMPETITION, SURGE_MANY

SURGE_LONGEST = 1500
"""Characters of the longest truth that is kept."""


@dataclass(frozen=True)
class Refused:
    """A draft that makes no item, and why."""

    kind: str
    number: int
    why: str


def templates(kind: str) -> list[Template]:
    """The templates of a kind whose languages are here, in turn over the languages."""
    rows: dict[str, Sequence[tuple[Language, Template]]] = {
        "ML": SURGE_MANY,
        "CL": COMPETITION,
        "RL": REPOSITORIES,
        "SC": SCIENCE,
        "TC": SURGE_LONG,
        "BG": SURGE_FAULTS,
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


async def checked(kind: str, number: int, draft: Draft) -> SurgeItem | Refused:
    """The item of a draft, its truth from two runs that must agree."""
    outcomes = [await run(job(draft.files, draft.command)) for _ in range(2)]
    stopped = next((outcome for outcome in outcomes if outcome.status == "stopped"), None)
    if stopped is not None:
        return Refused(kind, number, f"was stopped by the limit on {stopped.limit}")
    truth, again = (trimmed(outcome.text) for outcome in outcomes)
    if truth != again:
        return Refused(kind, number, "prints something else each time")
    if not truth or len(truth) > SURGE_LONGEST:
        return Refused(kind, number, f"prints {len(truth)} characters; 1 to {SURGE_LONGEST} are wanted")
    if draft.rule == "errors" and verdict(truth) is None:
        return Refused(kind, number, f"its checker failed: {truth.splitlines()[-1]}")
    return SurgeItem(
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
    return {name: text for name, text in draft.files.items() if name != SURGE_PROOFS_CHECK and text}


def command_of(draft: Draft) -> str:
    if draft.rule != "errors":
        return draft.command
    return "mypy --strict program.py" if draft.features["checker"] == "mypy" else "python3 -m ast program.py"


async def generate(
    kinds: Sequence[str], count: int, seed: int, width: int = 2, step: Callable[[], None] = lambda: None
) -> tuple[list[SurgeItem], list[Refused]]:
    """`count` items of each kind, and the drafts that made none. `step` is called after each."""
    unknown = [kind for kind in kinds if kind not in SURGE_KINDS]
    if unknown:
        raise ValueError(f"There is no kind {unknown[0]}; there are {', '.join(SURGE_KINDS)}.")
    todo = [(kind, i, draft) for kind in kinds for i, draft in enumerate(drafts(kind, count, seed))]

    async def one(row: tuple[str, int, Draft]) -> SurgeItem | Refused:
        made = await checked(*row)
        step()
        return made

    made = await gather(one, todo, width)
    lacking = [Refused(kind, 0, "has no language that this machine can run") for kind in kinds if not templates(kind)]
    items = [item for item in made if isinstance(item, SurgeItem)]
    return items, [*lacking, *(item for item in made if isinstance(item, Refused))]
