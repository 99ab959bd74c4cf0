"""A real hang of the engine's thread: another process stops that thread alone, as a driver that never answers does."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest

from paceline import AsyncLLM
from paceline.serve.settings import Settings
from tests.cluster.waits import until
from tests.patience import PATIENCE_S

from .conftest import running

STOP = """
import ctypes, os, signal, sys
signal.alarm(4)
trace = ctypes.CDLL(None, use_errno=True).ptrace
trace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
for request in (0x4206, 0x4207):  # seize, interrupt
    if trace(request, int(sys.argv[1]), None, None):
        sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(int(sys.argv[1]), 0x40000000)
print("stopped", flush=True)
signal.pause()
"""
"""Stops a thread until its own end, 4 s later at the latest: the thread may hold the interpreter of the tests."""
BODY = {"prompt": "Tom has three apples", "max_tokens": 400, "ignore_eos": True, "temperature": 0}


@contextmanager
def stopped(thread: int) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", STOP, str(thread)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stderr is not None
        try:
            if other.stdout.readline() != "stopped\n":
                pytest.skip(f"a thread cannot be stopped here: {other.stderr.read().strip()}")
            yield
        finally:
            other.kill()


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="ptrace is Linux's")
async def test_a_hung_engine_is_seen_and_so_is_its_return(engine: AsyncLLM) -> None:
    assert engine._thread.native_id is not None
    with running(engine, Settings(stall_timeout=1.0, served_model_name=("demo",))) as url:
        end = threading.Event()

        def ask() -> None:
            while not end.is_set():
                httpx2.post(f"{url}/v1/completions", json=BODY, timeout=PATIENCE_S)

        def code() -> str:
            answer = httpx2.get(f"{url}/ready", timeout=PATIENCE_S)
            return str(answer.json().get("error", {}).get("code", answer.json().get("status")))

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            seen = False
            for _ in range(20):  # a thread that held the interpreter stopped the server, too, and nothing was seen
                await until(lambda: httpx2.get(f"{url}/stats", timeout=PATIENCE_S).json()["running"] > 0)
                with stopped(engine._thread.native_id):
                    tried = time.monotonic()
                    while not seen and time.monotonic() < tried + 3:
                        seen = code() == "engine_stalled"
                if seen:
                    break
            assert seen
            await until(lambda: code() != "engine_stalled")
        finally:
            end.set()
            asking.join()
