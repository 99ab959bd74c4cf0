"""One native library for the whole suite, in the checkout's own folder, compiled before the first test needs it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("PACELINE_CACHE", str(Path(__file__).parents[1] / ".cache" / "paceline"))


def pytest_configure(config: pytest.Config) -> None:
    """The workers of xdist load what the process that starts them has compiled."""
    if not hasattr(config, "workerinput") and getattr(config.option, "numprocesses", None):
        from paceline.native.build import library

        library()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Programs started by the test take Ctrl-C. A shell without job control starts what it puts into the background
    with SIGINT ignored, and children inherit that: without this they would never end."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
