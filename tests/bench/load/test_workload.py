import json
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.load.workload import LoadWish, Supply, from_prompts, read_recording
from paceline.core.errors import InputError

WISH = LoadWish("m", "chat", max_tokens=9, seed=5)
FIXED = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}


def body(wish: LoadWish, own: dict[str, Any], number: int = 0) -> Any:
    return json.loads(wish.body(own, number))


def test_a_prompt_becomes_a_message_for_chat_alone() -> None:
    message = [{"role": "user", "content": "hi"}]
    assert body(WISH, {"prompt": "hi"}, 2) == {"messages": message, "max_tokens": 9, "seed": 7, **FIXED}
    wish = LoadWish("m", "completions", max_tokens=9, temperature=0.0)
    assert body(wish, {"prompt": "hi"}) == {"prompt": "hi", "max_tokens": 9, "temperature": 0.0, "seed": 0, **FIXED}
    with pytest.raises(InputError, match="--endpoint chat"):
        wish.body({"messages": message}, 0)


def test_a_recording_wins_over_flags_and_extra_over_all_but_what_must_be() -> None:
    own = {"messages": [], "max_tokens": 3, "seed": 1, "top_p": 0.5, "model": "theirs", "stream": False}
    wish = LoadWish("m", extra={"top_p": 0.9, "speculation": {"drafter": "none"}})
    made = body(wish, own)
    assert (made["max_tokens"], made["seed"], made["top_p"], made["model"], made["stream"]) == (3, 1, 0.9, "m", True)
    assert made["speculation"] == {"drafter": "none"}
    assert "max_tokens" not in body(wish, {"messages": [], "max_completion_tokens": 4})


def test_supply_goes_round_without_end() -> None:
    supply = Supply(WISH, [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}])
    assert [which for which, _ in supply.take(2)] == [0, 1] and supply.distinct == 3
    again = supply.take(3)
    assert [which for which, _ in again] == [2, 0, 1], "it goes on where it stopped"
    assert json.loads(again[1][1])["seed"] == 5 + 3, "the same prompt has another seed"
    assert next(supply.bodies)[0] == 2


def test_prompts_of_bench(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"question": "q"}\n{"turns": ["t", "u"]}\n', encoding="utf-8")
    assert from_prompts(path) == [{"prompt": "q"}, {"prompt": "t"}] and from_prompts(path, 1) == [{"prompt": "q"}]


def test_a_recording_is_sorted_and_starts_at_0(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"at": 7.5, "prompt": "b", "max_tokens": 2}\n\n{"at": 5, "messages": []}\n', encoding="utf-8")
    first, second = read_recording(path)
    assert (first.at, first.body) == (0.0, {"messages": []})
    assert (second.at, second.body) == (2.5, {"prompt": "b", "max_tokens": 2})


@pytest.mark.parametrize(
    ("line", "says"),
    [("{", "line 1 does not parse"), ("[]", "no request"), ('{"at": 1}', "no request"), ('{"prompt": 1}', "no arrival"),
     ('{"prompt": "x", "at": "1"}', "no arrival"), ('{"prompt": "x", "at": true}', "no arrival"), ("", "no requests")],
)  # fmt: skip
def test_bad_recordings(line: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=says):
        read_recording(path)
