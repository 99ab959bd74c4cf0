"""Logs: one line a request, as text on a terminal and as JSON elsewhere. Never a prompt, unless a setting says so."""

import json
import logging
import re
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, TextIO

from paceline.engine.door import Trip
from paceline.serve.calls import HttpCall
from paceline.serve.settings import Settings

MOST_TRACE, MOST_PATH, MOST_REASON = 8192, 200, 500
"""Maximum characters of a traceback, of a path, and of an error message in the log."""
MOST_UNWRITTEN = 1 << 20
"""Characters of log lines that wait to be written."""
LOG_FLUSH_S = 2.0
LOST = "%d lines of the log are missing here: nobody read it."
log = logging.getLogger("paceline")
access = logging.getLogger("paceline.access")
QUIET = ("/health", "/ready", "/metrics", "/stats")
"""Paths that are polled: logged at level debug while they answer 200."""


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message and, for a request, its `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        data: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": printable(record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            data["exception"] = brief_trace(self.formatException(record.exc_info))
        return printable(json.dumps(data, ensure_ascii=False, default=str))


class HumanFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        line = super().format(record)
        more = "".join(f" {k}={_brief(v)}" for k, v in fields.items() if k not in ("method", "path", "status"))
        head, *trace = line.split("\n") if record.exc_info else [line]
        return "\n".join([printable(head) + more, *map(printable, trace)])

    def formatException(self, ei: Any) -> str:
        return brief_trace(super().formatException(ei))


def _brief(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else printable(str(value))


LOG_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""What would begin a line of its own, steer a terminal, or is no character."""


def printable(text: str) -> str:
    """The text with such characters as escape sequences: what a client sends can forge no line."""
    return LOG_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def brief_trace(text: str) -> str:
    """A traceback with its middle left out where it is long."""
    if len(text) <= MOST_TRACE:
        return text
    left_out = len(text) - MOST_TRACE
    return f"{text[: MOST_TRACE // 2]}\n[{left_out} characters left out]\n{text[-MOST_TRACE // 2 :]}"


class PatientHandler(logging.Handler):
    """Writes lines in a thread of its own, so that no caller waits for the reader of a pipe. Lines that wait
    are bounded; beyond that they are counted, and the log says how many are missing once it is read again."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream
        self._lines: deque[str] = deque()
        self._size = self._dropped = 0
        self._writing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
        except Exception:  # a record that cannot be formatted: as every handler of logging does
            self.handleError(record)
            return
        with self._changed:
            if self._size + len(line) > MOST_UNWRITTEN:
                self._dropped += 1
                return
            self._add(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="paceline-log", daemon=True)
                self._thread.start()

    def _add(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line)
        self._changed.notify_all()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                line, self._writing = self._lines.popleft(), True
                self._size -= len(line)
                lost, self._dropped = self._dropped, 0
            with suppress(OSError, ValueError):  # nobody reads, or the stream is closed
                self.stream.write(line)
                self.stream.flush()
            if lost:
                record = logging.LogRecord(log.name, logging.WARNING, "", 0, LOST, (lost,), None)
                with self._changed:
                    self._add(self.format(record) + "\n")

    def flush(self) -> None:
        """Wait a moment for what is not written yet: for the end of the process."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._writing, LOG_FLUSH_S)


def configure(settings: Settings, stream: TextIO | None = None) -> None:
    """Send the logs of Paceline and of uvicorn to `stream` (stderr) in the format of the settings."""
    stream = stream or sys.stderr
    human = settings.log_format == "human" or (settings.log_format == "auto" and stream.isatty())
    handler = PatientHandler(stream)
    handler.setFormatter(HumanFormatter() if human else JsonFormatter())
    for name in ("paceline", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(settings.log_level.upper())
    quiet = logging.WARNING if settings.log_level == "info" else logging.NOTSET
    logging.getLogger("uvicorn.error").setLevel(quiet)


def log_call(call: HttpCall, texts: list[dict[str, str]] | None = None) -> None:
    """The line of one HTTP request; `texts` are prompts and answers where those may be logged."""
    ok = call.status is not None and call.status < 500
    level = logging.WARNING if not ok else logging.DEBUG if call.path in QUIET else logging.INFO
    fields = summary(call)
    if texts:
        fields["texts"] = texts
    access.log(level, "%s %s %s", call.method, fields["path"], fields["status"], extra={"fields": fields})


def summary(call: HttpCall) -> dict[str, Any]:
    """What a request cost. Times in seconds; those of the engine are of its slowest sample."""
    fields: dict[str, Any] = {
        "id": call.id,
        "method": call.method,
        "path": call.path[:MOST_PATH],
        "status": 499 if call.gone else call.status,
        "total_s": round((call.answered or call.arrived) - call.arrived, 6),
    }
    if call.fault is not None:
        fields["error"] = call.fault.message[:MOST_REASON]
        fields |= {"param": call.fault.param} if call.fault.param else {}
        fields |= {"code": call.fault.code} if call.fault.code else {}
    if call.reason is not None:
        fields["ended_early"] = call.reason.code
    return {**fields, **_engine(call)} if call.trips else fields


def _engine(call: HttpCall) -> dict[str, Any]:
    requests, stats = [trip.request for trip in call.trips], call.stats
    fields: dict[str, Any] = {
        "samples": len(requests),
        "prompt_tokens": sum({r.group: len(r.prompt) for r in requests}.values()),
        "cached_tokens": sum({r.group: r.stats.cached for r in requests}.values()),
        "completion_tokens": stats.generated,
        "finish": sorted({r.finish or "error" for r in requests}),
        "drafter": requests[0].drafter,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "target_passes": stats.passes,
        "tau": round(stats.tau, 4),
        "preempted": stats.preempted,
    }
    return {**fields, **_times(call.trips)}


def _times(trips: list[Trip]) -> dict[str, float]:
    spans = {
        "queue_s": [t.started - t.arrived for t in trips if t.started is not None],
        "ttft_s": [t.first - t.arrived for t in trips if t.first is not None],
        "engine_s": [t.ended - t.arrived for t in trips if t.ended is not None],
    }
    return {name: round(max(values), 6) for name, values in spans.items() if values}
