"""What a server must survive: crowds, slow and lying clients, full caches, bad drafters, clocks, the engine's death."""

import asyncio
import json
import logging
import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx2
import psutil
import pytest

from paceline import LLM, AsyncLLM, SamplingParams
from paceline.core.forest import ROOT, Forest, Law
from paceline.core.system import allow_many_files
from paceline.draft import Ask, View
from paceline.serve.settings import Settings
from tests.patience import PATIENCE_S
from tests.serve.conftest import DEMO, running
from tests.serve.process import WAIT_S, spawned, threaded
from tests.serve.test_guard import connect, error, idle

PROMPTS = ["Tom has 3 apples and buys 4 more.", "A train leaves at noon.", "There are 12 eggs in a box."]
WISH = {"max_tokens": 40, "ignore_eos": True}
LONG = {"prompt": PROMPTS[0], "max_tokens": 900, "ignore_eos": True, "speculation": {"drafter": "none"}}


def solo(llm: LLM, prompt: str, seed: int, **more: Any) -> str:
    """The text of the request alone, decoded plainly."""
    params = SamplingParams(seed=seed, **{**WISH, **more})
    return llm.generate(prompt, params, progress=False)[0].text


def post(body: bytes, headers: bytes = b"") -> bytes:
    """The bytes of a request."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.fixture(scope="module")
def busy(engine: AsyncLLM) -> Iterator[str]:
    """A server with room for a crowd."""
    with running(engine, Settings(queue_limit=2000)) as url:
        yield url


# -- clients -----------------------------------------------------------------------------------------------------------


async def test_a_thousand_connections_at_once(busy: str, engine: AsyncLLM, llm: LLM) -> None:
    allow_many_files()
    host, port = busy.removeprefix("http://").split(":")
    want = {(p, seed): solo(llm, p, seed, max_tokens=2) for p in PROMPTS for seed in range(2)}
    ready = 0
    everybody = asyncio.Event()

    async def ask(i: int) -> str:
        nonlocal ready
        reader, writer = await asyncio.open_connection(host, int(port))
        ready += 1
        if ready == 1000:
            everybody.set()
        await everybody.wait()
        body = json.dumps({**WISH, "prompt": PROMPTS[i % 3], "seed": i % 2, "max_tokens": 2}).encode()
        writer.write(post(body, b"Connection: close\r\n"))
        answer = (await reader.read()).decode()
        writer.close()
        assert answer.startswith("HTTP/1.1 200 "), answer[:300]
        text: str = json.loads(answer.split("\r\n\r\n", 1)[1])["choices"][0]["text"]
        return text

    texts = await asyncio.gather(*(ask(i) for i in range(1000)))
    assert all(text == want[PROMPTS[i % 3], i % 2] for i, text in enumerate(texts))
    assert idle(engine)


def test_a_slow_reader_stalls_nobody_and_is_cut(engine: AsyncLLM) -> None:
    """It asks for much and reads nothing: memory stays bounded, others are served, its time ends."""
    body = json.dumps({**LONG, "n": 6, "stream": True, "logprobs": 10, "speculation": {"trace": True}}).encode()
    ask = {**WISH, "prompt": PROMPTS[1]}
    with (
        running(engine, Settings(request_timeout=5)) as url,
        running(engine, Settings()) as patient,
        connect(url, receive=4096) as sock,
        httpx2.Client(timeout=PATIENCE_S) as client,
    ):
        assert client.post(f"{patient}/v1/completions", json=ask).status_code == 200
        before = psutil.Process().memory_info().rss
        sock.sendall(post(body))
        while not engine.snapshot.running:
            time.sleep(0.01)
        for _ in range(2):
            assert client.post(f"{patient}/v1/completions", json=ask).status_code == 200
            assert client.get(f"{url}/version").status_code == 200
        assert psutil.Process().memory_info().rss - before < 100 * 2**20
        assert idle(engine)
        time.sleep(5)
        sock.settimeout(30)
        received = b""
        while piece := sock.recv(1 << 16):  # ends because the server closes, not because we do
            received += piece
        assert received.startswith(b"HTTP/1.1 200 ")
        assert b'"code":"timeout"' in received or b"[DONE]" not in received


def test_a_client_that_leaves_is_counted_and_costs_nothing_more(busy: str, engine: AsyncLLM) -> None:
    for stream in (True, False):
        before = httpx2.get(f"{busy}/metrics").text
        body = json.dumps({**LONG, "n": 8, "stream": stream}).encode()
        with connect(busy) as sock:
            sock.sendall(post(body))
            while not engine.snapshot.running:
                time.sleep(0.01)
        assert idle(engine)
        after = httpx2.get(f"{busy}/metrics").text
        assert count(after, "client_disconnects_total") == count(before, "client_disconnects_total") + 1
        aborted = 'request_success_total{finished_reason="abort"}'
        assert count(after, aborted) == count(before, aborted) + 8


def count(metrics: str, name: str) -> float:
    lines = [line for line in metrics.splitlines() if line.startswith(f"paceline_{name} ")]
    return float(lines[0].split()[-1]) if lines else 0.0


@pytest.mark.parametrize("chunked", [True, False])
def test_a_huge_body_is_not_kept(busy: str, chunked: bool) -> None:
    """64 MB against a limit of 4: refused, and never in memory."""
    piece, before = b"x" * 2**16, psutil.Process().memory_info().rss
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % (2**16 * 1024)
    with connect(busy) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + framing + b"\r\n\r\n")
        try:
            for _ in range(1024):
                sock.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
        except OSError:  # the server may hang up on the rest
            pass
        assert sock.recv(1000).startswith(b"HTTP/1.1 413 ")
    assert psutil.Process().memory_info().rss - before < 32 * 2**20
    assert httpx2.get(f"{busy}/health").status_code == 200


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b"\xff\xfe{}", b"[" * 100_000, b'{"prompt":' * 10_000, b'{"prompt": NaN}', b"null"]
)
def test_malformed_bodies(busy: str, body: bytes) -> None:
    response = httpx2.post(f"{busy}/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400 and error(response)["type"] == "invalid_request_error"


# -- the engine under pressure -----------------------------------------------------------------------------------------


def test_a_prompt_that_fills_the_context(busy: str, engine: AsyncLLM) -> None:
    size = engine.llm.engine.model.max_len
    full = httpx2.post(f"{busy}/v1/completions", json={"prompt": [7] * size}, timeout=PATIENCE_S)
    assert full.status_code == 400 and f"the context holds {size}" in error(full)["message"]
    last = httpx2.post(f"{busy}/v1/completions", json={"prompt": [7] * (size - 1), **WISH}, timeout=PATIENCE_S).json()
    assert last["usage"]["completion_tokens"] == 1 and last["choices"][0]["finish_reason"] == "length"
    near = httpx2.post(f"{busy}/v1/completions", json={"prompt": [7] * (size - 9), **WISH}, timeout=PATIENCE_S).json()
    assert near["usage"]["completion_tokens"] == 9 and near["choices"][0]["finish_reason"] == "length"


async def test_kv_exhausted_loses_nothing(llm: LLM) -> None:
    """A cache for three of twelve requests: pre-empted, finished, each equal to its solo run."""
    small = AsyncLLM(dtype="float32", blocks=12)
    with running(small, Settings()) as url:
        async with httpx2.AsyncClient(base_url=url, timeout=WAIT_S) as client:

            async def ask(i: int) -> dict[str, Any]:
                drafter = ("model", "ngram", "none")[i % 3]
                body = {
                    **WISH,
                    "prompt": PROMPTS[i % 3],
                    "seed": i,
                    "speculation": {"drafter": drafter},
                    "max_tokens": 40,
                }
                response = await client.post("/v1/completions", json=body)
                assert response.status_code == 200, response.text
                answer: dict[str, Any] = response.json()
                return answer

            answers = await asyncio.gather(*(ask(i) for i in range(12)))
            stats = (await client.get("/stats")).json()
    small.close()
    assert stats["preemptions"] > 3 and stats["running"] == stats["waiting"] == stats["kv"]["used"] == 0
    for i, answer in enumerate(answers):
        assert answer["choices"][0]["text"] == solo(llm, PROMPTS[i % 3], i, max_tokens=40)


NONSENSE: list[Any] = [None, ["x"], [10**9], [-1], [(1, 5)], [(1, 2, 3)], 7, [1.5], [None]]


class Liar:
    """A drafter that no registry checked: its nodes are for a place that did not ask, with tokens that do not exist."""

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        forest = Forest()
        forest.add(len(asks) + 5, 10**9, ROOT, law=Law.POINT)
        return forest

    def learn(self, view: View) -> None:
        raise AssertionError("nothing was accepted")


def test_drafters_that_raise_or_return_nonsense(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    """The request goes on without its drafter, and that is counted and logged."""
    answers = iter([*NONSENSE, OSError("no luck")])

    def drafter(tokens: list[int], nodes: int) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    engine = AsyncLLM(None, None, drafter, **DEMO)
    with running(engine, Settings()) as url, caplog.at_level(logging.WARNING, "paceline"):
        for i in range(len(NONSENSE) + 1):
            body = {**WISH, "prompt": PROMPTS[0], "seed": i, "max_tokens": 9}
            response = httpx2.post(f"{url}/v1/completions", json=body, timeout=PATIENCE_S)
            assert response.json()["choices"][0]["text"] == solo(llm, PROMPTS[0], i, max_tokens=9), i
        engine.llm.engine.drafters.drafters["ngram"] = Liar()
        for i in range(2):
            body = {**WISH, "prompt": PROMPTS[0], "seed": i, "max_tokens": 9, "speculation": {"drafter": "ngram"}}
            response = httpx2.post(f"{url}/v1/completions", json=body, timeout=PATIENCE_S)
            assert response.json()["choices"][0]["text"] == solo(llm, PROMPTS[0], i, max_tokens=9)
        metrics, stats = httpx2.get(f"{url}/metrics").text, httpx2.get(f"{url}/stats").json()
    engine.close()
    assert count(metrics, 'drafter_errors_total{drafter="user"}') == len(NONSENSE) + 1
    assert count(metrics, 'drafter_errors_total{drafter="ngram"}') == 2 == stats["drafter_errors"] - len(NONSENSE) - 1
    assert sum("its 1 requests continue without it" in r.message for r in caplog.records) == len(NONSENSE) + 3


def test_a_clock_that_jumps(busy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Days forward and back: no time limit fires, no duration is odd."""
    real, jumps = time.time, iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: real() + (-1) ** next(jumps) * 86_400)
    before = httpx2.get(f"{busy}/metrics").text
    for _ in range(3):
        assert (
            httpx2.post(f"{busy}/v1/completions", json={**WISH, "prompt": PROMPTS[0]}, timeout=PATIENCE_S).status_code
            == 200
        )
    after = httpx2.get(f"{busy}/metrics").text
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "time_per_output_token"):
        grown = count(after, f"{name}_seconds_sum") - count(before, f"{name}_seconds_sum")
        assert 0 <= grown < 60
        assert count(after, f"{name}_seconds_count") == count(before, f"{name}_seconds_count") + 3


