"""The README's commands and its Python are run, with the demo pair for the models that they name."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.cli import app
from paceline.engine.pair import DEMO
from paceline.model.families import FAMILIES
from paceline.model.gguf.architectures import ARCHITECTURES
from tests.patience import PATIENCE_S
from tests.serve.process import spawned

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    ([a-z./].*?)(?:\s+#.*)?$", re.sub(r"```.*?```", "", TEXT, flags=re.S), re.M)
OURS = [command for command in COMMANDS if command.startswith("paceline ")]
TARGETS = [command.removeprefix("make ") for command in COMMANDS if command.startswith("make ")]


def test_the_readme_is_short_and_every_command_is_known() -> None:
    assert {command.split()[1] for command in OURS} == {"chat", "generate", "info", "serve", "bench"}
    assert TARGETS == ["run", "serve"]
    assert [c for c in COMMANDS if not c.startswith(("paceline ", "make "))] == [". .venv/bin/activate"]
    assert len(TEXT.splitlines()) < 150


def test_the_readme_counts_what_is_served() -> None:
    tables = FAMILIES.values()
    experts, states = (sum(map(bool, has)) for has in ((it.experts for it in tables),
                                                       (it.conv or it.mamba or it.delta for it in tables)))  # fmt: skip
    assert (
        f"[{len(FAMILIES)} families](docs/models.md), {experts} of them mixtures of experts, {states} with rec" in TEXT
    )
    assert f"{len(ARCHITECTURES)} architectures as GGUF" in TEXT


@pytest.mark.parametrize("command", [c for c in OURS if " serve " not in c])
def test_a_command_of_the_readme(command: str, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "Tom has 3 apples"}))
    words = with_models(command.replace("FILE.jsonl", str(prompts)))
    short = {"bench": ["--repeat", "1", "--max-tokens", "8"], "generate": ["--max-tokens", "8"]}
    done = CliRunner().invoke(app, [*words, *short.get(words[0], [])], input="Hello\n/exit\n")
    assert done.exit_code == 0 and done.stdout.strip(), (done.output, done.exception)


def with_models(command: str) -> list[str]:
    """Its words, the first model named the demo's and the second its draft."""
    words = shlex.split(command)[1:]
    models = iter([str(DEMO / "target"), str(DEMO / "draft")])
    return [next(models) if word == "path/or/hub-id" else word for word in words]


def test_the_readmes_server_answers() -> None:
    (command,) = [c for c in OURS if " serve " in c]
    with spawned("-m", "paceline", *with_models(command), "--port", "0") as (url, _):
        done = CliRunner().invoke(app, ["chat", "--url", url, "--max-tokens", "4"], input="Hello\n")
        assert done.exit_code == 0 and done.stdout.strip()


@pytest.mark.parametrize("target", ["run", "serve", "test", "docs"])
def test_a_make_target_is_there(target: str) -> None:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode == 0 and "paceline" in done.stdout + done.stderr) or target in ("test", "docs"), done.stderr


def test_the_python_of_the_readme() -> None:
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", TEXT, re.S) if "with LLM" in c]
    first, second = (str(DEMO / name) for name in ("target", "draft"))
    code = code.replace('"path/or/hub-id"', repr(first), 1).replace('"path/or/hub-id"', repr(second), 1)
    code = code.replace("max_tokens=200", "max_tokens=20")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0 and "tokens per pass of the model" in done.stdout, done.stderr
