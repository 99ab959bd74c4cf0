"""Many fragments under several predictors: the share of lines that run, and the type errors that are found."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from .cut import Fragment
from .fragment import PicoRunner, Ran
from .predict import Predictor


@dataclass(slots=True)
class Study:
    """Results by predictor, in the order of the fragments."""

    fragments: Sequence[Fragment]
    ran: dict[str, list[Ran]] = field(default_factory=dict)
    calls: bool = False
    """Whether functions that nobody calls are called."""

    async def run(self, predictor: Predictor, rounds: int, width: int, step: Callable[[], None]) -> None:
        """Run all fragments under one predictor, `width` at a time."""
        slots = asyncio.Semaphore(width)
        runner = PicoRunner(predictor, rounds, calls=self.calls)

        async def one(fragment: Fragment) -> Ran:
            async with slots:
                ran = await runner.run(fragment.name, fragment.source)
            step()
            return ran

        self.ran[predictor.name] = list(await asyncio.gather(*(one(f) for f in self.fragments)))

    def rows(self) -> list[dict[str, Any]]:
        """A row per predictor and group: the mean share of lines per fragment, the share of all lines, fragments run to
        their end; then, where there are several groups, a row for all of them."""
        groups = list(dict.fromkeys(f.group for f in self.fragments))
        return [
            {"predictor": name, "group": group, **self.row(ran, None if group == "all" else group)}
            for name, ran in self.ran.items()
            for group in (groups if len(groups) == 1 else [*groups, "all"])
        ]

    def row(self, ran: Sequence[Ran], group: str | None) -> dict[str, Any]:
        """The figures of one group, or of all."""
        pairs = [(f, r) for f, r in zip(self.fragments, ran) if group in (None, f.group)]
        return {**coverage([r for _, r in pairs]), **self.found(pairs)}

    def found(self, pairs: Sequence[tuple[Fragment, Ran]]) -> dict[str, Any]:
        """Counts of the seeded type errors: found at their line; type errors reported elsewhere; and how many findings
        that are called sure are at a seeded line. Fragments without a mark are taken to hold no error."""
        sure = [(f, found) for f, r in pairs for found in r.findings if found.sure]
        right = sum(found.line == f.seeded for f, found in sure)
        judged = {"sure": len(sure), "sure_right": right, "precision": round(right / len(sure), 4) if sure else None}
        marked = [(f.seeded, r) for f, r in pairs if f.seeded is not None]
        if not marked:
            return {"seeded": None, "seeded_found": None, "seeded_sure": None, "with_others": None, **judged}
        hits = sum(any(found.error == "TypeError" and found.line == line for found in r.findings) for line, r in marked)
        certain = sum(any(found.sure and found.line == line for found in r.findings) for line, r in marked)
        other = sum(
            any(found.error == "TypeError" and found.line != line for found in r.findings) for line, r in marked
        )
        return {"seeded": len(marked), "seeded_found": hits, "seeded_sure": certain, "with_others": other, **judged}


def coverage(ran: Sequence[Ran]) -> dict[str, Any]:
    lines = sum(len(r.lines) for r in ran)
    return {
        "fragments": len(ran),
        "mean_share": round(mean(r.share for r in ran), 4) if ran else None,
        "of_all_lines": round(sum(len(r.ran) for r in ran) / lines, 4) if lines else None,
        "to_the_end": sum(r.end is None and r.stopped is None and not r.problem for r in ran),
        "stopped": sum(r.stopped is not None for r in ran),
        "values": sum(len(r.puts) for r in ran),
    }
