"""A module that is imported when it is first asked for anything."""

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.core.deferred import DeferredModule, complete, defer


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that imports a submodule which counts how often it ran."""
    name = "late_package"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("runs = []\nfrom late_package import shapes\n")
    (folder / "shapes.py").write_text("import late_package\nlate_package.runs.append(1)\nsize = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for each in (name, f"{name}.shapes"):
        monkeypatch.delitem(sys.modules, each, raising=False)
    return name


def test_the_package_passes_over_it_until_it_is_asked(package: str) -> None:
    defer(f"{package}.shapes")
    made = __import__(package)
    assert made.runs == [] and isinstance(made.shapes, DeferredModule)
    with pytest.raises(AttributeError):
        _ = made.shapes.__file__
    assert made.shapes.size == 3 and made.runs == [1]
    assert not isinstance(made.shapes, DeferredModule)
    assert complete(f"{package}.shapes") is made.shapes and made.runs == [1]


def test_it_can_be_asked_for_before_the_package(package: str) -> None:
    defer(f"{package}.shapes")
    assert complete(f"{package}.shapes") is sys.modules[f"{package}.shapes"]
    assert sys.modules[package].runs == [1]


def test_a_package_that_was_imported_is_left_alone(package: str) -> None:
    made = __import__(package)
    defer(f"{package}.shapes")
    assert made.shapes.size == 3 and complete(f"{package}.shapes") is made.shapes
    assert complete("no_such_package.shapes") is None


def test_one_that_cannot_be_imported_stays_deferred(package: str, tmp_path: Path) -> None:
    (tmp_path / package / "shapes.py").write_text("raise ValueError('broken')\n")
    defer(f"{package}.shapes")
    with pytest.raises(ValueError, match="broken"):
        complete(f"{package}.shapes")
    assert isinstance(sys.modules[f"{package}.shapes"], DeferredModule)
    del sys.modules[f"{package}.shapes"]


def test_torch_computes_without_its_shapes_and_has_them_when_they_are_asked_for() -> None:
    code = (
        "import sys\n"
        "from paceline.core.deferred import SHAPES, complete, defer\n"
        "defer(SHAPES)\n"
        "import torch\n"
        "assert 'torch._decomp.decompositions' not in sys.modules\n"
        "x = torch.softmax(torch.randn(3, 4), -1) @ torch.ones(4, 2)\n"
        "complete(SHAPES)\n"
        "assert 'torch._decomp.decompositions' in sys.modules and torch._meta_registrations.register_meta\n"
        "with torch.device('meta'):\n"
        "    print(tuple(x.shape), tuple(torch.nn.Linear(3, 2)(torch.ones(5, 3)).shape))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "(3, 2) (5, 2)\n", done.stderr
