"""Studies are scripts beside `src`, loaded by their path."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "bench" / "studies"


def load(name: str) -> ModuleType:
    """The script bench/studies/NAME.py as a module."""
    spec = importlib.util.spec_from_file_location(f"{name}_study", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
