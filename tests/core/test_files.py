"""Start-up files of hostile shape: one sentence, in bounded time and memory."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.cluster.workflow import log as workflow_log
from paceline.core.errors import InputError
from paceline.core.files import lines_of, text_of
from paceline.serve.settings import longest_key, read_toml
from paceline.simulate import log as decision_log

READERS: list[Callable[[Path], object]] = [
    read_toml,
    lambda path: list(workflow_log.read(path)),
    lambda path: list(decision_log.read(path)),
    lambda path: text_of(path, "config"),
]


@pytest.mark.parametrize("read", READERS)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, read: Callable[[Path], object]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path, tmp_path / "none"):
        with pytest.raises(InputError):
            read(path)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000 + "]" * 5000,
        "a = " + "9" * 10_000,
        "a.b" + ".c" * 5000 + " = 1",
        "a = 1\na = 2",
        "\0",
        "= 1",
    ],
)
def test_toml_of_hostile_shape(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    try:
        read_toml(path)
    except InputError as error:
        assert str(path) in str(error)


@pytest.mark.parametrize(
    "text", ["a" + ".a" * 500_000 + " = 1", "[a" + ".a" * 500_000 + "]", "x = {a" + ".a" * 99 + " = 1}"]
)
def test_long_keys_are_found_before_toml_is_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(InputError, match="more than 32 parts"):
        read_toml(path)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('a.b."c.d.e".\'x.y\' = "a.b.c.d.e.f" # 1.1.1.1\n', 4),
        ('a = """\na.b.c.d\n""""\nb.c = 1', 2),
        ("a = '''a.b.c'''\nx = 1.5", 2),
        ("x = {a . b.c = 1.5}\n[a.b.c.d]\n", 4),
        ('a = "' + '\\"' * 400_000, 1),
        ('"""' * 300_000, 1),
    ],
)
def test_parts_of_the_longest_key(text: str, parts: int) -> None:
    assert longest_key(text) == parts


@pytest.mark.parametrize("line", ["[" * 100_000, "9" * 10_000, "null", "{}", '{"event": 1}', '"' + "x" * 1000, "\0"])
def test_logs_of_hostile_shape(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log"
    path.write_text(line + "\n")
    with pytest.raises(InputError):
        workflow_log.replay(list(workflow_log.read(path)))
    with pytest.raises(InputError):
        list(decision_log.read(path))


def test_events_without_their_fields(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for first in ('{"event": "setup"}', '{"event": "setup", "planner": 1, "instances": 3}'):
        path.write_text(first + '\n{"event": "finish"}\n')
        with pytest.raises(InputError):
            workflow_log.replay(list(workflow_log.read(path)))


def test_size_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1000)
    with pytest.raises(InputError, match="more than 999 bytes"):
        text_of(path, "config", most=999)
    with pytest.raises(InputError, match="line 1 has more"):
        list(lines_of(path, "log", most=999))
    assert len(text_of(path, "config", most=1000)) == 1000
