"""Modules that cannot be imported, where the fragment imports them: what they are asked for is put in."""

import importlib.machinery
import sys
from types import FrameType, ModuleType
from typing import Any

PICO_FILE = "fragment.py"
PACKAGE = "here"
PICO_BROAD = {"", "Exception", "BaseException"}


class Modules:
    """Finds what cannot be imported, where the fragment itself imports it and does not handle that it is absent."""

    def __init__(self, runtime: Any) -> None:
        self.runtime, self.made = runtime, set[str]()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        top = name.split(".")[0]
        if top not in self.made and top != PACKAGE:
            frame = importer()
            if frame is None or frame.f_code.co_filename != PICO_FILE:
                return None
            line = frame.f_lineno - self.runtime.shift
            guards = set(self.runtime.imports.get(str(line), ()))
            if guards & {"ImportError", "ModuleNotFoundError", *PICO_BROAD} or self.runtime.talk is None:
                return None
            self.made.add(top)
            self.runtime.events.write("module", name=top, line=line)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["runtime"] = self.runtime


class Absent(ModuleType):
    """A module that is not installed; what it is asked for is missing, and asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        frame = importer()
        if name.startswith("__") or frame is None or frame.f_code.co_filename != PICO_FILE:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        line = frame.f_lineno - self.__dict__["runtime"].shift
        where = {"kind": "name", "name": name, "line": line, "guards": (), "owner": ""}
        error = ImportError(f"cannot import name {name!r} from {self.__name__!r}, which is not installed")
        return self.__dict__["runtime"].supply(where, error, ("ImportError",))


def importer() -> FrameType | None:
    """The frame that imports, or asks a module for a name, below the frames of importing itself."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame
