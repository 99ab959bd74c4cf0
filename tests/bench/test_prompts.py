import json
from pathlib import Path

import pytest

from paceline.bench.prompts import encode, read_prompts, read_text
from paceline.core.errors import InputError
from paceline.engine.text import Text


def lines(path: Path, *entries: object) -> Path:
    path = path / "prompts.jsonl"
    path.write_text("\n".join(e if isinstance(e, str) else json.dumps(e) for e in entries), encoding="utf-8")
    return path


def test_every_known_shape(tmp_path: Path) -> None:
    path = lines(
        tmp_path,
        {"question": "How many?", "answer": "4"},
        {"task_id": "x/0", "prompt": "def f():", "test": ""},
        "",
        {"question_id": 81, "turns": ["First.", "Then."]},
    )
    assert read_prompts(path) == ["How many?", "def f():", "First."]
    assert read_prompts(path, 2) == ["How many?", "def f():"]


def test_line_separators_inside_a_text_do_not_split_it(tmp_path: Path) -> None:
    path = lines(tmp_path, json.dumps({"prompt": "a\u2028b\x85c"}, ensure_ascii=False))
    assert read_prompts(path) == ["a\u2028b\x85c"]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("{nonsense", "line 2 does not parse as JSON"),
        ({"text": "x"}, "line 2 has no prompt"),
        ({"turns": []}, "line 2 has no prompt"),
        ({"prompt": ""}, "line 2 has no prompt"),
        ({"prompt": 3}, "line 2 has no prompt"),
        ([1], "line 2 has no prompt"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, entry: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_prompts(lines(tmp_path, {"prompt": "fine"}, entry))


def test_a_bad_line_after_the_last_one_needed_is_not_read(tmp_path: Path) -> None:
    assert read_prompts(lines(tmp_path, {"prompt": "fine"}, "{nonsense"), 1) == ["fine"]


def test_no_prompts_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no prompts"):
        read_prompts(lines(tmp_path, "", " "))
    with pytest.raises(InputError, match="cannot be read"):
        read_prompts(tmp_path / "absent.jsonl")


def test_other_encodings_are_refused_by_offset(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes("Grüße".encode("latin-1"))
    with pytest.raises(InputError, match="byte 2 is 0xfc"):
        read_text(path)
    path.write_bytes(b"\xef\xbb\xbfhello")
    assert read_text(path) == "hello"


def test_chat_template_where_there_is_one(target: Path) -> None:
    text = Text(target)
    chat = text.chat([{"role": "user", "content": "hello"}])
    assert encode(text, "hello") == encode(text, "hello", chat=True) == chat
    assert encode(text, "hello", chat=False) == text.encode("hello") != chat
    text.tokenizer.chat_template = None
    assert encode(text, "hello") == text.encode("hello")
    with pytest.raises(InputError, match="no chat template"):
        encode(text, "hello", chat=True)
