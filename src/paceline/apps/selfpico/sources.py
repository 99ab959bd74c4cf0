"""What users have fragments in: Python files, notebooks, interpreter sessions with their prompts, and Markdown."""

import ast
import io
import json
import re
import textwrap
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from .cut import CutError, Fragment

SESSION_PROMPT = re.compile(r"^\s*(?:>>>|In \[\d*\]:) ?(.*)$")
SESSION_GOES_ON = re.compile(r"^\s*\.\.\.:? ?(.*)$")
PICO_FENCE = "```"
FENCES = frozenset({"", "python", "python3", "py", "pycon", "ipython", "{python}"})
CELL_MAGIC = re.compile(r"^([ \t]*)((?:%{1,2}[a-zA-Z]|[!?]).*|[\w.]+\?{1,2})[ \t]*$", re.MULTILINE)
PYTHON_CELLS = frozenset({"%%time", "%%timeit", "%%capture", "%%prun"})
"""Magics of whole cells that hold Python all the same."""
PICO_SUFFIXES = frozenset({".py", ".ipynb", ".md", ".txt", ".pycon"})


def gathered(paths: list[Path]) -> list[Fragment]:
    """Fragments of files, and of all files of folders that can hold some. Raises CutError."""
    found: list[Fragment] = []
    for path in paths:
        inside = [each for each in sorted(path.rglob("*")) if each.suffix in PICO_SUFFIXES - {".md", ".txt"}]
        for each in inside if path.is_dir() else [path]:
            if not each.is_dir():
                found += fragments(str(each), text_of(each))
    return found


def text_of(path: Path) -> str:
    """A file's text; a Python file may name its encoding, as `# -*- coding: latin-1 -*-`. Raises CutError."""
    try:
        raw = path.read_bytes()
        encoding = tokenize.detect_encoding(io.BytesIO(raw).readline)[0] if path.suffix == ".py" else "utf-8-sig"
        return raw.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, UnicodeError, LookupError, SyntaxError) as error:
        raise CutError(
            f"{path} cannot be read as UTF-8 text ({error}); save it as UTF-8, or name its encoding in the first line."
        ) from error


def fragments(name: str, text: str) -> list[Fragment]:
    """One of a Python file or a session, one of a notebook's cells together, one of each fence of Markdown. Raises
    CutError."""
    if name.endswith(".ipynb"):
        return [Fragment(name, notebook(name, text))]
    if name.endswith(".md"):
        fences = [session(block) for info, block in fenced(text) if (info.lower().split() or [""])[0] in FENCES]
        if not fences:
            raise CutError(f"{name} holds no fenced Python; give a file with some.")
        return [Fragment(f"{name}#{number}", each) for number, each in enumerate(fences, 1)]
    return [Fragment(name, session(patched(text)))]


HUNK = re.compile(
    r"^(?:@@|diff |index |--- |\+\+\+ |(?:new|old|deleted) (?:file|mode)|(?:dis)?similarity |(?:rename|copy) |"
    r"Binary files |Index: |={30})"
)
HUNK_COUNTS = re.compile(r"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
DIFF_TITLES = ("diff ", "--- ", "commit ", "From ", "Index: ", "-- ")
"""Beginnings of lines below which anything stands up to the next hunk: a commit's message, names and modes of files."""


def patched(text: str) -> str:
    """The new side of a diff, what it takes away and its headings as comments; other texts as they are."""
    lines = text.splitlines()
    inside = in_hunks(lines) or [not HUNK.match(line) for line in lines]
    body = [line for line, within in zip(lines, inside) if line and within]
    if parses(text) or not body or any(line[0] not in "+- \\" for line in body) or {"+", "-"}.isdisjoint(
        line[0] for line in body
    ):  # fmt: skip
        return text
    kept = [within and line[:1] not in ("-", "\\") for line, within in zip(lines, inside)]
    new = [line[1:] for line, keep in zip(lines, kept) if keep and line[1:].strip()]
    margin = " " * min((len(line) - len(line.lstrip()) for line in new), default=0)
    whole = "".join((line[1:] if keep else f"{margin}# {line}") + "\n" for line, keep in zip(lines, kept))
    return whole if parses(whole) or parses(textwrap.dedent(whole)) else text


def in_hunks(lines: Sequence[str]) -> list[bool] | None:
    """Which lines stand in a diff's hunks, by the counts of lines that the hunks state; None where they state none or
    others than there are."""
    inside: list[bool] = []
    old = new = 0
    title, found = True, False
    for line in lines:
        if old > 0 or new > 0:
            if line[:1] not in ("+", "-", " ", "", "\\"):
                return None
            old -= line[:1] not in ("+", "\\")
            new -= line[:1] not in ("-", "\\")
            inside.append(True)
            if old < 0 or new < 0:
                return None
            continue
        if counts := HUNK_COUNTS.match(line):
            old, new = (int(count or 1) for count in counts.groups())
            title, found = False, True
        elif line.startswith(DIFF_TITLES):
            title = True
        elif not title and line.strip() and line[0] != "\\":
            return None
        inside.append(False)
    return inside if found else None


def fenced(text: str) -> Iterator[tuple[str, str]]:
    """Text behind the opening marks, and text within, of each fence that is closed."""
    info, inside = None, list[str]()
    for line in text.split("\n"):
        if info is None:
            info = line[3:] if line.startswith(PICO_FENCE) and "`" not in line[3:] else None
        elif line.rstrip(" \t") == PICO_FENCE:
            yield info, "".join(f"{each}\n" for each in inside)
            info, inside = None, []
        else:
            inside.append(line)


def session(text: str) -> str:
    """Code without an interpreter's prompts; what it printed stays as comments, so line numbers do. Python itself stays
    as it is, also where its docstrings hold examples."""
    lines = text.splitlines()
    if not any(map(SESSION_PROMPT.match, lines)) or parses(text):
        return text
    made, inside = [], False
    for line in lines:
        code = SESSION_PROMPT.match(line) or (SESSION_GOES_ON.match(line) if inside else None)
        inside = code is not None
        made.append(code[1] if code is not None else f"# {line}" if line.strip() else "")
    return magics("\n".join(made) + "\n")


def parses(text: str) -> bool:
    try:
        ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def notebook(name: str, text: str) -> str:
    """The code cells one after the other, magics and shell lines as comments."""
    try:
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in cells]
    except (ValueError, KeyError, TypeError) as error:
        raise CutError(f"{name} is no notebook of format 4; open it in Jupyter and save it again.") from error
    kept = [each for each in sources if not each.startswith("%%") or each.split()[0] in PYTHON_CELLS]
    return "\n\n".join(magics(each) for each in kept) + "\n"


def magics(text: str) -> str:
    """Lines for IPython or a shell as comments, in what is no Python with them."""
    return text if parses(text) else CELL_MAGIC.sub(r"\1pass  # \2", text)
