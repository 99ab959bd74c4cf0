"""Kills writers of a K/V directory in the midst of their work: `python -m tests.engine.disk_kill DIR COUNT`. Without
torch, so that forks are quick. Prints what it found as JSON."""

import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from paceline.engine import block_files
from paceline.engine.block_files import PARTIAL_SUFFIX, BlockFiles

FORMS = {"target": "form"}


def block(number: int) -> tuple[bytes, dict[str, tuple[str, bytes]]]:
    """The block of this number: its content follows from its name."""
    name = hashlib.sha256(b"%d" % number).digest()[:16]
    return name, {"target": ("form", random.Random(number).randbytes(40_000))}


def write(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    files = BlockFiles(path, 2_000_000)
    while True:
        files.write([block(rng.randrange(120)) for _ in range(rng.randint(1, 4))])


def main(path: Path, count: int) -> dict[str, int]:
    block_files.DISK_FREE_BYTES = 0
    rng, cut = random.Random(0), 0
    for seed in range(count):
        child = os.fork()
        if child == 0:
            write(path, seed)
        time.sleep(rng.uniform(0.001, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        cut += any(True for _ in path.rglob(f".*{PARTIAL_SUFFIX}"))
    files = BlockFiles(path, 2_000_000)
    wrong = right = 0
    for number in range(120):
        name, parts = block(number)
        found = files.read(name, FORMS) if files.has(name) else None
        if found is not None:
            right += found == {"target": parts["target"][1]}
            wrong += found != {"target": parts["target"][1]}
    size = sum(file.stat().st_size for file in files.blocks.iterdir())
    left = sum(1 for _ in path.rglob(f".*{PARTIAL_SUFFIX}"))
    return {"wrong": wrong, "right": right, "damaged": files.damaged, "size": size, "left": left, "cut": cut,
            "known": files.total_bytes}  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
