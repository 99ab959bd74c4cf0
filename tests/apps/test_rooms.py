"""The shape of the applications: over HTTP only, files small, heavy parts imported where they are used."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

import paceline.apps
from paceline.apps.main import APP_COMMANDS, present

ROOT = Path(paceline.apps.__file__).parent


def test_nothing_imports_the_engine() -> None:
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [n.name for n in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            ours = [n for n in names if n.split(".")[0] == "paceline" and not n.startswith("paceline.apps")]
            assert not ours, path


def test_files_stay_small() -> None:
    assert all(len(p.read_text(encoding="utf-8").splitlines()) <= 500 for p in ROOT.rglob("*.py"))


def test_help_needs_no_heavy_parts() -> None:
    heavy = "{'libcst', 'matplotlib', 'torch', 'sklearn'}"
    code = f"import sys, paceline.apps.main; paceline.apps.main.main(); print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n") and all(name in done.stdout for name in present())


@pytest.mark.parametrize("name", APP_COMMANDS)
def test_each_application_has_its_command_and_page(name: str) -> None:
    if name not in present():
        pytest.skip(f"{name} is not here")
    try:
        app = import_module(f"paceline.apps.{APP_COMMANDS[name][0]}").app
    except ModuleNotFoundError as error:
        pytest.skip(f"{name} needs {error.name}")
    names = [c.name or c.callback.__name__ for c in app.registered_commands]
    calls = [[], *([[n] for n in names] if len(names) > 1 else [])]
    pages = [CliRunner().invoke(app, [*call, "--help"]) for call in calls]
    assert all(page.exit_code == 0 for page in pages) and any("--url" in page.output for page in pages)
    assert (ROOT / name / "README.md").is_file()


def test_an_unknown_application_is_named() -> None:
    done = subprocess.run([sys.executable, "-m", "paceline.apps.main", "nothing"], capture_output=True, text=True)
    assert done.returncode == 1 and "has no 'nothing'" in done.stderr
