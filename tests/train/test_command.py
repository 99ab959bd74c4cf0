"""`paceline train` as a process without a terminal: a line every ten seconds, and on Ctrl-C how to go on."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline.cli.options import INTERRUPTED
from paceline.cli.progress import LINE_S
from paceline.train.loop import STATE
from tests.serve.process import said
from tests.tiny import tiny_checkpoint
from tests.train.test_loop import LINES

LINE = re.compile(r"^ *\d+% step (\d+), loss \d+\.\d+, accuracy [\d. ]+, simulated tau [\d.]+, [\d,]+ tokens, (\d+) s$")
PATIENCE_S = 600


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("command")
    tiny_checkpoint(path / "target", seed=1)
    (path / "data.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    return path


def words(place: Path, *more: str) -> list[str]:
    return [
        "-m", "paceline", "train", "medusa", "--target", f"{place / 'target'}", "--data", f"{place / 'data.jsonl'}",
        "--out", f"{place / 'out'}", "--as-given", "--dtype", "float32", "--set", "depth=2", "--tokens", "256", *more,
    ]  # fmt: skip


@contextmanager
def running(place: Path, *more: str) -> Iterator["subprocess.Popen[str]"]:
    child = subprocess.Popen([sys.executable, *words(place, *more)], text=True, stderr=subprocess.PIPE)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def lines(child: "subprocess.Popen[str]", count: int) -> list[tuple[int, int]]:
    """(step, seconds) of the next lines of progress."""
    found: list[tuple[int, int]] = []
    assert child.stderr is not None
    for text in child.stderr:
        if match := LINE.match(text.rstrip()):
            found.append((int(match[1]), int(match[2])))
        if len(found) == count:
            break
    return found


def stopped(child: "subprocess.Popen[str]") -> str:
    child.send_signal(signal.SIGINT)
    _, error = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == INTERRUPTED and "Traceback" not in error, error
    return " ".join(error.split())


@pytest.mark.usefixtures("interruptible")
def test_lines_come_and_ctrl_c_says_how_to_go_on(place: Path) -> None:
    with running(place, "--minutes", "2") as child:
        (first, at), (second, later) = lines(child, 2)
        assert second > first and later - at >= LINE_S / 2, "not a line a step"
        assert "Stopped. The same command starts from the beginning: there was no checkpoint yet." in stopped(child)
    code, out, error = said(*words(place, "--steps", "12"), timeout=PATIENCE_S)
    assert code == 0 and "12 steps" in out and (place / "out" / STATE).is_file(), error
    with running(place, "--minutes", "2") as child:
        [(step, _)] = lines(child, 1)
        assert step == 20, "it goes on behind its twelve steps"
        end = f"Stopped. The same command goes on from the last checkpoint in {place / 'out'}."
        assert end in stopped(child)
