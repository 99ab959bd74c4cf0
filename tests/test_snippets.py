"""Every snippet of README.md, docs/ and examples/ is run against what its page tells the reader to start, or stands in
snippets_not_run.txt with its reason. `python -m tests.test_snippets` prints the figures and what that file lacks."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from paceline.cli import app
from paceline.cli.serve import ServingArgs, fleet_of
from paceline.engine.pair import DEMO
from paceline.model.pull import have
from tests.patience import PATIENCE_S
from tests.serve.process import spawned
from tests.snippets import ROOT, Snippet, collected, words

LIST = Path(__file__).with_name("snippets_not_run.txt")
ALL = collected()
MODELS = {"path/or/hub-id/of/a/small/model": "draft", "path/or/hub-id": "target"}


def listed() -> dict[str, str]:
    """{name of a snippet: why it is not run}."""
    lines = [line for line in LIST.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return dict(line.split("  --  ", 1) for line in lines)  # type: ignore[arg-type]


NOT_RUN = listed()
TO_RUN = [snippet for snippet in ALL if snippet.name not in NOT_RUN]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """What `make serve` starts: SmolLM2 where it is on this machine, else the bundled pair."""
    model = ["smollm2"] if have("smollm2") is not None else []
    template = ["--chat-template", str(ROOT / "examples/tools.jinja")] if not model else []
    with spawned("-m", "paceline", "serve", *model, *template, "--port", "0") as (address, _):
        yield address


def test_the_list_of_what_is_not_run_is_exact() -> None:
    """A snippet that is new is run, or its reason is written down; a name that left the pages leaves the list."""
    names = {snippet.name for snippet in ALL}
    assert len(names) == len(ALL), "two snippets of a page begin with the same line"
    assert not set(NOT_RUN) - names, "these are on no page any more"
    assert all(len(reason) > 10 for reason in NOT_RUN.values())
    lost = [snippet.name for snippet in TO_RUN if how(snippet) is None]
    assert not lost, f"nobody knows how to run these; list them in {LIST.name} with a reason"


def how(snippet: Snippet) -> str | None:
    """The way in which a snippet is run."""
    if snippet.language in ("python", "toml", "json", "example"):
        return snippet.language
    if snippet.language == "sh" and snippet.text.lstrip().startswith("curl"):
        return "curl"
    runs = ("paceline generate", "paceline info", "paceline list", "make", ". .venv", "paceline chat", "paceline serve",
            "paceline bench", "paceline ps", "paceline pull")  # fmt: skip
    return "commands" if snippet.language == "sh" and all(c.startswith(runs) for c in snippet.commands()) else None


@pytest.mark.parametrize("snippet", TO_RUN, ids=lambda snippet: snippet.name[:70])
def test_a_snippet(snippet: Snippet, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    way = how(snippet)
    if way == "toml":
        table = tomllib.loads(snippet.text)
        assert "models" not in table or fleet_of(table, ServingArgs(), Path("models.toml"))["models"]
    elif way == "json":
        json.loads(snippet.text)
    elif way == "commands":
        for command in snippet.commands():
            obeyed(command)
    else:
        served = "localhost:8000" in snippet.text
        address = request.getfixturevalue("url") if served else ""
        text = snippet.text.replace("http://localhost:8000", address) if served else local(snippet.text)
        if way == "curl" and shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        script = tmp_path / "snippet.py"
        script.write_text(text)
        command = ["bash", "-ec", text] if way == "curl" else [sys.executable, str(script)]
        where = {"PYTHONPATH": os.pathsep.join([str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path, env={**os.environ, **where}
        )
        assert done.returncode == 0, done.stderr
        if way == "example":
            assert done.stdout.strip() or snippet.name.startswith("examples/small.py"), "only that one is imported"
            assert "the same text: False" not in done.stdout
        if way == "curl":
            answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            assert answers and not any("error" in answer for answer in answers), done.stdout


def local(text: str) -> str:
    """The code with the bundled pair in place of models that it does not name, and short answers."""
    for word in ('"path/or/hub-id"', '"path/or/hub-id"'):
        part = "target" if text.count(word) == 2 else "draft" if "draft=" in text.split(word)[0] else "target"
        text = text.replace(word, repr(str(DEMO / part)), 1)
    return re.sub(r"max_tokens=\d+", "max_tokens=20", text)


def obeyed(command: str) -> None:
    """A command whose options are read as it stands; `make` tells what it would do. Whole runs: test_readme.py."""
    found = words(command)
    if found[0] == "make":
        done = subprocess.run(["make", "-n", *found[1:]], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    elif found[0] == "paceline":
        parsed(found[1:])


def parsed(found: list[str]) -> None:
    """Raises what click raises for an option or a command that there is not."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("paceline", [], resilient_parsing=True)
    while hasattr(command, "commands") and found and found[0] in command.commands:
        command, found = command.commands[found[0]], found[1:]
    command.make_context(command.name, list(found), parent=context, resilient_parsing=False)


SHELL = [s for s in ALL if s.language == "sh" or (s.language == "text" and "paceline " in s.text)]
LINES = [(s, c) for s in SHELL for c in s.commands() if c.split()[0] in ("paceline", "python", "paceline-apps")]


@pytest.mark.parametrize(("snippet", "command"), LINES, ids=[c[:60] for _, c in LINES])
def test_the_options_of_every_printed_command(snippet: Snippet, command: str) -> None:
    """Also of those that are not run: each option and each file of the project that they name is there."""
    found = words(command)
    if found[0] == "paceline" and not found[1].endswith(":"):
        parsed(found[1:])
    elif found[0] == "python" and found[1].endswith(".py"):
        ast.parse((ROOT / found[1]).read_text(encoding="utf-8"))
    elif found[0] == "paceline-apps":
        application(found[1:])


def application(found: list[str]) -> None:
    from importlib import import_module

    from paceline.apps.main import APP_COMMANDS as COMMANDS

    try:
        command: Any = typer.main.get_command(import_module(f"paceline.apps.{COMMANDS[found[0]][0]}").app)
    except ModuleNotFoundError as error:
        pytest.skip(f"{found[0]} needs {error.name}")
    if hasattr(command, "commands"):
        command, found = command.commands[found[1]], found[1:]
    known = {name for parameter in command.params for name in parameter.opts + parameter.secondary_opts}
    assert {word for word in found if word.startswith("--")} <= known


if __name__ == "__main__":
    read = sum(how(snippet) == "commands" for snippet in TO_RUN)
    print(
        f"{len(ALL)} snippets: {len(TO_RUN) - read} run, {read} commands whose options are read, {len(NOT_RUN)} not run"
    )
    for snippet in TO_RUN:
        if how(snippet) is None:
            print(f"{snippet.name}  --  ")
