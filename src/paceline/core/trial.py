"""Grammars are tried in a child process first: llguidance recurses along references and nesting, and a stack that
overflows ends its process. What a child compiles on a small stack, within its limits, the server compiles safely.

    parent  -- length, JSON {"source", "limits"} -->  child: validate, compile, first mask, a short walk
            <-- length, UTF-8 complaint (empty: none) --

A child serves many trials. It dies of a crash, of its CPU limit or of its memory limit, and the next trial gets a new
one. Verdicts are kept by the digest of the source.
"""

import hashlib
import json
import select
import struct
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from paceline.core.errors import RefusalError

CPU_S = 0.5
"""Processor seconds of one trial."""
WALL_S = 10.0
"""Seconds of one trial on a machine that is busy with other work."""
MEMORY_BYTES = 1 << 30
"""Address space of a child."""
STACK_BYTES = 2 << 20
"""Stack on which a child compiles: a quarter of what the server's threads have."""
CHILDREN = 2
KEPT_BYTES = 4 << 20
"""Memory for verdicts."""
VERDICT_BYTES = 512
"""Longest verdict that is kept."""
LENGTH = struct.Struct("=I")
TOO_DEEP = "it crashes the compiler (references or brackets are nested too deeply, or it needs too much memory)"
TOO_SLOW = f"it takes more than {CPU_S} s to compile"
CHILD = r"""
import json, os, resource, signal, struct, sys, threading
sys.path.append(sys.argv[1])
cpu, memory, stack, walk = float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), 32
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
threading.stack_size(stack)
vocabulary = LLTokenizer("byte")

def tried(job):
    limits = LLParserLimits(**job["limits"])
    failed, messages = LLMatcher.validate_grammar_with_warnings(job["source"], limits=limits)
    if failed:
        return messages[0]
    matcher = LLMatcher(vocabulary, job["source"], log_level=0, limits=limits)
    for step in range(walk):
        mask = matcher.compute_bitmask()
        bits = [8 * i + k for i, byte in enumerate(mask) if byte for k in range(8) if byte >> k & 1]
        if not bits or matcher.is_error() or not matcher.try_consume_tokens([bits[-(step % 2)]]):
            break
    return ""

def work(job, out):
    try:
        out.append(tried(job))
    except MemoryError:
        os.abort()
    except BaseException as error:
        out.append(f"{type(error).__name__}: {error}")

source, sink = sys.stdin.buffer, sys.stdout.buffer
while head := source.read(4):
    job, out = json.loads(source.read(struct.unpack("=I", head)[0])), []
    signal.setitimer(signal.ITIMER_PROF, cpu)
    thread = threading.Thread(target=work, args=(job, out))
    thread.start()
    thread.join()
    signal.setitimer(signal.ITIMER_PROF, 0)
    said = out[0].encode()
    sink.write(struct.pack("=I", len(said)) + said)
    sink.flush()
"""


class Child:
    """One process. `ask` raises EOFError when it dies."""

    def __init__(self) -> None:
        import llguidance

        folder = str(Path(llguidance.__file__).parents[1])
        limits = (str(CPU_S), str(MEMORY_BYTES), str(STACK_BYTES))
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", CHILD, folder, *limits],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
        )  # fmt: skip

    def ask(self, job: bytes) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        end = monotonic() + WALL_S
        try:
            self._process.stdin.write(LENGTH.pack(len(job)) + job)
        except BrokenPipeError:
            raise EOFError from None
        size = LENGTH.unpack(self._read(4, end))[0]
        return self._read(size, end).decode("utf-8", "replace")

    def _read(self, size: int, end: float) -> bytes:
        assert self._process.stdout is not None
        data = b""
        while len(data) < size:
            if not select.select([self._process.stdout], [], [], max(0.0, end - monotonic()))[0]:
                raise TimeoutError
            piece = self._process.stdout.read(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def close(self) -> int:
        """End it; its exit code, negative for a signal."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(0.2)
        self._process.kill()
        return self._process.wait()


class Trials:
    """Children and what they found. Any thread may call it; at most CHILDREN trials run at once."""

    def __init__(self) -> None:
        self._places = threading.Semaphore(CHILDREN)
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._known: OrderedDict[bytes, str] = OrderedDict()

    def fault(self, source: str, limits: Mapping[str, Any]) -> str:
        """Why this grammar (llguidance's own form) cannot be compiled; empty if it can. RefusalError where this
        machine starts no child, or is too busy to try one."""
        job = json.dumps({"source": source, "limits": dict(limits)}).encode()
        key = hashlib.sha256(job).digest()
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        with self._places:
            verdict = self._tried(job)[:VERDICT_BYTES]
        with self._lock:
            self._known[key] = verdict
            while len(self._known) * VERDICT_BYTES > KEPT_BYTES:
                self._known.popitem(last=False)
        return verdict

    def _tried(self, job: bytes) -> str:
        with self._lock:
            child = self._idle.pop() if self._idle else None
        try:
            child = child or Child()
        except OSError as error:
            raise RefusalError(f"grammar cannot be tried here: no child process starts ({error}).") from error
        try:
            verdict = child.ask(job)
        except EOFError:
            return TOO_SLOW if child.close() == -SIGPROF else TOO_DEEP
        except TimeoutError:
            child.close()
            raise RefusalError("grammar could not be tried in time, the machine is too busy; try again.") from None
        except BaseException:
            child.close()
            raise
        with self._lock:
            self._idle.append(child)
        return verdict


SIGPROF = 27
"""Its number on Linux and macOS: the CPU limit's signal."""
TRIALS = Trials()
