"""`bench --methods ... --plot`: the picture of a run, and what is refused before anything is measured."""

import importlib.util
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from paceline.bench import picture
from paceline.core.errors import InputError
from tests.serve.process import said


def test_the_command_draws_what_it_measured(target: Path, questions: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'paceline[plot]')")
    out = tmp_path / "bench.svg"
    words = ("bench", "--model", f"{target}", "--prompts", f"{questions}", "--methods", "none,ngram", "--batch", "1,2")
    few = ("--max-tokens", "8", "--num-prompts", "2", "--repeat", "1", "--dtype", "float32", "--memory", "100M")
    code, text, error = said("-m", "paceline", *words, *few, "--plot", f"{out}", timeout=600)
    assert code == 0 and "ngram" in text, error
    root = ElementTree.parse(out).getroot()
    bars = [each for each in root.iter() if each.get("id", "").startswith("axes_")]
    assert root.tag.endswith("svg") and len(bars) == 2, "a panel for each batch size"


@pytest.mark.parametrize(("name", "words"), [("p.gif", "must end in"), ("none/p.svg", "folder does not exist")])
def test_a_file_that_cannot_be_drawn_is_refused(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        picture.check(tmp_path / name)


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def without(name: str, *more: Any) -> Any:
        return None if name == "matplotlib" else found(name, *more)

    monkeypatch.setattr(picture, "find_spec", without)
    with pytest.raises(InputError, match=r"paceline\[plot\]"):
        picture.check(tmp_path / "p.svg")
