"""One native library for the whole suite, in the checkout's own folder, compiled before the first test needs it."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LIVE_ROOMS = ("apps", "cases", "cluster", "serve")
"""Folders whose tests talk to processes over sockets, on a machine that may have other work."""
FULL_TEST_S = 1800
"""Seconds after which a test of the complete sweep hangs; one of the fast suite hangs after the 600 of pyproject.toml,
where the slowest takes some 40 on two old cores."""

os.environ.setdefault("PACELINE_CACHE", str(Path(__file__).parents[1] / ".cache" / "paceline"))
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
"""Container images forbid compiled modules. Each of the suite's programs would then compile the whole package again:
1.4 s of its 4.6."""


def pytest_configure(config: pytest.Config) -> None:
    """The workers of xdist load what the process that starts them has compiled."""
    if not hasattr(config, "workerinput") and getattr(config.option, "numprocesses", None):
        from paceline.native.build import library

        library()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A live test that fails is run a second time, and the summary names it (RERUN): a race is then seen, and mended,
    without the other tests being run again for it. What always fails still does. A test that hangs is not repeated."""
    rooms = tuple(str(Path(__file__).parent / room) + os.sep for room in LIVE_ROOMS)
    for item in items:
        if item.get_closest_marker("timeout") is None and item.get_closest_marker("full") is not None:
            item.add_marker(pytest.mark.timeout(FULL_TEST_S))
        if str(item.path).startswith(rooms):
            item.add_marker(pytest.mark.flaky(reruns=1, rerun_except="Timeout"))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Programs started by the test take Ctrl-C. A shell without job control starts what it puts into the background
    with SIGINT ignored, and children inherit that: without this they would never end."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
