"""bench/peers/turns.py with small workers whose seconds are made up, so that no figure is a timing."""

import runpy
import sys
from pathlib import Path

import pytest

from tests.bench.test_peers import PEERS, Root, root  # noqa: F401 - a fixture


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["turns.py", *words])
    runpy.run_path(str(PEERS / "turns.py"), run_name="__main__")


def test_cases_take_turns_and_files_add_up(
    root: Root,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root.script("paceline", {"None": [1]}, modes={"plain": [], "draft": []})
    root.script("rival", {"None": [4], "3": [2]}, modes={"plain": [], "draft": [3]})
    record = tmp_path / "record.jsonl"
    cases = ["paceline:plain", "rival:plain", "paceline:draft:draft_vocab=8", "rival:draft:k=3", "absent:plain"]
    common = ["--prompts", str(root.prompts), "--weights", "bf16", "--tokens", "4", "--record", str(record)]
    run(monkeypatch, str(root.path), *cases[:4], *common, "--each", "2")
    shown = capsys.readouterr().out
    assert "2 prompts answered by all: prompts 1, prompts 2" in shown
    assert "paceline:plain over rival:plain: median 4.00 (4.00-4.00)" in shown
    assert "paceline:draft:draft_vocab=8 over rival:draft:k=3: median 2.00" in shown
    loads = [line["load"] for line in root.asked() if "load" in line]
    assert [(it["mode"], it["k"], it["own"]) for it in loads] == [
        ("plain", None, {}), ("plain", None, {}), ("draft", None, {"draft_vocab": "8"}), ("draft", 3, {}),
    ]  # fmt: skip
    run(monkeypatch, str(root.path), *cases[:2], *common, "--each", "1", "--cut", "50", "--batch", "1")
    assert len(record.read_text().splitlines()) == 10, "a second run adds to the file"
    with pytest.raises(SystemExit, match="absent is not set up"):
        run(monkeypatch, str(root.path), *cases[4:], *common)
