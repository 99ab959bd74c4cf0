"""Fragments to run: scripts of a file, and bodies of functions cut from installed packages."""

import ast
import random
import textwrap
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from .instrument import FragmentError, runnable

PICO_HERE = Path(__file__).parent
PICO_SCRIPTS, SEEDED = PICO_HERE / "scripts.txt", PICO_HERE / "seeded.txt"
PICO_MARK = "# TYPE ERROR"
SHORTEST, PICO_LONGEST = 3, 40


class CutError(Exception):
    """A package or file without fragments."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A name for the report, the text, and the group that figures are given for."""

    name: str
    source: str
    group: str = "files"

    @property
    def seeded(self) -> int | None:
        """The line with the seeded type error, if it is marked."""
        return next((n for n, line in enumerate(self.source.splitlines(), 1) if line.endswith(PICO_MARK)), None)


def scripts(path: Path = PICO_SCRIPTS) -> list[Fragment]:
    """Scripts of a file, each below a line `#--- name`."""
    parts = path.read_text(encoding="utf-8").split("#--- ")[1:]
    return [Fragment(name, source, path.stem) for name, _, source in (part.partition("\n") for part in parts)]


def bodies(package: str, count: int, seed: int = 0) -> list[Fragment]:
    """`count` bodies of functions and methods of an installed package, drawn by seed: of 3 to 40 lines, docstrings
    removed, that can be compiled on their own. Raises CutError."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise CutError(f"{package} is not an installed package; pip install {package}, or leave it out.")
    root = Path(next(iter(spec.submodule_search_locations)))
    found = [f for path in sorted(root.rglob("*.py")) for f in functions(path, root)]
    random.Random(seed).shuffle(found)
    return sorted(first(found, count), key=lambda f: f.name)


def first(found: list[Fragment], count: int) -> list[Fragment]:
    """The first `count` that can be compiled on their own."""
    kept: list[Fragment] = []
    for fragment in found:
        if len(kept) == count:
            break
        if fits(fragment):
            kept.append(fragment)
    return kept


def fits(fragment: Fragment) -> bool:
    try:
        runnable(textwrap.dedent(fragment.source))
    except FragmentError:
        return False
    return True


def functions(path: Path, root: Path) -> list[Fragment]:
    text = path.read_text(encoding="utf-8")
    lines, found = text.splitlines(), []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        if not body:
            continue
        begin, end = body[0].lineno, node.end_lineno or body[-1].lineno
        if SHORTEST <= end - begin + 1 <= PICO_LONGEST and begin > node.lineno:
            source = "\n".join(lines[begin - 1 : end]) + "\n"
            found.append(Fragment(f"{root.name}/{path.relative_to(root)}:{node.name}", source, "bodies"))
    return found
