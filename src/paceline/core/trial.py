"""Grammars are tried in a child process first: llguidance recurses along references and nesting, and a stack that
overflows ends its process. What a child compiles on a small stack, within its limits, the server compiles safely.

    parent  -- length, JSON {"source", "limits"} -->  child: validate, compile, first mask, a short walk
            <-- length, UTF-8 complaint (empty: none) --

A child serves many trials. It dies of a crash, of its CPU limit or of its memory limit, and a new one takes its place.
Verdicts are kept by the digest of the source and the tenant. Small sources have a child of their own; clients take
turns at each. A child leaves the processors to other work, up to its wall time.
"""

import errno
import hashlib
import json
import select
import struct
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

from paceline.core.errors import BusyError, RefusalError
from paceline.core.stacks import trial_stack

CPU_S = 0.5
"""Processor seconds of one trial."""
WALL_S = 10.0
"""Seconds of one trial on a machine that is busy with other work."""
MEMORY_BYTES = 1 << 30
"""Address space of a child."""
SMALL_SOURCE_CHARS = 16_384
"""Characters up to which a source is small."""
MOST_WAITING = 64
"""Trials of clients that wait at one child."""
MOST_OF_ONE = 16
"""Trials of one client that wait at one child."""
PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Reasons why no child starts that go by."""
KEPT_BYTES = 4 << 20
"""Memory for verdicts."""
VERDICT_BYTES = 512
"""Longest verdict that is kept."""
LEFT_S = 0.05
"""Seconds between two looks at whether the client of a trial has left."""
GONE = "The client left before its grammar was tried."
LENGTH = struct.Struct("=I")
TOO_DEEP = "it crashes the compiler (references or brackets are nested too deeply, or it needs too much memory)"
CHILD = r"""
import json, os, resource, signal, struct, sys, threading
sys.path.append(sys.argv[1])
memory, stack, walk = int(sys.argv[2]), int(sys.argv[3]), 32
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
os.nice(5)
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
    signal.setitimer(signal.ITIMER_PROF, job["seconds"])
    thread = threading.Thread(target=work, args=(job, out))
    thread.start()
    thread.join()
    signal.setitimer(signal.ITIMER_PROF, 0)
    said = out[0].encode()
    sink.write(struct.pack("=I", len(said)) + said)
    sink.flush()
"""


class Child:
    """One child process. `ask` raises EOFError when the process dies."""

    def __init__(self) -> None:
        import llguidance

        folder = str(Path(llguidance.__file__).parents[1])
        limits = (str(MEMORY_BYTES), str(trial_stack()))
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", CHILD, folder, *limits],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
        )  # fmt: skip

    def ask(self, job: bytes, left: Callable[[], bool] = bool, wall: float = WALL_S) -> str:
        """The verdict. BusyError once the client has `left`, TimeoutError after `wall` seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        end = monotonic() + wall
        try:
            self._process.stdin.write(LENGTH.pack(len(job)) + job)
        except BrokenPipeError:
            raise EOFError from None
        size = LENGTH.unpack(self._read(4, end, left))[0]
        return self._read(size, end, left).decode("utf-8", "replace")

    def _read(self, size: int, end: float, left: Callable[[], bool]) -> bytes:
        assert self._process.stdout is not None
        data = b""
        while len(data) < size:
            if not select.select([self._process.stdout], [], [], LEFT_S)[0]:
                if left():
                    raise BusyError(GONE)
                if monotonic() > end:
                    raise TimeoutError
                continue
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


@dataclass(frozen=True, slots=True)
class TrialClient:
    """The client that the trial belongs to, whether it has left, and its tenant."""

    owner: str = ""
    left: Callable[[], bool] = bool
    tenant: str = ""
    """Verdicts are kept for each apart, so that no time tells what another has sent."""


NO_CLIENT = TrialClient()
TRIAL_CLIENT: ContextVar[TrialClient] = ContextVar("paceline_trial_client", default=NO_CLIENT)


