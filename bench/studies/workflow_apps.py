"""An application against one served pair, once under each drafter: wall time, tokens a second, the same texts?

    python bench/studies/workflow_apps.py --model M --draft D -- selfpico study --packages flask,black --bodies-each 10

Each run has a server of its own, started for it, so that no run finds the cache of an earlier one; server and
application share this process's cores. What follows -- is a command of `paceline-apps`; --url, --drafter, --log and
--out are added.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from paceline.apps.common.compare import compare, figures

NO_REPORT = ("text2sql",)
SERVE = "--quantize int8 --threads 1 --memory 5G --max-model-len 8192"


@contextmanager
def served(options: list[str], port: int, log: Path) -> Iterator[str]:
    """A server of its own; its address. Raises SystemExit where it does not come up."""
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-c", "import sys; from paceline.cli import main; sys.exit(main())", "serve", *options]
    with log.open("w") as out:
        server = subprocess.Popen([*command, "--port", str(port)], stdout=out, stderr=subprocess.STDOUT)
        try:
            while not up(url):
                if server.poll() is not None:
                    sys.exit(f"The server ended: {log.read_text()[-400:]}")
                time.sleep(0.2)
            yield url
        finally:
            server.terminate()
            server.wait()


def up(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/ready").is_success
    except httpx2.TransportError:
        return False


def ran(app: list[str], url: str, drafter: str, out: Path) -> tuple[Path, float, str]:
    """One run: its log of calls, its seconds, what it printed."""
    tape = out / f"{drafter}.jsonl"
    where = [] if app[0] in NO_REPORT else ["--out", str(out / drafter)]
    asked = ["--url", url, "--drafter", drafter, "--log", str(tape)]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "paceline.apps.main", *app, *asked, *where], capture_output=True, text=True
    )
    if done.returncode:
        print(f"exit {done.returncode}: {done.stderr[-600:]}", flush=True)
    return tape, time.monotonic() - began, done.stdout


def row(tape: Path, seconds: float) -> dict[str, Any]:
    """Seconds of the whole application beside the figures of its calls."""
    return {"application_seconds": round(seconds, 1), **figures(tape)[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--drafters", default="none,auto", help="in this order; the first is the base")
    parser.add_argument(
        "--serve",
        default=SERVE,
        help="further options of serve",
    )
    parser.add_argument("--port", type=int, default=8140)
    parser.add_argument("--out", type=Path, default=Path("workflow-apps"))
    parser.add_argument("app", nargs="+")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    options = [given.model, *(["--draft", given.draft] if given.draft else []), *given.serve.split()]
    tapes = []
    for number, drafter in enumerate(given.drafters.split(",")):
        with served(options, given.port + number, given.out / f"server-{drafter}.log") as url:
            tape, seconds, said = ran(given.app, url, drafter, given.out)
        tapes.append(tape)
        print(f"{drafter}: {json.dumps(row(tape, seconds))}\n{said}", flush=True)
        if number:
            both = compare(tapes[0], tape)
            print({name: both[name] for name in ("same_texts", "texts", "times_as_quick")}, flush=True)


if __name__ == "__main__":
    main()
