"""Servers as they run for users: a process of their own, or the same `Process` in a thread of the test's."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from paceline import AsyncLLM
from paceline.serve.app import create_app
from paceline.serve.run import Process, address, bind, config
from paceline.serve.settings import Settings

WAIT_S = 120
SERVE = [
    "-m",
    "paceline",
    "serve",
    "--port",
    "0",
    "--dtype",
    "float32",
    "--blocks",
    "600",
    "--served-model-name",
    "demo",
]


@contextmanager
def spawned(*args: str, **environ: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """`python ARGS` that announces an address; the address and the process, which is killed at the end."""
    child = subprocess.Popen(
        [sys.executable, *args],
        env={**os.environ, **environ},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None and child.stderr is not None
        found = re.search(r"at (\S+)/v1", child.stdout.readline())
        assert found, child.stderr.read()
        yield found[1], child
    finally:
        child.kill()
        child.communicate()


def said(*args: str, timeout: float = WAIT_S, **environ: str) -> tuple[int, str, str]:
    """`python ARGS` until it ends: exit code, standard output, standard error."""
    done = subprocess.run(
        [sys.executable, *args], env={**os.environ, **environ}, text=True, capture_output=True, timeout=timeout
    )
    return done.returncode, done.stdout, done.stderr


@contextmanager
def threaded(llm: AsyncLLM, settings: Settings) -> Iterator[tuple[str, Process]]:
    """The server process in a thread: signals are given by `handle_exit`."""
    sock, up = bind("127.0.0.1", 0), threading.Event()
    url = address(sock, settings)
    app = create_app(llm, settings)
    process = Process(config(app, settings), app.state.operation, up.set)
    thread = threading.Thread(target=process.run, args=([sock],), daemon=True)
    thread.start()
    assert up.wait(WAIT_S)
    try:
        yield url, process
    finally:
        process.should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive()
