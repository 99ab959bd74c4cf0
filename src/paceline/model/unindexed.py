"""transformers without the index of its names: to make that takes half a second at each start, and a tokenizer and a
chat template need none of it."""

import importlib.util
import sys
import threading
from importlib.metadata import version
from types import ModuleType
from typing import Any

PACKAGES = ("transformers", "transformers.models")
_LOCK = threading.RLock()


class UnindexedPackage(ModuleType):
    """Stands for a package whose own code has not run. Its submodules are imported as ever; the first name that is
    asked of the package itself imports it, and this module hands names on from then on."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._whole(), name)

    def __dir__(self) -> list[str]:
        return dir(self._whole())

    def _whole(self) -> ModuleType:
        with _LOCK:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
                try:
                    importlib.import_module(self.__name__)
                except BaseException:
                    sys.modules[self.__name__] = self
                    raise
            return sys.modules[self.__name__]


def submodules_alone() -> None:
    """Let submodules of transformers be imported without the package's own code, unless that has run. Whatever asks
    the package for a name later gets it, as ever."""
    with _LOCK:
        for package in PACKAGES:
            if package in sys.modules:
                continue
            spec = importlib.util.find_spec(package)
            if spec is None:
                return
            made = UnindexedPackage(package)
            made.__spec__, made.__file__, made.__loader__ = spec, spec.origin, spec.loader
            made.__path__ = list(spec.submodule_search_locations or ())
            made.__package__ = package
            made.__version__ = version(PACKAGES[0])  # type: ignore[attr-defined]  # its submodules ask for this one
            sys.modules[package] = made
