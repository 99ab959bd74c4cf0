"""SelfPiCo: lines that run, by predictor, with 95 % intervals over fragments.

    python bench/studies/selfpico.py [--packages flask,black] [--folder SNIPPETS] [--model URL] [--rounds 8] [--most N]

Rows: nothing, an unknown object for everything, and the search with the table of types, with its words in one order
(without the model), and with the model (`--model`: a server). Each fragment's share of lines counts equally; `of all
lines` weighs by length, as the paper does. Differences are fragment by fragment. Bodies are cut from installed packages
by seed; `--folder` takes every .py file of a folder, and those that are not Python 3 count as 0 lines run.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path

from bench.studies.intervals import paired, shown
from paceline.apps.common.client import AppClient
from paceline.apps.selfpico.command import PICO_ALONE, PICO_OBJECT, PREDICTORS, predictor
from paceline.apps.selfpico.cut import Fragment, bodies
from paceline.apps.selfpico.fragment import Ran
from paceline.apps.selfpico.predict import PicoModel
from paceline.apps.selfpico.study import Study, coverage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", default="")
    parser.add_argument("--each", type=int, default=50)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--most", type=int, default=10**6)
    parser.add_argument("--model", default="", help="address of a server")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--rows", default=f"nothing,{PICO_OBJECT},table,{PICO_ALONE}")
    given = parser.parse_args()
    rows = [name for name in given.rows.split(",") if name]
    if unknown := set(rows) - set(PREDICTORS) | ({"selfpico"} & set(rows)):
        parser.error(f"there is no row {min(unknown)}; --model adds the model's")
    fragments = [f for name in given.packages.split(",") if name for f in bodies(name, given.each)]
    if given.folder:
        fragments += [Fragment(p.name, p.read_text(encoding="utf-8")) for p in sorted(given.folder.rglob("*.py"))]
    if not fragments or not (rows or given.model):
        parser.error("there is nothing to run; give --packages or --folder, and --rows or --model")
    study = Study(fragments[: given.most])
    asyncio.run(run(study, given, rows))
    report(study.ran)


async def run(study: Study, given: argparse.Namespace, rows: list[str]) -> None:
    for name in rows:
        began = time.monotonic()
        await study.run(predictor(name), given.rounds, given.width, lambda: None)
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if given.model:
        async with AppClient(given.model, timeout_s=600) as client:
            await study.run(PicoModel(client), given.rounds, given.width, lambda: None)
            print(client.tally.as_dict(), file=sys.stderr)


def report(ran: dict[str, list[Ran]]) -> None:
    first = next(iter(ran.values()))
    good = [n for n, r in enumerate(first) if r.lines]
    print(f"{len(first)} fragments, {len(good)} of them Python 3")
    for name, found in ran.items():
        kept = [found[n] for n in good]
        figures = coverage(kept)
        runs = sum(r.runs for r in kept) / len(kept)
        print(
            f"{name:18} mean share {shown([r.share for r in kept])}; of all lines {figures['of_all_lines']:.3f}; "
            f"{figures['to_the_end']} to the end; {runs:.1f} runs each; "
            f"all fragments {sum(r.share for r in found) / len(found):.3f}",
            flush=True,
        )
    for name, found in ran.items():
        for other, theirs in ran.items():
            if list(ran).index(other) < list(ran).index(name) and other != "nothing":
                print(f"{name} - {other}: {paired([found[n].share for n in good], [theirs[n].share for n in good])}")


if __name__ == "__main__":
    main()
