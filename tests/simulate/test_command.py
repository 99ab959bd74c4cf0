"""`paceline simulate`, and `paceline serve --decision-log`."""

import signal
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner

from paceline.cli import app
from paceline.simulate.figures import figures
from paceline.simulate.log import Arrival, Step, dump, read
from paceline.simulate.replay import replay
from tests.lossless.cases import Setting
from tests.serve.process import SERVE, WAIT_S, spawned
from tests.simulate.runs import recorded, some


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "decisions.jsonl"
    events = recorded(Setting(clock=2, blocks=30, block_size=2), some(5, 6, drafter="auto"), 3)
    path.write_bytes(b"".join(map(dump, events)))
    return path


def invoke(*args: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["simulate", *map(str, args)], env={"COLUMNS": "120"})
    return done.exit_code, done.output


def test_replay(log: Path, tmp_path: Path) -> None:
    steps = sum(isinstance(event, Step) for event in read(log))
    assert invoke(log, "--replay") == (0, f"{steps} steps replay to identical decisions.\n")
    lines = log.read_bytes().splitlines(keepends=True)
    lost = tmp_path / "lost.jsonl"
    lost.write_bytes(b"".join(line for i, line in enumerate(lines) if i != len(lines) // 2))
    code, text = invoke(lost, "--replay")
    assert code == 1 and text.startswith(("Step", "After step"))
    assert invoke(lost)[0] == 2


def test_simulation(log: Path, tmp_path: Path) -> None:
    code, text = invoke(log, "--output", tmp_path / "out.jsonl")
    assert code == 0
    out = list(read(tmp_path / "out.jsonl"))
    assert f"{figures(out).throughput:,.1f}" in text and "latency p99 ms" in text
    assert replay(out).difference is None
    assert figures(out).tokens == figures(read(log)).tokens


def test_changes(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert invoke(log, "--output", out, "--rate-scale", 0.001, "--max-requests", 2, "--blocks", 20)[0] == 0
    events = list(read(out))
    setup = events[0]
    assert getattr(setup, "config").max_requests == 2 and getattr(setup, "config").blocks == 20  # noqa: B009
    mine, theirs = ([e.now for e in each if isinstance(e, Arrival)] for each in (events, read(log)))
    assert [at - mine[0] for at in mine] == pytest.approx([1000 * (at - theirs[0]) for at in theirs])
    assert invoke(log, "--output", out, "--clients", 1, "--schedule", "prefill_first")[0] == 0
    assert all(len(e.decision.items) <= 1 for e in read(out) if isinstance(e, Step))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--blocks", "1"], "up to"),
        (["--clients", "0"], "at least 1"),
        (["--rate-scale", "0"], "positive"),
        (["--clients", "2", "--rate-scale", "2"], "exclude"),
        (["--eviction", "fifo"], "Unknown eviction"),
        (["--schedule", "none"], "Unknown schedule"),
        (["--max-requests", "99"], "row_budget"),
    ],
)
def test_bad_changes(log: Path, args: list[str], says: str) -> None:
    code, text = invoke(log, *args)
    assert code == 2 and says in text


def test_no_log(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name in ("empty", "missing"):
        assert invoke(tmp_path / name)[0] == 2


def test_a_server_writes_a_log_that_replays(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    with spawned(*SERVE, "--decision-log", str(path)) as (url, child):
        body = {"model": "demo", "prompt": "One, two, three", "max_tokens": 24, "temperature": 0, "n": 2}
        assert httpx2.post(f"{url}/v1/completions", json=body, timeout=WAIT_S).status_code == 200
        child.send_signal(signal.SIGTERM)
        assert child.wait(WAIT_S) == 0
    code, text = invoke(path, "--replay")
    assert code == 0, text
    assert figures(read(path)).tokens >= 2
