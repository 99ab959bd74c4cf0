"""Logs: a line a request, what it cost, and no text unless it was asked for."""

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx2
import pytest

from paceline import AsyncLLM
from paceline.serve import logs
from paceline.serve.settings import Settings
from tests.patience import PATIENCE_S
from tests.serve.conftest import running

SECRET = "Tom has 3 zebras."
NAMES = ("paceline", "uvicorn", "uvicorn.error")


@contextmanager
def logged(
    engine: AsyncLLM, settings: Settings, stream: io.StringIO | None = None
) -> Iterator[tuple[httpx2.Client, io.StringIO]]:
    """A client of a server, and what that server logs."""
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(one.handlers, one.propagate, one.level) for one in loggers]
    stream = stream or io.StringIO()
    try:
        with running(engine, settings) as url, httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:
            logs.configure(settings, stream)
            yield client, stream
    finally:
        for one, (handlers, propagate, level) in zip(loggers, before):
            one.handlers, one.propagate = handlers, propagate
            one.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_one_json_line_a_request(engine: AsyncLLM) -> None:
    with logged(engine, Settings(log_format="json")) as (client, stream):
        body = {"prompt": SECRET, "max_tokens": 9, "n": 2, "ignore_eos": True}
        usage = client.post("/v1/completions", json=body, headers={"X-Request-Id": "me"}).json()["usage"]
        client.post("/v1/completions", json={"prompt": SECRET, "top_p": 7})
        client.get("/health")
    first, second = lines(stream)
    assert (first["id"], first["status"], first["path"], first["level"]) == ("me", 200, "/v1/completions", "info")
    assert first["prompt_tokens"] == usage["prompt_tokens"] and first["completion_tokens"] == 18
    assert first["tau"] == pytest.approx(usage["speculation"]["tau"], abs=1e-3)
    assert first["target_passes"] == usage["speculation"]["target_passes"]
    assert (first["samples"], first["finish"]) == (2, ["length"])
    assert 0 <= first["queue_s"] <= first["ttft_s"] <= first["engine_s"] <= first["total_s"]
    assert second["status"] == 400 and "samples" not in second
    assert "zebras" not in stream.getvalue()


def test_text_is_logged_only_when_asked(engine: AsyncLLM) -> None:
    with logged(engine, Settings(log_format="json", log_prompts=True)) as (client, stream):
        answer = client.post("/v1/completions", json={"prompt": SECRET, "max_tokens": 9}).json()["choices"][0]["text"]
    (text,) = lines(stream)[0]["texts"]
    assert SECRET in text["prompt"] and text["answer"] == answer


def test_the_format_follows_the_terminal(engine: AsyncLLM) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with logged(engine, Settings(), Terminal()) as (client, stream):
        client.get("/v1/models", headers={"X-Request-Id": "me"})
    assert "INFO    GET /v1/models 200 id=me total_s=" in stream.getvalue()


def test_a_debug_level_shows_the_probes(engine: AsyncLLM) -> None:
    with logged(engine, Settings(log_format="json", log_level="debug")) as (client, stream):
        client.get("/health")
    assert "GET /health 200" in stream.getvalue()


def test_exceptions_stay_on_one_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("paceline", logging.ERROR, __file__, 1, "%s", ("ü",), sys.exc_info())
    line = logs.JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == "ü" and "ValueError: two\nlines" in json.loads(line)["exception"]


def test_a_pipe_that_nobody_reads_holds_nobody_up() -> None:
    """More lines than the pipe and the memory for lines take; then somebody reads."""
    source, sink = os.pipe()
    logger = logging.Logger("unread")
    with suppress(BrokenPipeError), os.fdopen(sink, "w") as stream:  # lines behind the one that is looked for
        handler = logs.PatientHandler(stream)
        logger.addHandler(handler)
        for number in range(4000):
            logger.warning("%d %s", number, "x" * 1000)
        with os.fdopen(source, errors="replace") as reader:
            lines = [reader.readline().rstrip("x\n ") for _ in range(900)]
            while "are missing here" not in (line := reader.readline()):
                lines.append(line.rstrip("x\n "))
    assert lines[:900] == [str(number) for number in range(900)] and len(lines) < 4000
    assert line.startswith(f"{4000 - len(lines)} lines")


def test_every_line_is_there_at_the_end_of_a_process() -> None:
    code = """
import logging
from paceline.serve import logs
from paceline.serve.settings import Settings
logs.configure(Settings(log_format="human"))
for number in range(500):
    logging.getLogger("paceline").warning("line %d", number)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in done.stderr.splitlines()] == [str(number) for number in range(500)]
