"""Modules of others that a program does not need for its first answer, imported when they are."""

import importlib
import sys
import threading
from types import ModuleType
from typing import Any

SHAPES = "torch._meta_registrations"
"""torch's shapes of operations, in Python: to register them takes a tenth of a start, and only tensors without data
(device "meta") and compilers ask for them."""
_IMPORTING = threading.RLock()


class DeferredModule(ModuleType):
    """Stands for a module whose own code has not run: the first name that is asked of it runs it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(complete(self.__name__), name)


def defer(name: str) -> None:
    """Let a package's own import pass over this module of it. Nothing where the package has been imported."""
    if name.partition(".")[0] not in sys.modules:
        sys.modules[name] = DeferredModule(name)


def complete(name: str) -> ModuleType | None:
    """The module, run now if it was deferred; None where its package has not been imported."""
    with _IMPORTING:
        stand_in = sys.modules.get(name)
        if not isinstance(stand_in, DeferredModule):
            return stand_in
        del sys.modules[name]
        try:
            return importlib.import_module(name)
        except BaseException:
            sys.modules[name] = stand_in
            raise
