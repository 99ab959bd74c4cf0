"""Names that a stranger can search for: one public class a name, and hardly a constant that shares its name."""

import ast
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import paceline

SRC = Path(paceline.__file__).parent
MAX_SHARED_CONSTANTS = 10
"""Names of constants that may stand in several files, as `T` for a type variable."""


def classes(tree: ast.Module) -> set[str]:
    return {n.name for n in tree.body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")}


def constants(tree: ast.Module) -> set[str]:
    targets = [t for n in tree.body if isinstance(n, ast.Assign) for t in n.targets]
    targets += [n.target for n in tree.body if isinstance(n, ast.AnnAssign)]
    flat = [x for t in targets for x in (t.elts if isinstance(t, ast.Tuple) else [t])]
    return {x.id for x in flat if isinstance(x, ast.Name) and x.id.isupper() and not x.id.startswith("_")}


def homes(kind: Callable[[ast.Module], set[str]]) -> dict[str, list[str]]:
    """Names that several files of the package give, and these files."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SRC.rglob("*.py")):
        for name in kind(ast.parse(path.read_text(encoding="utf-8"))):
            found[name].append(str(path.relative_to(SRC)))
    assert len(found) > 500
    return {name: files for name, files in found.items() if len(files) > 1}


def test_a_public_class_has_a_name_of_its_own() -> None:
    assert homes(classes) == {}


def test_constants_of_several_files_hardly_ever_share_a_name() -> None:
    shared = homes(constants)
    assert len(shared) <= MAX_SHARED_CONSTANTS, shared
