"""Relations of options in 20 manual pages labelled by hand: precision and recall, and what random combinations break.

    python bench/studies/manuals.py [--model URL] [--samples 2] [--votes 1] [--pages cut,ls]

Rows: set phrases alone (no model), the model alone (its samples, and those that its votes keep), both as `predict` has
them. A relation counts as right if the labels have it between the same options, whether all or any of them are needed.
The labels are of Debian 12; the set phrases were written with these pages in sight. Intervals are Wilson's, 95 %.
"""

import argparse
import asyncio
import json
from collections.abc import Collection, Sequence
from pathlib import Path

from bench.studies.intervals import share
from paceline.apps.common.client import AppClient
from paceline.apps.prophetfuzz.combine import at_random
from paceline.apps.prophetfuzz.constraints import Constraints, Relation, extract
from paceline.apps.prophetfuzz.manual import Manual, find_page, read_page
from paceline.apps.prophetfuzz.phrases import stated

MANUAL_LABELS = Path(__file__).parent / "labels" / "manuals.json"
DRAWN = 20
Plain = tuple[bool, tuple[str, ...]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="address of a server")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--votes", type=int, default=1)
    parser.add_argument("--pages", default="")
    given = parser.parse_args()
    labels = json.loads(MANUAL_LABELS.read_text(encoding="utf-8"))
    names = [name for name in labels if name != "about" and (not given.pages or name in given.pages.split(","))]
    pages = [read_page(find_page(name)) for name in names]
    truth = [labelled(page, labels[name]) for name, page in zip(names, pages, strict=True)]
    phrases = [stated(page) for page in pages]
    print(f"{len(pages)} pages, {sum(len(page.options) for page in pages)} options, {sum(map(len, truth))} relations")
    shown("set phrases", truth, phrases)
    combinations(pages, truth, phrases)
    if given.model:
        kept, said = asyncio.run(asked(given.model, pages, given.samples, given.votes))
        shown("model, sampled", truth, said)
        shown("model, voted", truth, kept)
        shown("phrases and model", truth, [(*a, *b) for a, b in zip(phrases, kept, strict=True)])


def labelled(page: Manual, of: dict[str, list[list[str]]]) -> list[Relation]:
    """Labels by keys of options. Raises KeyError for an option that the page has not."""

    def keys(names: Sequence[str]) -> list[str]:
        found = [page.option(name) for name in names]
        if None in found:
            raise KeyError(f"{page.program} has no option {names[found.index(None)]}")
        return [option.key for option in found if option is not None]

    against = [Relation("conflict", tuple(sorted(keys(pair)))) for pair in of["conflicts"]]
    return against + [Relation("any", (key, *sorted(rest))) for key, *rest in map(keys, of["needs"])]


def plain(relations: Collection[Relation]) -> set[Plain]:
    return {(r.kind == "conflict", r.of) for r in relations}


def shown(row: str, truth: Sequence[Collection[Relation]], found: Sequence[Collection[Relation]]) -> None:
    pairs = [(plain(a), plain(b)) for a, b in zip(truth, found, strict=True)]
    right = sum(len(a & b) for a, b in pairs)
    precision, recall = share(right, sum(len(b) for _, b in pairs)), share(right, sum(len(a) for a, _ in pairs))
    print(f"{row:<18} precision {precision}  recall {recall}", flush=True)


def combinations(
    pages: Sequence[Manual], truth: Sequence[Sequence[Relation]], phrases: Sequence[Sequence[Relation]]
) -> None:
    """How many random combinations of options break a label, as drawn and without those that the phrases forbid."""
    drawn = [(page, [r.options for r in at_random(page, DRAWN, 0)]) for page in pages if len(page.options) > 3]
    rules = {page.program: (Constraints(tuple(a)), Constraints(tuple(b))) for page, a, b in zip(pages, truth, phrases)}
    every = [(rules[page.program], options) for page, many in drawn for options in many]
    broken = sum(right.broken(options) is not None for (right, _), options in every)
    fixed = [(right, each) for (right, said), options in every for each in said.repaired(options)[:1]]
    print(f"random combinations that break a label: {share(broken, len(every))}")
    print(
        f"the same, repaired or dropped by set phrases: {share(sum(bool(a.broken(b)) for a, b in fixed), len(fixed))}"
    )


async def asked(
    url: str, pages: Sequence[Manual], samples: int, votes: int
) -> tuple[list[tuple[Relation, ...]], list[tuple[Relation, ...]]]:
    """Relations that the model's votes keep, and all that it proposed."""
    kept, said = [], []
    async with AppClient(url) as client:
        for page in pages:
            got = await extract(client, page, samples, votes, None)
            kept.append(got.relations)
            said.append(tuple(got.votes))
            print(f"  {page.program}: {len(got.votes)} proposed, {len(got.relations)} kept", flush=True)
    return kept, said


if __name__ == "__main__":
    main()
