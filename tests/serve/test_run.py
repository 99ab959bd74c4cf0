"""The server process: start, readiness, TLS, drain, exit codes."""

import asyncio
import json
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from paceline import LLM, AsyncLLM, SamplingParams
from paceline.core.errors import InputError
from paceline.serve.run import ACCEPTS, BACKLOG, address, bind, config
from paceline.serve.settings import Settings
from tests.serve.process import SERVE, WAIT_S, spawned, threaded

PROMPT = "Tom has 3 apples and buys 4 more."
LONG = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "stream": True, "speculation": {"drafter": "none"}}


def events(lines: list[str]) -> list[dict[str, object]]:
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def until_ready(client: httpx2.Client) -> None:
    end = time.monotonic() + WAIT_S
    while (response := client.get("/ready")).status_code != 200:
        assert response.status_code == 503 and response.headers["retry-after"] and time.monotonic() < end
        time.sleep(0.05)


async def test_sigterm_under_load(llm: LLM) -> None:
    """What runs is finished, what comes is sent elsewhere, the exit code is 0 and nothing was written twice."""
    with spawned(*SERVE, "--drain-timeout", str(WAIT_S), PACELINE_LOG_FORMAT="json") as (url, child):
        with httpx2.Client(base_url=url, timeout=WAIT_S) as client:
            until_ready(client)
        begun = asyncio.Semaphore(0)

        async def stream(seed: int) -> list[str]:
            lines = []
            async with client.stream("POST", "/v1/completions", json={**LONG, "seed": seed}) as response:
                assert response.status_code == 200
                async for line in response.aiter_lines():
                    lines.append(line)
                    if len(lines) == 1:
                        begun.release()
            return lines

        async with httpx2.AsyncClient(base_url=url, timeout=WAIT_S) as client:
            tasks = [asyncio.create_task(stream(seed)) for seed in range(2)]
            for _ in tasks:
                await begun.acquire()
            child.send_signal(signal.SIGTERM)
            while (late := await client.get("/ready")).status_code == 200:
                await asyncio.sleep(0.01)
            assert late.status_code == 503 and late.json()["error"]["code"] == "draining"
            refused = await client.post("/v1/completions", json={"prompt": PROMPT})
            assert refused.status_code == 503 and refused.headers["retry-after"]
            assert (await client.get("/health")).status_code == 200
            answers = await asyncio.gather(*tasks)
        _, log = child.communicate(timeout=WAIT_S)
        assert child.returncode == 0
        assert re.search(r"Speculation (saved|lost) [\d.]+ s", log), "the account, at the end"
        assert [json.loads(line)["status"] for line in log.splitlines() if '"/v1/completions"' in line].count(200) == 2
    for seed, lines in enumerate(answers):
        choices = [choice for event in events(lines) for choice in event["choices"]]  # type: ignore[attr-defined]
        want = llm.generate(PROMPT, SamplingParams(seed=seed, max_tokens=400, ignore_eos=True), progress=False)[0]
        assert "".join(choice["text"] for choice in choices) == want.text
        assert choices[-1]["finish_reason"] == "length" and lines[-2] == "data: [DONE]"


def test_what_outlasts_the_drain_is_told(engine: AsyncLLM) -> None:
    with threaded(engine, Settings(drain_timeout=0.2)) as (url, process), httpx2.Client(base_url=url) as client:
        until_ready(client)
        with client.stream("POST", "/v1/completions", json={**LONG, "n": 8}, timeout=WAIT_S) as response:
            lines = response.iter_lines()
            next(lines)
            process.handle_exit(signal.SIGTERM, None)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2][6:])["error"]["code"] == "draining"
    assert process.code == 0 and process.operation.unanswered == []


def test_the_second_signal_ends_at_once(engine: AsyncLLM) -> None:
    wish = {**LONG, "n": 8}
    with (
        threaded(engine, Settings(drain_timeout=WAIT_S)) as (url, process),
        httpx2.stream("POST", f"{url}/v1/completions", json=wish, timeout=WAIT_S) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        for _ in range(2):
            process.handle_exit(signal.SIGTERM, None)
        with pytest.raises(httpx2.TransportError):
            list(lines)


@pytest.mark.skipif(sys.platform != "linux", reason="the queue of a socket is read as Linux has it")
def test_many_may_wait_but_few_are_taken_in_a_turn(engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio's own loop takes as many connections in a turn as it is told that may wait."""
    socks = list[socket.socket]()

    def bound(host: str, port: int) -> socket.socket:
        socks.append(bind(host, port))
        return socks[-1]

    monkeypatch.setattr("tests.serve.process.bind", bound)
    with threaded(engine, Settings()) as (_, server):
        info = struct.unpack_from("8x6I", socks[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64))
        most = int(Path("/proc/sys/net/core/somaxconn").read_text())
        assert info[5] == min(BACKLOG, most) and server.config.backlog == ACCEPTS < info[5]


def test_tls(engine: AsyncLLM, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert),
            "-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]  # fmt: skip
    subprocess.run(make, check=True, capture_output=True)
    import ssl

    with threaded(engine, Settings(tls_cert=cert, tls_key=key)) as (url, _):
        assert url.startswith("https://")
        context = ssl.create_default_context(cafile=str(cert))
        assert httpx2.get(f"{url}/health", verify=context).status_code == 200
        with pytest.raises(httpx2.TransportError):
            httpx2.get(url.replace("https", "http") + "/health")
    with pytest.raises(InputError, match="tls_cert"):
        config(None, Settings(tls_cert=key, tls_key=key))


def test_an_address_in_use_is_found_before_the_model_is_loaded() -> None:
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert address(sock, Settings()) == f"http://127.0.0.1:{port}"
        sock.listen()
        with pytest.raises(InputError, match=f"port {port} cannot be used"):
            bind("127.0.0.1", port)


def test_a_failed_warm_up_ends_the_process(engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*args: object) -> None:
        raise OSError("no such device")

    monkeypatch.setattr(engine, "generate", fails)
    with threaded(engine, Settings()) as (_, process):
        end = time.monotonic() + WAIT_S
        while not process.code and time.monotonic() < end:
            time.sleep(0.02)
    assert process.code == 3
