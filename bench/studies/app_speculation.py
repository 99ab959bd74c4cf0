"""What speculation brings to an application: the requests of one run, answered with drafts and without, in turns.

    python -m bench.studies.app_speculation record REQUESTS.jsonl -- tsci forecast sales.csv --url URL
    python -m bench.studies.app_speculation replay REQUESTS.jsonl [...] --url URL [--turns 6] [--at-once 8]
        [--record FILE.jsonl]

`record` runs `paceline-apps` with the arguments behind `--` and writes the body of each request. `replay` sends all of
them, so many at once, first with one mode and then with the other, the order of the two drawn anew for each turn; each
pass has a `cache_salt` of its own, so that none finds what another, or an earlier run, left in the prefix cache. The
figure of a turn is tokens a second over those of plain decoding; a load that changes slower than a turn takes meets
both. With `--record` the turns are JSON lines, by what is in their file of requests, and the same command goes on where
it ended; a server of other models, or another `--at-once`, is refused there.
"""

import argparse
import asyncio
import hashlib
import json
import random
import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from bench.studies.intervals import shown
from bench.studies.judged import Record
from bench.studies.served import add_served, served
from paceline.apps.common.client import AppClient
from paceline.apps.common.usage import Usage

CHAT_PATH = "/v1/chat/completions"
MODES = ("none", "auto")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "replay"))
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--record", type=Path)
    add_served(parser)
    own, rest = sys.argv[1:], list[str]()
    if "--" in own:
        own, rest = own[: own.index("--")], own[own.index("--") + 1 :]
    given = parser.parse_args(own)
    if given.what == "record":
        listen(given.files[0], rest)
    else:
        asyncio.run(replay(given))


def listen(path: Path, command: list[str]) -> None:
    """Run the command and write what it asks."""
    from paceline.apps.main import main as apps

    asked = AppClient._ask

    async def written(client: AppClient, method: str, where: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if where == CHAT_PATH:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(body) + "\n")
        return await asked(client, method, where, body)

    AppClient._ask = written  # type: ignore[method-assign]
    sys.argv = ["paceline-apps", *command]
    apps()


async def replay(given: argparse.Namespace) -> None:
    async with AppClient(given.url) as client:
        record = Record(given.record, {"at once": given.at_once, **await served(client, given)})
    for path in dict.fromkeys(given.files):
        bodies, name = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()], named(path)
        for turn in range(given.turns):
            if (name, str(turn)) in record.known:
                continue
            order = list(MODES)
            random.Random(turn).shuffle(order)
            row, texts = dict[str, Any](), dict[str, list[str]]()
            for mode in order:
                row[mode], texts[mode] = await passed(given.url, bodies, mode, secrets.token_hex(8), given.at_once)
            same = sum(a == b for a, b in zip(texts["none"], texts["auto"]))
            record.add(name, str(turn), requests=str(path), calls=len(bodies), same=same, **row)
            print(f"{path} turn {turn}: {ratio(row):.3f}", file=sys.stderr, flush=True)
        turns = list(record.row(name).values())
        if not turns:
            continue
        said = turns[0]["auto"]
        print(
            f"{path}: {shown([ratio(row) for row in turns])} of plain in {len(turns)} turns; {len(bodies)} calls, "
            f"{said['prompt']} prompt tokens, {said['generated']} generated; {said['accepted']} of {said['drafted']} "
            f"drafted kept; same texts in {sum(row['same'] for row in turns)} of {len(bodies) * len(turns)}",
            flush=True,
        )


def named(path: Path) -> str:
    """A file of requests by what is in it: two folders may hold different ones of one name."""
    return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"


def ratio(row: Mapping[str, Any]) -> float:
    """Tokens a second with drafts over those without."""
    ours, plain = row["auto"], row["none"]
    return float(ours["generated"] / ours["seconds"] / (plain["generated"] / plain["seconds"]))


async def passed(
    url: str, bodies: list[dict[str, Any]], mode: str, salt: str, at_once: int
) -> tuple[dict[str, Any], list[str]]:
    """All requests once: figures, and the texts."""
    slots, usage, texts = asyncio.Semaphore(at_once), list[Usage](), [""] * len(bodies)
    async with httpx2.AsyncClient(base_url=url, timeout=3600) as http:

        async def one(number: int, body: dict[str, Any]) -> None:
            async with slots:
                more = {"speculation": {"drafter": mode}, "cache_salt": salt}
                answer = (await http.post(CHAT_PATH, json={**body, **more})).json()
            if "choices" not in answer:
                sys.exit(f"request {number} was refused: {answer}")
            usage.append(Usage.of(answer["usage"]))
            texts[number] = json.dumps([choice["message"].get("content") for choice in answer["choices"]])

        began = time.monotonic()
        await asyncio.gather(*(one(number, body) for number, body in enumerate(bodies)))
        seconds = time.monotonic() - began
    whole = sum(usage, Usage())
    made = {"seconds": round(seconds, 3), "prompt": whole.prompt, "cached": whole.cached, "passes": whole.passes,
            "generated": whole.generated, "drafted": whole.drafted, "accepted": whole.accepted}  # fmt: skip
    return made, texts


if __name__ == "__main__":
    main()
