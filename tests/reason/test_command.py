"""`paceline reason`: the library's text, a summary, what is refused, and Ctrl-C."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from paceline.cli import app
from paceline.engine.pair import DEMO
from paceline.reason import Ensemble, StepSettings
from tests.reason.conftest import GREEDY, PROMPT

MODELS = ["--model", str(DEMO / "target"), "--dtype", "float32", "--drafter", "none"]
SMALL = ["--small", str(DEMO / "draft")]
LENGTH = ["--temperature", "0", "--max-tokens", "40", "--ignore-eos"]


def ask(*words: str) -> Result:
    return CliRunner().invoke(app, ["reason", PROMPT, *MODELS, *LENGTH, *words])


def test_steps_are_the_librarys(pair: Ensemble) -> None:
    done = ask(*SMALL, "--set", "tau=0", "--set", "separator=apples", "--json")
    assert done.exit_code == 0, done.output
    got = json.loads(done.stdout)
    want = pair.chat(
        [{"role": "user", "content": PROMPT}], StepSettings(tau=0, separator="apples"),
        type(GREEDY)(temperature=0, max_tokens=40, ignore_eos=True),
    )  # fmt: skip
    assert got["text"] == want.text and got["report"]["accepted"] == want.report["accepted"] > 1
    assert got["above"]["policy"] == "steps" and "proposals accepted" in done.stderr


def test_branches_and_words(tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="bm25s is not installed: the rag extra")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("Tom has apples. Ann has pens. Tom buys pens of Ann.", encoding="utf-8")
    made = CliRunner().invoke(app, ["index", str(tmp_path / "texts"), "-o", str(tmp_path / "i"), "--words", "4"])
    assert made.exit_code == 0, made.output
    done = ask("--policy", "retrieval", "--index", str(tmp_path / "i"), "--set", "every=4", "--set", "stride=2")
    assert done.exit_code == 0 and "retrieval: " in done.stderr, done.output
    done = ask("--policy", "parallel", "--set", "branch_tokens=10")
    assert done.exit_code == 0 and "parallel: " in done.stderr, done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--policy", "guess"], "must be one of steps"),
        ([], "--small"),
        ([*SMALL, "--set", "tau"], "NAME=VALUE"),
        ([*SMALL, "--set", "peek=3"], "none of this policy's settings"),
        ([*SMALL, "--set", "tau=high"], "wrong type"),
        (["--policy", "retrieval"], "--index"),
        (["--policy", "neighbours"], "--datastore"),
        (["--policy", "parallel", "--set", "mode=side"], "must be tags or prompt"),
        ([*SMALL, "--set", "tau=NaN"], "wrong type"),
        ([*SMALL, "--index", "words"], "no use for --index"),
    ],
)
def test_what_is_refused(words: list[str], says: str) -> None:
    done = ask(*words)
    assert done.exit_code == 2 and says in done.stderr and done.stderr.count("error") == 1


@pytest.mark.full
def test_ctrl_c_ends_it_where_it_stands() -> None:
    line = [sys.executable, "-m", "paceline", "reason", PROMPT, *MODELS, *SMALL, "--temperature", "0", "--ignore-eos",
            "--max-tokens", "900", "--set", "tau=9.1"]  # fmt: skip
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait() == 130 and "finish: abort" in said
