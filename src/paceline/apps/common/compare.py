"""Two logs of one application's runs, side by side: whether the texts agree, and how fast each ran.

`python -m paceline.apps.common.compare A B`: A is the base, say a run with --drafter none, and B the run to compare,
both made with --log.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .tape import TapeError
from .usage import Usage, share

CHAT = "/v1/chat/completions"


def calls(path: Path) -> Iterator[dict[str, Any]]:
    """The chat calls of a log. Raises TapeError."""
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if event["event"] == "call" and event["path"] == CHAT:
                yield event
    except (OSError, ValueError, KeyError) as error:
        raise TapeError(f"{path} is not a log of calls ({error}); give a file that --log wrote.") from error


def figures(path: Path) -> tuple[dict[str, Any], Counter[str]]:
    """A run's figures, and how often each text came. Seconds: from the first call's start to the end of the last."""
    usage, texts, count = Usage(), Counter[str](), 0
    first, last = float("inf"), 0.0
    for call in calls(path):
        count += 1
        usage += Usage.of(call["reply"].get("usage"))
        texts.update(choice["message"].get("content") or "" for choice in call["reply"]["choices"])
        first, last = min(first, call["at"] - call["seconds"]), max(last, call["at"])
    if not count:
        raise TapeError(f"{path} holds no chat call; give a log of a run that asked a server.")
    seconds = last - first
    row = {
        "calls": count,
        "seconds": round(seconds, 2),
        "generated_tokens": usage.generated,
        "tokens_per_second": round(usage.generated / seconds, 2) if seconds else None,
        "cached_share": share(usage.cached, usage.prompt),
        "drafted_tokens": usage.drafted,
        "accepted_share": share(usage.accepted, usage.drafted),
        "tokens_per_pass": share(usage.generated, usage.passes),
    }
    return row, texts


def compare(base: Path, other: Path) -> dict[str, Any]:
    """Both runs' figures, how many texts they share, and the ratio of their tokens per second."""
    (a, ours), (b, theirs) = figures(base), figures(other)
    quick, slow = b["tokens_per_second"], a["tokens_per_second"]
    return {
        "base": a,
        "other": b,
        "same_texts": (ours & theirs).total(),
        "texts": max(ours.total(), theirs.total()),
        "times_as_quick": round(quick / slow, 3) if quick and slow else None,
    }


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("Give two logs: python -m paceline.apps.common.compare BASE OTHER")
    try:
        found = compare(Path(sys.argv[1]), Path(sys.argv[2]))
    except TapeError as error:
        sys.exit(f"Error: {error}")
    print(json.dumps(found, indent=2))
    sys.exit(int(found["same_texts"] != found["texts"]))


if __name__ == "__main__":
    main()
