"""SelfPiCo: lines that run, by predictor, with 95 % intervals over fragments.

    python -m bench.studies.selfpico [--packages flask,black] [--folder SNIPPETS [--each-folder 20]] [--model URL]
        [--rounds 8] [--most N] [--record FILE.jsonl]

Rows: nothing, an unknown object for everything, and the search with the table of types, with its words in one order
(without the model), and with the model (`--model`: a server); a row that ends in `+call` also calls the functions that
nobody calls. Each fragment's share of lines counts equally; `of all lines` weighs by length, as the paper does.
Differences are fragment by fragment. Bodies are cut from installed packages by seed; `--folder` takes every .py file of
a folder, or so many of each folder in it, and those that are not Python 3 count as 0 lines run. Fragments come in an
order drawn by seed, so what a run that was ended has recorded is a fair sample. With `--record` each result is a JSON
line, by the fragment's text, and the same command goes on where it ended; another model or number of rounds is refused
there. `--report` reads the file alone.
"""

import argparse
import asyncio
import hashlib
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.studies.intervals import paired, shown
from bench.studies.judged import Record
from bench.studies.served import add_served, served
from paceline.apps.common.client import AppClient, Nobody
from paceline.apps.selfpico.command import PICO_ALONE, PICO_OBJECT, PREDICTORS, predictor
from paceline.apps.selfpico.cut import Fragment, bodies
from paceline.apps.selfpico.fragment import PicoRunner
from paceline.apps.selfpico.predict import PicoModel

CALLED_ROW = "+call"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", default="")
    parser.add_argument("--each", type=int, default=50)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--each-folder", type=int, default=0)
    parser.add_argument("--most", type=int, default=10**6)
    parser.add_argument("--model", default="", help="address of a server")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--width", type=int, default=1)
    parser.add_argument("--rows", default=f"nothing,{PICO_OBJECT},table,{PICO_ALONE}")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--report", action="store_true")
    add_served(parser)
    given = parser.parse_args(words)
    rows = [name for name in given.rows.split(",") if name]
    if unknown := {row.removesuffix(CALLED_ROW) for row in rows} - set(PREDICTORS) | ({"selfpico"} & set(rows)):
        parser.error(f"there is no row {min(unknown)}; --model adds the model's")
    if given.report:
        report(Record(given.record))
        return
    fragments = [f for name in given.packages.split(",") if name for f in bodies(name, given.each)]
    if given.folder:
        fragments += of_folder(given.folder, given.each_folder)
    if not fragments or not (rows or given.model):
        parser.error("there is nothing to run; give --packages or --folder, and --rows or --model")
    random.Random(0).shuffle(fragments)
    report(asyncio.run(run(fragments[: given.most], given, rows)))


def of_folder(folder: Path, each: int) -> list[Fragment]:
    """Every Python file, or `each` of each folder."""
    paths = sorted(folder.rglob("*.py"))
    if each:
        groups: dict[Path, list[Path]] = {}
        for path in paths:
            groups.setdefault(path.parent, []).append(path)
        paths = [p for group in groups.values() for p in random.Random(0).sample(group, min(each, len(group)))]
    return [Fragment(str(p.relative_to(folder)), p.read_text(encoding="utf-8")) for p in paths]


def named(fragment: Fragment) -> str:
    """A fragment by its name and its text, which another version of a package may change."""
    return f"{fragment.name} {hashlib.sha256(fragment.source.encode()).hexdigest()[:16]}"


async def run(fragments: list[Fragment], given: argparse.Namespace, rows: list[str]) -> Record:
    slots = asyncio.Semaphore(given.width)
    runners = {
        row: PicoRunner(predictor(row.removesuffix(CALLED_ROW)), given.rounds, calls=row.endswith(CALLED_ROW))
        for row in rows
    }
    async with AppClient(given.model, timeout_s=600) if given.model else Nobody() as client:
        settings: dict[str, Any] = {"rounds": given.rounds}
        if given.model:
            runners["selfpico"] = PicoRunner(PicoModel(client), given.rounds)
            settings |= await served(client, given)
        record = Record(given.record, settings)

        async def one(fragment: Fragment) -> None:
            async with slots:
                for row, runner in runners.items():
                    if (row, named(fragment)) in record.known:
                        continue
                    ran = await runner.run(fragment.name, fragment.source)
                    record.add(row, named(fragment), lines=len(ran.lines), ran=len(ran.ran), end=ran.end,
                               stopped=ran.stopped, problem=ran.problem, runs=ran.runs,
                               sure=sum(f.sure for f in ran.findings))  # fmt: skip

        await asyncio.gather(*map(one, fragments))
        if given.model:
            print(client.tally.as_dict(), file=sys.stderr)
    return record


def report(record: Record) -> None:
    """Figures of the fragments that every row has."""
    kept = {(each["row"], each["id"]): each for each in record.all}
    rows = list(dict.fromkeys(row for row, _ in kept))
    names = [name for name in dict.fromkeys(name for _, name in kept) if all((row, name) in kept for row in rows)]
    good = [name for name in names if kept[rows[0], name]["lines"]]
    print(f"{len(names)} fragments, {len(good)} of them Python 3")
    if not good:
        said = ", ".join(f"{row} {len(record.row(row))}" for row in rows) or "none"
        print(f"nothing to compare; fragments of each row: {said}")
        return
    shares = {row: [kept[row, n]["ran"] / kept[row, n]["lines"] for n in good] for row in rows}
    for row in rows:
        found = [kept[row, name] for name in good]
        lines, ran = sum(each["lines"] for each in found), sum(each["ran"] for each in found)
        ends = sum(each["end"] is None and each["stopped"] is None and not each["problem"] for each in found)
        print(
            f"{row:22} mean share {shown(shares[row])}; of all lines {ran / lines:.3f} of {lines}; {ends} to the end; "
            f"{sum(each['runs'] for each in found) / len(found):.1f} runs each; all fragments "
            f"{sum(shares[row]) / len(names):.3f}",
            flush=True,
        )
    for at, row in enumerate(rows):
        for other in rows[:at]:
            if other != "nothing":
                print(f"{row} - {other}: {paired(shares[row], shares[other])}")


if __name__ == "__main__":
    main()
