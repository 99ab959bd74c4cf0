"""A log of what a run did, one JSON object a line, and its replay.

Lines with `event: "call"` hold a request's digest and its reply, so that a run can be repeated without a server; lines
with `event: "node"` say when each task of a graph began and ended. Keys and addresses are not written.
"""

import hashlib
import json
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO


class TapeError(Exception):
    """A tape that cannot be read, or that lacks a call."""


class Tape:
    """Where a run is written, or read back from.

    `Tape.record(path)` writes; `Tape.replay(path)` answers each call as it was answered then: equal requests in the
    order of their first answers. A request that is not on the tape raises TapeError.
    """

    def __init__(self, out: TextIO | None, replies: dict[str, deque[Any]] | None) -> None:
        self._out, self._replies, self._began = out, replies, time.monotonic()

    @classmethod
    def record(cls, path: Path) -> "Tape":
        """A new tape; what was at `path` is replaced."""
        path.parent.mkdir(parents=True, exist_ok=True)
        return cls(path.open("w", encoding="utf-8"), None)

    @classmethod
    def replay(cls, path: Path) -> "Tape":
        """The calls of an earlier run. Raises TapeError."""
        replies: dict[str, deque[Any]] = defaultdict(deque)
        try:
            for line in path.read_text(encoding="utf-8").splitlines():
                event = json.loads(line)
                if event["event"] == "call":
                    replies[event["key"]].append(event["reply"])
        except (OSError, ValueError, KeyError) as error:
            raise TapeError(f"{path} is not a log of calls ({error}); give a file that --log wrote.") from error
        return cls(None, replies)

    @property
    def replaying(self) -> bool:
        return self._replies is not None

    def recall(self, path: str, body: Mapping[str, Any]) -> Any:
        """The reply that this request had. Raises TapeError where it had none."""
        assert self._replies is not None
        left = self._replies.get(digest(path, body))
        if not left:
            raise TapeError(f"The log holds no further reply to this request to {path}; record the run again.")
        return left.popleft() if len(left) > 1 else left[0]

    def call(self, path: str, body: Mapping[str, Any], reply: Any, seconds: float) -> None:
        """Note one answered request."""
        self.write("call", key=digest(path, body), path=path, reply=reply, seconds=round(seconds, 6))

    def write(self, event: str, **fields: Any) -> None:
        """Note anything; `at` is seconds from the start of the run."""
        if self._out is not None:
            at = round(time.monotonic() - self._began, 6)
            self._out.write(json.dumps({"event": event, "at": at, **fields}, ensure_ascii=False, default=str) + "\n")
            self._out.flush()

    def close(self) -> None:
        if self._out is not None:
            self._out.close()
            self._out = None


def digest(path: str, body: Mapping[str, Any]) -> str:
    """A name for a request: equal bodies have equal names, however their keys are ordered."""
    text = json.dumps([path, body], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
