"""QuantAgent on many windows of several assets: directions, intervals, equity beside always-long, coins and the rule.

    python -m bench.studies.quantagent FOLDER/*_4h.csv.gz --url URL --record FILE.jsonl [--most 800] [--report]

Each decision is a JSON line, and the same command goes on where it ended; another model, and other bars of an asset,
are refused there. Windows come in an order drawn by seed, so what a run that was ended has recorded is a fair sample of
all assets. The row `without the correction` is what the same answers would have decided if the model's leaning had been
left in.
"""

import argparse
import asyncio
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.studies.intervals import share
from bench.studies.judged import Record, digest
from bench.studies.served import add_served, served
from paceline.apps.common.client import AppClient
from paceline.apps.quantagent.agents import QuantDecision, Rules, decide
from paceline.apps.quantagent.bars import read_windows
from paceline.apps.quantagent.cases import LOOKBACK, QUANT_HORIZON, QuantCase, cases
from paceline.apps.quantagent.study import results

QUANT_COST = 0.0002


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--most", type=int, default=10**6)
    parser.add_argument("--report", action="store_true", help="of what is recorded, and ask nothing")
    add_served(parser)
    given = parser.parse_args(words)
    assets = {file: file.name.split(".")[0] for file in given.files}
    if (twice := Counter(assets.values()).most_common(1)[0])[1] > 1:
        parser.error(f"asset {twice[0]} has two files; give one, or rename one")
    rows = list[QuantCase]()
    for file, asset in assets.items():
        rows += cases(asset, read_windows(file), None, LOOKBACK, QUANT_HORIZON)
    random.Random(0).shuffle(rows)
    settings = {"horizon": [LOOKBACK, QUANT_HORIZON], **{f"bars {assets[file]}": digest(file) for file in assets}}
    if not given.report:
        asyncio.run(decided(rows[: given.most], given, settings))
    record = Record(given.record, settings)
    kept = dict[tuple[str, str], QuantDecision]()
    for each in record.all:
        facts = {name: value for name, value in each.items() if name not in ("row", "id")}
        kept[each["row"], each["id"]] = QuantDecision(**facts)
    report([case for case in rows if (case.asset, case.window) in kept], kept)


async def decided(rows: list[QuantCase], given: argparse.Namespace, settings: dict[str, Any]) -> None:
    async with AppClient(given.url, timeout_s=3600) as client:
        record = Record(given.record, {**settings, **await served(client, given)})
        for case in rows:
            if (case.asset, case.window) not in record.known:
                made = await decide(client, case.asset, case.past, Rules())
                record.add(case.asset, case.window, **made.row())
        print(client.tally.as_dict(), file=sys.stderr)


def report(rows: list[QuantCase], kept: dict[tuple[str, str], QuantDecision]) -> None:
    made = [kept[case.asset, case.window] for case in rows]
    if not rows:
        print("nothing is recorded yet")
        return
    found = results(rows, made, QUANT_COST, 0)
    assets = sorted({case.asset for case in rows})
    for each in found["scores"]:
        if each["asset"] == "all" or len(assets) == 1:
            print(f"{each['name']:18} {share(each['hits'], each['count'])}; mean return {each['gain']:+.3f} % a trade")
    for name, gains in found["gains"].items():
        print(f"{name:18} equity at the end {100 * float(np.sum(gains)):+.2f} % over {len(gains)} windows")
    left = [replace(each, side=leaned(each)) for each in made]
    plain = results(rows, left, QUANT_COST, 0)["scores"]
    shown: list[dict[str, Any]] = [e for e in plain if e["name"] == "QuantAgent" and e["asset"] in ("all", *assets[:1])]
    print(f"without the correction: {share(shown[-1]['hits'], shown[-1]['count'])}; "
          f"LONG in {np.mean([each.side == 1 for each in left]):.3f} of {len(left)}")  # fmt: skip
    print(f"LONG in {found['long_share']:.3f}, no trade in {found['no_trade']}, leaning to LONG {found['leaning']}")


def leaned(made: QuantDecision) -> int:
    """The side that the first answer alone had: its log-odds are the evidence plus the leaning's. Where no leaning is
    known, nothing was taken out, and the side stays."""
    if made.leaning is None:
        return made.side
    if made.probability is None or not made.side:
        return 1 if made.leaning >= 0.5 else -1
    evidence = made.side * np.log(made.probability / max(1e-9, 1 - made.probability))
    lean = np.log(max(made.leaning, 1e-9) / max(1e-9, 1 - made.leaning))
    return 1 if evidence + lean >= 0 else -1


if __name__ == "__main__":
    main()
