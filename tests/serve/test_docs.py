"""The tables of the documents are those of the code. (Their snippets: tests/test_snippets.py.)"""

from pathlib import Path

from tests.serve.api_page import refused, table

ROOT = Path(__file__).parents[2]


def test_tables_are_up_to_date() -> None:
    text = (ROOT / "docs/server.md").read_text(encoding="utf-8")
    assert table() in text and refused() in text, "python -m tests.serve.api_page prints them"
