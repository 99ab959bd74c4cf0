"""Every program says how many answers were the model's, and fails where most were not."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline.apps.common.sandbox import unavailable
from paceline.apps.common.schema import problem
from paceline.apps.main import APP_COMMANDS, present
from tests.apps.scripted import scripted

pytest.importorskip("statsmodels", reason="the extra apps is not installed")
Runs = dict[str, Callable[[Path], list[str]]]


def series(folder: Path) -> str:
    file = folder / "series.csv"
    file.write_text("date,a\n" + "".join(f"2020-{1 + d // 28:02}-{1 + d % 28:02},{d % 7}\n" for d in range(120)))
    return str(file)


def bars(folder: Path) -> str:
    file = folder / "bars.csv"
    rows = (
        f"2020-{1 + d // 28:02}-{1 + d % 28:02},{100 + d % 5},{103 + d % 5},{98 + d % 5},{101 + d % 5}"
        for d in range(60)
    )
    file.write_text("datetime,open,high,low,close\n" + "\n".join(rows) + "\n")
    return str(file)


def fragment(folder: Path) -> str:
    file = folder / "fragment.py"
    file.write_text("if kind == 'sql' and size > 10:\n    print(kind)\nelse:\n    print(size)\n")
    return str(file)


RUNS: Runs = {
    "tsci": lambda at: ["forecast", series(at), "--horizon", "3", "--models", "2", "--workers", "1", "--out", str(at)],
    "quantagent": lambda at: ["decide", bars(at), "--out", str(at)],
    "selfpico": lambda at: ["run", fragment(at), "--out", str(at)],
    "text2sql": lambda at: ["How many singers are there?", "--sample", "--single", "--out", str(at)],
    "prophetfuzz": lambda at: [
        "predict",
        "inkpress",
        "--man",
        page(),
        "--samples",
        "2",
        "--votes",
        "2",
        "--out",
        str(at),
    ],
    "surge": lambda at: ["predict", fragment(at), "--command", "python3 fragment.py"],
}
BOXED = {"selfpico", "prophetfuzz", "surge"}


def page() -> str:
    from paceline.apps.prophetfuzz.campaign import PLANTED_PAGE

    return str(PLANTED_PAGE)


def run(name: str, folder: Path, script: Callable[[dict[str, Any]], Any]) -> Any:
    if name in BOXED and (why := unavailable()):
        pytest.skip(why)
    from importlib import import_module

    app = import_module(f"paceline.apps.{APP_COMMANDS[name][0]}").app
    with scripted(script) as (url, _):
        return CliRunner().invoke(app, [*RUNS[name](folder), "--url", url])


@pytest.mark.parametrize("name", RUNS)
def test_a_server_whose_calls_all_fail(name: str, tmp_path: Path) -> None:
    done = run(name, tmp_path, lambda body: (500, "it is switched off"))
    assert done.exit_code == 1, done.output
    said = re.search(r"0 of (\d+) answers were the model's", done.output)
    assert said and int(said[1]) > 0, done.output
    if name != "surge":
        assert any("0 of" in file.read_text() for file in tmp_path.glob("*.md")), "the report says it, too"


@pytest.mark.parametrize("name", sorted(RUNS.keys() - {"text2sql", "surge"}))
def test_a_server_that_answers_an_empty_object(name: str, tmp_path: Path) -> None:
    """Every one of these asks for JSON of a schema, which {} is not."""
    done = run(name, tmp_path, lambda body: "{}")
    assert done.exit_code == 1 and re.search(r"\b0 of \d+ answers", done.output), done.output


@pytest.mark.parametrize(("name", "text"), [*((name, "") for name in RUNS), ("text2sql", " \n"), ("surge", "\t")])
def test_a_server_that_answers_an_empty_text(name: str, text: str, tmp_path: Path) -> None:
    done = run(name, tmp_path, lambda body: text)
    assert done.exit_code == 1 and re.search(r"\b0 of [1-9]\d* answers", done.output), done.output


def test_an_empty_object_is_no_query_and_no_prediction(tmp_path: Path) -> None:
    """The other two ask for text: {} is the model's answer, but nothing that can be used, and they say so."""
    done = run("text2sql", tmp_path, lambda body: "{}")
    assert done.exit_code == 1 and "No table" in done.output and "1 of 1 answers were the model's" in done.output
    done = run("surge", tmp_path, lambda body: "{}")
    assert "is not trusted" in done.output and "NameError" in done.output, "what was run, not what was said"


def test_a_server_that_sends_no_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.apps.scripted import Handler

    monkeypatch.setattr(
        Handler, "do_POST", lambda self: (self.rfile.read(int(self.headers["Content-Length"])), self.reply(200, {}))
    )
    done = run("text2sql", tmp_path, lambda body: "")
    assert done.exit_code == 1 and "no chat completion" in done.output


def test_every_application_is_here() -> None:
    assert set(RUNS) == set(APP_COMMANDS) >= set(present())


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0}, "w": {"enum": ["a", "b"]}},
          "required": ["n", "w"], "additionalProperties": False}  # fmt: skip


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"n": 1, "w": "a"}, None),
        ({}, "lacks n"),
        ({"n": True, "w": "a"}, "no integer"),
        ({"n": -1, "w": "a"}, "minimum"),
        ({"n": 1, "w": "c"}, "none of a, b"),
        ({"n": 1, "w": "a", "x": 0}, "field 'x'"),
        ([], "no object"),
    ],
)
def test_a_schema_is_checked(value: Any, said: str | None) -> None:
    found = problem(json.loads(json.dumps(value)), SCHEMA)
    assert found is None if said is None else said in str(found)
    assert problem({"n": 1, "w": "a"}, {"anyOf": [{"type": "array"}, SCHEMA]}) is None
    with pytest.raises(ValueError, match="does not know"):
        problem(1, {"oneOf": []})
