"""`paceline bench serve` and `paceline bench record` from the command line."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.bench.load.conftest import Counted
from tests.patience import PATIENCE_S
from tests.test_cli import failure, run

FEW = ["--warmup", "0", "--requests", "3", "--max-tokens", "6", "--temperature", "0"]


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "Tom has"}\n{"prompt": "def add"}\n{"prompt": "Why?"}\n', encoding="utf-8")
    return str(path)


def test_the_load_generator_loads_nothing_heavy() -> None:
    code = "import sys, paceline.bench.load.run, paceline.bench.load.recorder\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["serve", "record"])
def test_help_has_an_example(name: str) -> None:
    result = run("bench", name, "--help")
    assert result.exit_code == 0 and f"Example: paceline bench {name}" in " ".join(result.stdout.split())
    assert name in run("bench", "--help").stdout


def test_a_sweep(url: str, prompts: str, tmp_path: Path) -> None:
    out, plot = tmp_path / "out.json", tmp_path / "plot.svg"
    result = run(
        "bench", "serve", "--url", url, "--prompts", prompts, "--rate", "50,100", "--constant", *FEW,
        "--slo", "e2e:100000", "--json", str(out), "--plot", str(plot), "--api-key", "secret",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "constant 50/s" in result.stdout and "constant 100/s" in result.stdout and "100% within" in result.stdout
    written = json.loads(out.read_text())
    assert [cell["value"] for cell in written["cells"]] == [50, 100] and "secret" not in out.read_text()
    assert [cell["summary"]["completed"] for cell in written["cells"]] == [3, 3]
    ElementTree.parse(plot)


def test_a_closed_loop_says_what_it_is(url: str, prompts: str) -> None:
    result = run("bench", "serve", "--url", url, "--prompts", prompts, "--clients", "1", *FEW)
    assert result.exit_code == 0 and "closed loop: a baseline" in result.stdout
    assert "TTFT from sending" in result.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "one of --rate, --recorded and --clients"),
        (["--rate", "1", "--clients", "2"], "one of --rate"),
        (["--rate", "x"], "--rate is 'x'"),
        (["--clients", "1.5"], "--clients is '1.5'"),
        (["--clients", "2", "--constant"], "--constant"),
        (["--rate", "1", "--constant", "--burstiness", "2"], "--burstiness"),
        (["--rate", "1", "--speed", "2"], "--recorded"),
        (["--rate", "1", "--slo", "nonsense"], "--slo"),
        (["--rate", "1", "--body", "{"], "--body does not parse"),
        (["--rate", "1", "--body", '{"stream": false}'], "--body must be"),
        (["--rate", "1", "--plot", "p.png"], "must end in .svg"),
        (["--rate", "1", "--timeout", "0"], "--timeout"),
        (["--rate", "1", "--url", "ftp://x"], "url is"),
    ],
)
def test_bad_words(args: list[str], says: str, prompts: str) -> None:
    assert says in failure(run("bench", "serve", "--prompts", prompts, *args))


def test_what_to_send_must_be_said_once(prompts: str) -> None:
    assert "either --prompts" in failure(run("bench", "serve", "--rate", "1"))
    assert "either --prompts" in failure(run("bench", "serve", "--recorded", prompts, "--prompts", prompts))
    assert "no arrival" in failure(run("bench", "serve", "--recorded", prompts))


def test_an_option_before_the_name_is_refused() -> None:
    assert "--batch stands before serve" in failure(run("bench", "--batch", "1", "serve", "--rate", "1"))


@contextmanager
def started(*args: str, stdout: int | None = None) -> "Iterator[subprocess.Popen[str]]":
    """The command as a process of its own, which does not outlive the test."""
    command = [sys.executable, "-m", "paceline", *args]
    with subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_reports_what_was_measured(url: str, served: Counted, prompts: str) -> None:
    """10 requests a second for ten minutes, interrupted after the first ten."""
    ten_minutes = ["--rate", "10", "--duration", "600", "--max-tokens", "4", "--warmup", "1"]
    what = ["bench", "serve", "--url", url, "--prompts", prompts, *ten_minutes]
    with started(*what, stdout=subprocess.PIPE) as process:
        enough = served.count + 10
        while served.count < enough:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert "Poisson 10/s" in out and "TTFT" in out and "Traceback" not in err


@pytest.mark.usefixtures("interruptible")
def test_a_recording_is_made_and_replayed(url: str, prompts: str, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    made = tmp_path / "traffic.jsonl"
    with started("bench", "record", str(made), "--url", url, "--port", port) as process:
        assert process.stderr is not None and "Recording http://127.0.0.1" in process.stderr.readline()
        through = ["bench", "serve", "--url", f"http://127.0.0.1:{port}", "--prompts", prompts, "--rate", "100", *FEW]
        assert run(*through).exit_code == 0
        process.send_signal(signal.SIGINT)
        assert "3 requests recorded" in process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0
    result = run("bench", "serve", "--url", url, "--recorded", str(made), "--speed", "1,2", "--warmup", "0")
    assert result.exit_code == 0 and "recorded x1" in result.stdout and "3 of 3 requests" in result.stdout
