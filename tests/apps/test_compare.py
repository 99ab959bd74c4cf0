"""Two logs side by side: texts and figures."""

import json
from pathlib import Path

import pytest

from paceline.apps.common.compare import compare
from paceline.apps.common.tape import TapeError


def log(path: Path, texts: list[str], seconds: float) -> Path:
    events = [{"event": "node", "at": 0}, {"event": "call", "path": "/v1/models", "at": 0, "seconds": 9, "reply": {}}]
    for number, text in enumerate(texts, start=1):
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "speculation": {"drafted": 4, "accepted": 2}}
        reply = {"choices": [{"message": {"content": text}}], "usage": usage}
        row = {
            "event": "call",
            "path": "/v1/chat/completions",
            "at": number * seconds,
            "seconds": seconds,
            "reply": reply,
        }
        events.append(row)
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def test_the_same_texts_in_another_order_are_the_same(tmp_path: Path) -> None:
    found = compare(log(tmp_path / "a", ["x", "y", "y"], 2.0), log(tmp_path / "b", ["y", "x", "y"], 1.0))
    assert found["same_texts"] == found["texts"] == 3
    assert found["base"]["seconds"] == 6.0
    assert found["times_as_quick"] == 2.0
    assert found["other"]["accepted_share"] == 0.5


def test_another_text_is_seen(tmp_path: Path) -> None:
    found = compare(log(tmp_path / "a", ["x", "y"], 1.0), log(tmp_path / "b", ["x", "x"], 1.0))
    assert (found["same_texts"], found["texts"]) == (1, 2)


@pytest.mark.parametrize("text", ["", "{", '{"event": "node"}'])
def test_what_is_no_log_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(TapeError):
        compare(tmp_path / "a", tmp_path / "a")