# -- the engine's death ------------------------------------------------------------------------------------------------


async def test_the_death_of_the_engine_reaches_everybody() -> None:
    """Health turns red, streams get an event and answers an error object, and the process ends with code 3."""
    engine = AsyncLLM(**DEMO)
    with threaded(engine, Settings()) as (url, process):
        async with httpx2.AsyncClient(base_url=url, timeout=WAIT_S) as client:
            whole = asyncio.create_task(client.post("/v1/completions", json={**LONG, "n": 4}))
            async with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
                lines = response.aiter_lines()
                await anext(lines)
                fail_next_step(engine)
                rest = [line async for line in lines if line]
            assert json.loads(rest[-2][6:])["error"]["type"] == "server_error" and rest[-1] == "data: [DONE]"
            answer = await whole
            assert answer.status_code == 500 and error(answer)["type"] == "server_error"
        while not process.code:
            await asyncio.sleep(0.02)
    assert process.code == 3 and process.operation.unanswered == []
    with running(engine, Settings()) as url:
        for path in ("/health", "/ready"):
            assert httpx2.get(url + path).status_code == 503
        refused = httpx2.post(f"{url}/v1/completions", json={**WISH, "prompt": PROMPTS[0]})
        assert refused.status_code == 503 and error(refused)["code"] == "engine_dead"
    engine.close()


def fail_next_step(engine: AsyncLLM) -> None:
    def dies() -> None:
        raise OSError("disk on fire")

    engine.llm.engine.step = dies  # type: ignore[method-assign, assignment]


def test_the_death_of_the_engine_ends_the_process() -> None:
    code = """
        import sys
        from paceline import AsyncLLM
        from paceline.serve.run import bind, run
        from paceline.serve.settings import Settings

        llm, real = AsyncLLM(dtype="float32", blocks=600), None
        def step(left=[40]):
            left[0] -= 1
            if not left[0]:
                raise OSError("disk on fire")
            return real()
        real, llm.llm.engine.step = llm.llm.engine.step, step
        code = run(llm, Settings(), bind("127.0.0.1", 0), lambda url: print(f"at {url}/v1", flush=True))
        llm.close()
        sys.exit(code)
    """
    with spawned("-c", textwrap.dedent(code)) as (url, child):
        response = httpx2.post(f"{url}/v1/completions", json=LONG, timeout=WAIT_S)
        assert response.status_code == 500 and error(response)["type"] == "server_error"
        _, log = child.communicate(timeout=WAIT_S)
        assert child.returncode == 3 and "disk on fire" in log
