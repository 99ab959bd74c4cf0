"""What the documents show is run, and their tables are those of the code."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.serve.api_page import refused, table

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs/server.md"]


def blocks(page: Path, language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)
    return [block for block in found if "localhost:8000" in block]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_curl_snippets(page: Path, url: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    [snippet] = blocks(page, "sh")
    done = subprocess.run(
        ["bash", "-c", snippet.replace("http://localhost:8000", url)],
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert json.loads(done.stdout)["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_snippets(page: Path, url: str) -> None:
    [snippet] = blocks(page, "python")
    code = snippet.replace("http://localhost:8000", url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=PATIENCE_S, text=True)
    assert done.returncode == 0, done.stderr
    assert "tokens per pass of the model" in done.stdout


def test_tables_are_up_to_date() -> None:
    text = (ROOT / "docs/server.md").read_text(encoding="utf-8")
    assert table() in text and refused() in text, "python -m tests.serve.api_page prints them"
