"""What a process asks of the system it runs on."""

import ctypes
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

FILES = 65536


def allow_many_files() -> None:
    """Raise the soft limit on open files as far as the system lets us: each connection is one. Where there is no such
    limit (Windows), nothing."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def map_ahead(package: str, *libraries: str) -> threading.Thread:
    """Map a package's libraries in a thread, the first for all others, as the package's import will: to place the large
    ones takes the system a quarter of a second, in which other modules are imported. What is not there is left out."""

    def work() -> None:
        with suppress(ImportError, ValueError, OSError):
            spec = find_spec(package)
            for folder in (spec.submodule_search_locations or ()) if spec else ():
                for number, name in enumerate(libraries):
                    if (Path(folder) / name).is_file():
                        ctypes.CDLL(str(Path(folder) / name), ctypes.DEFAULT_MODE if number else ctypes.RTLD_GLOBAL)

    thread = threading.Thread(target=work, name="map-ahead", daemon=True)
    thread.start()
    return thread


@contextmanager
def starting() -> Iterator[None]:
    """The start of a process that then computes: no search for garbage begins within it, and what it made is for life,
    so that none looks at it afterwards either, the last one included, at the end."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
