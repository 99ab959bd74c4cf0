"""QuantAgent on many windows of several assets: directions, intervals, equity beside always-long, coins and the rule.

    python -m bench.studies.quantagent FOLDER/*_4h.csv.gz --url URL --record FILE.jsonl [--most 800] [--report]

Each decision is a JSON line, and the same command goes on where it ended. Windows come in an order drawn by seed, so
what a run that was ended has recorded is a fair sample of all assets. The row `without the correction` is what the same
answers would have decided if the model's leaning had been left in.
"""

import argparse
import asyncio
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.studies.intervals import share
from paceline.apps.common.client import AppClient
from paceline.apps.quantagent.agents import QuantDecision, Rules, decide
from paceline.apps.quantagent.bars import read_windows
from paceline.apps.quantagent.cases import LOOKBACK, QUANT_HORIZON, QuantCase, cases
from paceline.apps.quantagent.study import results

QUANT_COST = 0.0002


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--most", type=int, default=10**6)
    parser.add_argument("--report", action="store_true", help="of what is recorded, and ask nothing")
    given = parser.parse_args()
    rows = [
        case
        for file in given.files
        for case in cases(file.name.split(".")[0], read_windows(file), None, LOOKBACK, QUANT_HORIZON)
    ]
    random.Random(0).shuffle(rows)
    kept: dict[tuple[str, str], QuantDecision] = {}
    if given.record.exists():
        for line in given.record.read_text(encoding="utf-8").splitlines():
            found = json.loads(line)
            kept[found.pop("asset"), found.pop("window")] = QuantDecision(**found)
    if not given.report:
        asyncio.run(decided(rows[: given.most], given, kept))
    report([case for case in rows if (case.asset, case.window) in kept], kept)


async def decided(rows: list[QuantCase], given: argparse.Namespace, kept: dict[tuple[str, str], QuantDecision]) -> None:
    async with AppClient(given.url, timeout_s=3600) as client:
        for case in rows:
            if (case.asset, case.window) in kept:
                continue
            made = await decide(client, case.asset, case.past, Rules())
            kept[case.asset, case.window] = made
            with given.record.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"asset": case.asset, "window": case.window, **made.row()}) + "\n")
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
    """The side that the first answer alone had: its log-odds are the evidence plus the leaning's."""
    if made.probability is None or made.leaning is None or not made.side:
        return 1 if (made.leaning or 0.0) >= 0.5 else -1
    evidence = made.side * np.log(made.probability / max(1e-9, 1 - made.probability))
    lean = np.log(max(made.leaning, 1e-9) / max(1e-9, 1 - made.leaning))
    return 1 if evidence + lean >= 0 else -1


if __name__ == "__main__":
    main()