class Lane:
    """A child and the queue before it: the client whose last turn is longest ago comes next. For any thread."""

    def __init__(self) -> None:
        self.child: Child | None = None
        self._changed = threading.Condition()
        self._busy = False
        self._waiting: list[tuple[int, str]] = []
        self._turns: OrderedDict[str, int] = OrderedDict()
        self._order = count(1)

    @contextmanager
    def turn(self, client: TrialClient) -> Iterator[None]:
        """The child, for one trial. BusyError where too much waits, and for a client that has left."""
        with self._changed:
            mine = sum(owner == client.owner for _, owner in self._waiting)
            crowded = len(self._waiting) >= MOST_WAITING or mine >= MOST_OF_ONE
            if client.owner and crowded:  # a program's own threads wait for their turn
                raise BusyError("Too many grammars wait to be tried; try again.")
            place = (next(self._order), client.owner)
            self._waiting.append(place)
            try:
                while (self._busy or place != self._next()) and not client.left():
                    self._changed.wait(0.5)
            finally:
                self._waiting.remove(place)
                self._changed.notify_all()
            if client.left():
                raise BusyError(GONE)
            self._busy = True
            self._turns[client.owner] = next(self._order)
            self._turns.move_to_end(client.owner)
            while len(self._turns) > MOST_WAITING:
                self._turns.popitem(last=False)
        try:
            yield
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _next(self) -> tuple[int, str]:
        return min(self._waiting, key=lambda place: (self._turns.get(place[1], 0), place[0]))

    def tried(self, job: bytes, seconds: float, left: Callable[[], bool] = bool, wall: float = WALL_S) -> str:
        """Verdict of the child. Within a turn."""
        try:
            child = self.child or Child()
        except OSError as error:
            kind = BusyError if error.errno in PASSING else RefusalError
            raise kind(f"No process starts here to try a grammar in ({error}); try again.") from error
        self.child = None
        try:
            verdict = child.ask(job, left, wall)
        except EOFError:
            verdict = too_slow(seconds) if child.close() == -SIGPROF else TOO_DEEP
            with suppress(OSError):
                child = Child()  # it starts while no trial waits for it
                self.child = child
            return verdict
        except TimeoutError:
            child.close()
            raise BusyError("This machine is too busy to try a grammar; try again.") from None
        except BaseException:
            child.close()
            raise
        self.child = child
        return verdict


@dataclass(eq=False)
class Trials:
    """Children and what they found. Any thread may call it: one trial of a small source and one of a large source run
    at a time."""

    small: Lane = field(default_factory=Lane)
    large: Lane = field(default_factory=Lane)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: OrderedDict[bytes, str] = field(default_factory=OrderedDict)

    def fault(self, source: str, limits: Mapping[str, Any], seconds: float = CPU_S, wall: float = WALL_S) -> str:
        """Why this grammar (llguidance's own form) cannot be compiled; empty if it can. `seconds`: of a processor;
        `wall`: on a machine that is busy with other work, BusyError then.
        RefusalError where this machine starts no child, BusyError if it is too busy to try one."""
        client = TRIAL_CLIENT.get()
        key = hashlib.sha256(json.dumps([client.tenant, source, dict(limits)]).encode()).digest()
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        lane = self.small if len(source) <= SMALL_SOURCE_CHARS else self.large
        job = json.dumps({"source": source, "limits": dict(limits), "seconds": seconds}).encode()
        with lane.turn(client):
            verdict = lane.tried(job, seconds, client.left, wall)[:VERDICT_BYTES]
        if verdict == too_slow(seconds) and seconds < CPU_S:
            return verdict
        with self._lock:
            self._known[key] = verdict
            while len(self._known) * VERDICT_BYTES > KEPT_BYTES:
                self._known.popitem(last=False)
        return verdict


def too_slow(seconds: float) -> str:
    return f"it takes more than {seconds:.1f} s to compile"


def explained(verdict: str) -> bool:
    """Does a verdict come from the compiler, so that a part of the source is to blame?"""
    return verdict != TOO_DEEP and not verdict.startswith("it takes more than ")


SIGPROF = 27
"""Its number on Linux and macOS: the CPU limit's signal."""
TRIALS = Trials()
