"""Engines as Ray actors: one is killed in mid-text, a request moves, and the text is that of an engine alone; the same
by `paceline serve --cluster`, whose own death ends its engines."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from openai import OpenAI

ray = pytest.importorskip("ray", reason="needs paceline[cluster]")
from paceline import AsyncLLM, SamplingParams  # noqa: E402
from paceline.cluster.live.actors import ActorLink, RaySession, join  # noqa: E402
from paceline.cluster.live.engines import Engines  # noqa: E402
from paceline.cluster.live.front import ClusterLLM  # noqa: E402
from paceline.engine.options import Options  # noqa: E402
from tests.cluster.live.test_live import heard  # noqa: E402
from tests.cluster.waits import until as come  # noqa: E402

pytestmark = pytest.mark.full
OPTIONS: dict[str, Any] = {"dtype": "bfloat16", "blocks": 300, "drafter": "ngram"}
ASKED = SamplingParams(temperature=0.8, seed=3, max_tokens=300, ignore_eos=True)


@pytest.fixture
def here() -> Iterator[RaySession]:
    yield join(None)
    ray.shutdown()


async def test_killed_and_moved(here: RaySession) -> None:
    async with AsyncLLM(**OPTIONS) as llm:
        want = await heard(llm, ASKED)
    engines = Engines(lambda name: ActorLink(name, OPTIONS, 0.0, {"OMP_NUM_THREADS": "1"}, here))
    await engines.start(2)
    cluster = ClusterLLM(engines, Options(**OPTIONS))
    assert {os.getpriority(os.PRIO_PROCESS, state.facts.process) for state in engines.states.values()} == {
        os.getpriority(os.PRIO_PROCESS, 0)
    }
    for kill in (False, True):
        asking = asyncio.create_task(heard(cluster, ASKED))
        await come(lambda: any(len(voyage.request.output) > 20 for voyage in engines.voyages.going), [asking])
        [voyage] = engines.voyages.going
        if kill:
            voyage.link.actor.leave_at_once.remote()  # type: ignore[attr-defined]
        else:
            [to] = [state.link for state in engines.states.values() if state.link is not voyage.link]
            assert await engines.move(voyage, to) in ("moved", "ended")
        assert await asyncio.wait_for(asking, 240) == want
    assert engines.lost_count == 1
    await engines.close()


def serve(port: int) -> subprocess.Popen[bytes]:
    """`paceline serve --cluster`, ready."""
    options = ["--cluster", "--engines", "2", "--port", str(port), "--dtype", "bfloat16", "--blocks", "300"]
    process = subprocess.Popen([sys.executable, "-m", "paceline", "serve", *options, "--log-level", "error"])

    def ready() -> bool:
        assert process.poll() is None
        try:
            return httpx.get(f"http://127.0.0.1:{port}/ready", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    until(ready, 240)
    return process


def until(true: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"it did not come within {seconds:g} s"
        time.sleep(0.2)


def processes(port: int) -> list[int]:
    return [each["process"] for each in httpx.get(f"http://127.0.0.1:{port}/cluster", timeout=60).json()["engines"]]


def test_a_stream_outlives_its_engine_and_engines_end_with_their_front() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=300)
    ask: dict[str, Any] = {
        "model": "demo", "prompt": "Tom has 3", "max_tokens": 900, "temperature": 0.8, "seed": 3,
        "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    first = serve(port)
    try:
        want, text = client.completions.create(**ask).choices[0].text, ""
        for number, event in enumerate(client.completions.create(**ask, stream=True)):
            text += event.choices[0].text if event.choices else ""
            if number == 20:
                now = httpx.get(f"http://127.0.0.1:{port}/cluster", timeout=60).json()["engines"]
                [busy] = [each["process"] for each in now if each["samples"]]
                os.kill(busy, signal.SIGKILL)
        assert text == want
        until(lambda: len(processes(port)) == 2, 240)
        mine = processes(port)
        first.kill()
        first.wait(60)
        until(lambda: not any(Path(f"/proc/{process}").exists() for process in mine), 60)
    finally:
        first.kill()
    second = serve(port)
    try:
        assert client.completions.create(**ask).choices[0].text == want
    finally:
        second.terminate()
        assert second.wait(60) == 0


def test_what_a_stopped_engine_has_is_answered_before_the_server_ends() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=300)
    ask: dict[str, Any] = {
        "model": "demo", "prompt": "Tom has 3", "max_tokens": 1500, "temperature": 0.8, "seed": 3,
        "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    server = serve(port)
    try:
        want, text, busy = client.completions.create(**ask).choices[0].text, "", []
        for number, event in enumerate(client.completions.create(**ask, stream=True)):
            text += event.choices[0].text if event.choices else ""
            if number == 20:
                now = httpx.get(f"http://127.0.0.1:{port}/cluster", timeout=60).json()["engines"]
                busy = [each["process"] for each in now if each["samples"]]
                os.kill(busy[0], signal.SIGSTOP)
                server.terminate()
        assert text == want and len(busy) == 1
        assert server.wait(60) == 0
        until(lambda: not Path(f"/proc/{busy[0]}").exists(), 60)
    finally:
        server.kill()


def test_without_ray_s_head_no_engine_is_waited_for() -> None:
    """One that loads is given up, and one that is asked for is refused; those that are there serve."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server, at = serve(port), f"http://127.0.0.1:{port}"
    try:
        first = httpx.get(f"{at}/cluster").json()["engines"][0]["process"]
        os.kill(first, signal.SIGKILL)
        until(lambda: httpx.get(f"{at}/cluster").json()["coming"] == 1, 60)
        [head] = subprocess.check_output(["pgrep", "-P", str(server.pid), "gcs_server"]).split()
        os.kill(int(head), signal.SIGKILL)
        for path, body in (("scale", {"engines": 4}), ("renew", {})):
            answer = httpx.post(f"{at}/cluster/{path}", json=body, timeout=20)
            assert answer.status_code == 503 and "head" in answer.json()["error"]["message"], answer.text
        answer = httpx.post(f"{at}/v1/completions", json={"prompt": "a", "max_tokens": 4}, timeout=20)
        assert answer.status_code == 200
    finally:
        server.kill()
