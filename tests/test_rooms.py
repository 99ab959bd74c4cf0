"""The shape of the package: imports point downward, decisions import no tensors, the public names are these."""

import ast
from pathlib import Path

import paceline

SRC = Path(paceline.__file__).parent
LEVEL = {
    "core": 0, "native": 0, "model": 1, "attend": 1, "cache": 1, "sample": 1, "draft": 2, "verify": 2, "plan": 2,
    "schedule": 2, "memory": 3, "engine": 4, "reason": 5, "retrieve": 6, "serve": 7, "bench": 7, "simulate": 7,
    "cluster": 8, "train": 8, "cli": 9,
}  # fmt: skip
BESIDE = {("model", "attend"), ("verify", "draft")}
DECIDE = ("cache", "plan", "schedule", "memory", "cluster/workflow")


def imports(path: Path) -> set[str]:
    """Every module that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_imports_point_downward() -> None:
    wrong = []
    for room, level in LEVEL.items():
        for path in (SRC / room).rglob("*.py"):
            for module in imports(path):
                parts = module.split(".")
                if parts[0] != "paceline" or len(parts) < 2 or parts[1] == room or (room, parts[1]) in BESIDE:
                    continue
                if LEVEL.get(parts[1], -1) >= level:
                    wrong.append(f"{path.relative_to(SRC)} imports {module}")
    assert wrong == []


def test_decisions_import_neither_tensors_nor_a_clock() -> None:
    for room in DECIDE:
        for path in (SRC / room).rglob("*.py"):
            assert not imports(path) & {"torch", "time", "datetime", "random"}, path


def test_files_stay_small() -> None:
    assert all(len(p.read_text(encoding="utf-8").splitlines()) <= 500 for p in SRC.rglob("*.py"))
