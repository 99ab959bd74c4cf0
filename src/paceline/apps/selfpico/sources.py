"""What users have fragments in: Python files, notebooks, interpreter sessions with their prompts, and Markdown."""

import doctest
import json
import re
from pathlib import Path

from .cut import CutError, Fragment

SESSION_PROMPT = re.compile(r"^\s*>>> ?", re.MULTILINE)
CELL_PROMPT = re.compile(r"^In \[\d*\]: ?", re.MULTILINE)
FENCED = re.compile(r"^```(?:python|py|pycon)?[ \t]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
PICO_SUFFIXES = frozenset({".py", ".ipynb", ".md", ".txt", ".pycon"})


def gathered(paths: list[Path]) -> list[Fragment]:
    """Fragments of files, and of all files of folders that can hold some. Raises CutError."""
    found: list[Fragment] = []
    for path in paths:
        inside = [each for each in sorted(path.rglob("*")) if each.suffix in PICO_SUFFIXES - {".md", ".txt"}]
        for each in inside if path.is_dir() else [path]:
            found += fragments(str(each), text_of(each))
    return found


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CutError(f"{path} cannot be read as UTF-8 text ({error}); give a Python file.") from error


def fragments(name: str, text: str) -> list[Fragment]:
    """One of a Python file or a session, one of a notebook's cells together, one of each fence of Markdown. Raises
    CutError."""
    if name.endswith(".ipynb"):
        return [Fragment(name, notebook(name, text))]
    if name.endswith(".md"):
        fences = [session(match[1]) for match in FENCED.finditer(text)]
        if not fences:
            raise CutError(f"{name} holds no fenced code; give a file with some.")
        return [Fragment(f"{name}#{number}", each) for number, each in enumerate(fences, 1)]
    return [Fragment(name, session(text))]


def session(text: str) -> str:
    """Code without an interpreter's prompts; what it printed stays as comments, so line numbers do."""
    if SESSION_PROMPT.search(text):
        return doctest.script_from_examples(text)
    if CELL_PROMPT.search(text):
        kept = [CELL_PROMPT.sub("", line) for line in text.splitlines() if not re.match(r"^Out ?\[", line)]
        return magics("\n".join(re.sub(r"^ {3,}\.\.\.: ?", "", line) for line in kept) + "\n")
    return text


def notebook(name: str, text: str) -> str:
    """The code cells one after the other, magics and shell lines as comments."""
    try:
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in cells]
    except (ValueError, KeyError, TypeError) as error:
        raise CutError(f"{name} is no notebook of format 4; open it in Jupyter and save it again.") from error
    return "\n\n".join(magics(each) for each in sources if not each.startswith("%%")) + "\n"


def magics(text: str) -> str:
    return re.sub(r"^(\s*)([%!?].*|.*\?)$", r"\1pass  # \2", text, flags=re.MULTILINE)
