"""Docstrings, comments, messages and pages in plain English: the first word of a docstring is a noun or a verb of the
field, and translated words are absent."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FIRST = re.compile(r"(Of|Those|Who|Whose|The same|And)\b")
BANNED = re.compile(r"\b(anew|besides?|dear|dearer|dearest|reckon\w*|so many|so much|told|whoever)\b", re.IGNORECASE)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of every string that stands alone: docstrings, and descriptions of constants and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, " ".join(node.value.value.split())


def comments(source: str) -> list[str]:
    """Line and text of each comment with a translated word."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = [(it.start[0], it.string) for it in tokens if it.type == tokenize.COMMENT]
    return [f"{line}: {text}" for line, text in found if BANNED.search(re.sub(r"`[^`]*`", "", text))]


def messages(tree: ast.Module) -> list[str]:
    """Line and beginning of each text of several words, other than a docstring, with a translated word: errors, log
    lines, help. Values in quotes are left out."""
    apart = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [it for it in ast.walk(tree) if isinstance(it, ast.Constant) and isinstance(it.value, str)]
    prose = [(it.lineno, re.sub(r"`[^`]*`|'\w+'", "", it.value)) for it in texts if id(it) not in apart]
    return [f"{line}: {text[:70]}" for line, text in prose if " " in text and BANNED.search(text)]


def page(text: str) -> list[str]:
    """Line and beginning of each line of a Markdown page with a translated word. Code is left out."""
    prose = re.sub(r"```.*?```|`[^`\n]*`|'\w+'", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    lines = enumerate(prose.splitlines(), 1)
    return [f"{number}: {line[:70]}" for number, line in lines if not line.startswith("    ") and BANNED.search(line)]


def wrong(tree: ast.Module) -> list[str]:
    """Line and beginning of each docstring that breaks the rule. Code in backquotes is left out."""
    found = [(line, text, re.sub(r"`[^`]*`", "", text)) for line, text in docstrings(tree)]
    return [f"{line}: {text[:70]}" for line, text, prose in found if FIRST.match(text) or BANNED.search(prose)]


def test_docstrings_are_plain_english() -> None:
    files = sorted((ROOT / "src" / "paceline").rglob("*.py"))
    assert len(files) > 300
    sources = [(path.relative_to(ROOT), path.read_text("utf-8")) for path in files]
    trees = [(path, text, ast.parse(text)) for path, text in sources]
    assert [
        f"{path}:{each}" for path, text, tree in trees for each in (*wrong(tree), *messages(tree), *comments(text))
    ] == []


def test_pages_are_plain_english() -> None:
    """The lab book is left out: what was written stays."""
    tops = list(ROOT.glob("*.md"))
    below = [path for folder in ("docs", "recipes", "bench", "examples") for path in (ROOT / folder).rglob("*.md")]
    pages = [path for path in (*tops, *below) if path.name != "log.md"]
    assert len(pages) > 30
    assert [f"{path.relative_to(ROOT)}:{each}" for path in pages for each in page(path.read_text("utf-8"))] == []


@pytest.mark.parametrize(
    "text", ["Of each row.", "The same for x.", "Computed anew.", "A row beside it.", "At so many."]
)
def test_the_rule_finds_what_it_names(text: str) -> None:
    assert wrong(ast.parse(f"X = 1\n'''{text}'''")) == [f"2: {text}"]
    assert not wrong(ast.parse("X = 1\n'''Offset of each row; `beside` is a field.'''"))


def test_messages_and_pages_are_read_too() -> None:
    tree = ast.parse("raise ValueError(f'A row {x} beside it.')\nx = 'beside'\ny = \"The kind 'told' of it.\"")
    assert messages(tree) == ["1:  beside it."]
    assert page("A row beside it.\n\n    x beside y\n\n```\nx beside y\n```\nSee `beside`.\nTold so.") == [
        "1: A row beside it.", "9: Told so.",
    ]  # fmt: skip


def test_comments_are_read_too() -> None:
    assert comments("x = 1  # computed anew\ny = 'anew'  # `anew` is a name\n") == ["1: # computed anew"]
