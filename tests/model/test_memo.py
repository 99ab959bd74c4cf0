"""What is kept of a checkpoint's small files: equal to what is parsed anew, and made again when anything changes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.engine.text import Text
from paceline.model import memo
from paceline.model.checkpoint import read_config
from paceline.native.build import library
from tests.tiny import FAMILIES, tiny_checkpoint

PATIENCE_S = 300


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    (tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setattr(memo, "home", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "memos"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_spec_is_read_back_as_it_was_parsed(
    family: str, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_checkpoint(tmp_path / "model", family, with_tokenizer=False)
    first = read_config(path)
    [file] = home.iterdir()
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert read_config(path) == first and hash(read_config(path)) == hash(first)
    monkeypatch.undo()
    file.write_text(file.read_text().replace('"ModelSpec"', '"Path"'))
    monkeypatch.setattr(memo, "home", lambda: home.parent)
    assert read_config(path) == first  # what is damaged is made again
    assert '"ModelSpec"' in file.read_text()


def test_what_changes_is_parsed_again(tmp_path: Path, home: Path) -> None:
    path = tiny_checkpoint(tmp_path / "model", "llama", with_tokenizer=False)
    before, config = read_config(path), path / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": ', '"rms_norm_eps": 1'))
    assert read_config(path).norm_eps != before.norm_eps
    assert read_config(path, 7).max_len == 7
    assert len(list(home.iterdir())) == 3


def test_the_oldest_go(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "MOST_MEMOS", 2)
    for number in range(4):
        assert memo.remembered("it", number, lambda: (number, None, "x")) == (number, None, "x")  # noqa: B023
        for age, file in enumerate(sorted(home.iterdir(), key=lambda it: it.stat().st_mtime_ns)):
            os.utime(file, (age, age))
    assert len(list(home.iterdir())) == 2
    assert memo.remembered("it", 3, lambda: 1 / 0) == (3, None, "x")


def test_a_tokenizer_is_of_the_same_class(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_checkpoint(tmp_path / "model", "llama")
    first = Text(path)
    from transformers import AutoTokenizer

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", None)
    second = Text(path)
    assert type(second.tokenizer) is type(first.tokenizer)
    text = "Two  spaces, é and <s>"
    assert second.encode(text) == first.encode(text) and second.vocabulary(99) == first.vocabulary(99)
    monkeypatch.undo()
    monkeypatch.setattr(memo, "home", lambda: home.parent)
    [file] = home.iterdir()
    file.write_text('"os:system"')
    assert Text(path).encode(text) == first.encode(text)


def test_a_second_start_imports_no_model_of_transformers_and_ends_well(tmp_path: Path, home: Path) -> None:
    """By the command: `generate` twice; the second reads packed weights late, and ends while they move."""
    path = tiny_checkpoint(tmp_path / "model", "qwen2", hidden=1024, intermediate_size=4096, layers=4)
    command = [sys.executable, "-X", "importtime", "-m", "paceline", "generate", "Once", "--max-tokens", "3"]
    command += ["--drafter", "none", "--temperature", "0", "--model", str(path)]
    env = {**os.environ, "PACELINE_CACHE": str(home.parent)}
    for built in [] if library() is None else Path(library()._name).parent.glob("decoder-*"):  # type: ignore[union-attr]
        shutil.copy2(built, home.parent)  # it would take a minute to compile
    first, second = (
        subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=env, check=False)
        for _ in range(2)
    )
    assert first.stdout == second.stdout and first.stdout.strip()
    assert "transformers.configuration_utils" in first.stderr
    assert "transformers.configuration_utils" not in second.stderr
    assert (first.returncode, second.returncode) == (0, 0) and "terminate" not in second.stderr
