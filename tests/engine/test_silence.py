"""A drafter that a request names and that drafts nothing is told once, with the reason."""

import logging
from collections.abc import Sequence

import pytest

from paceline import LLM, SamplingParams
from paceline.core.plan import Note
from paceline.engine.silence import SILENT_PASSES, Silence
from tests.serve.process import said

LONG = SamplingParams(max_tokens=SILENT_PASSES + 4, temperature=0, ignore_eos=True)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "has drafted nothing" in text]


def nothing(tokens: Sequence[int], depth: int) -> list[int]:
    return []


def test_an_engine_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    llm = LLM(drafter=nothing, dtype="float32", blocks=100)
    with caplog.at_level(logging.WARNING, "paceline"):
        for _ in range(3):
            llm.generate("Tom has 3 apples.", LONG)
    [line] = lines(caplog)
    assert "found nothing to guess" in line and line.endswith("(said once).")


def test_the_command_says_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    words = ("generate", "Tom has", "--max-tokens", "60", "--ignore-eos", "--temperature", "0", "--dtype", "float32")
    code, text, error = said("-m", "paceline", *words, "--drafter", "ngram", "--nodes", "0", timeout=600)
    assert code == 0 and text and error.count("Drafter 'ngram' has drafted nothing in") == 1, error
    assert "no rows to draft in" in error


def test_one_that_drafts_and_one_that_nobody_named_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    llm = LLM(dtype="float32", blocks=100)
    with caplog.at_level(logging.WARNING, "paceline"):
        for drafter in ("none", "auto", "model"):
            llm.generate("Tom has 3 apples.", SamplingParams(max_tokens=60, temperature=0, drafter=drafter))
    assert lines(caplog) == []


def test_passes_count_for_each_drafter_alone(caplog: pytest.LogCaptureFixture) -> None:
    silence = Silence()
    empty, full = (Note(0, "x", 4, 4, offered, [0]) for offered in ([], [1]))
    with caplog.at_level(logging.WARNING, "paceline"):
        silence.heard("early", True, [full], ())
        for _ in range(SILENT_PASSES - 1):
            for name in ("early", "late", "mute"):
                silence.heard(name, name != "mute", [empty], ("a reason",))
        silence.heard("late", True, [full], ())
        assert lines(caplog) == []
        for _ in range(2):
            silence.heard("mute", False, [empty], ("a reason",))
    [line] = lines(caplog)
    assert line.startswith("Drafter 'mute'") and "(a reason)" in line
