"""smg, a router, in front of two servers: `pip install smg` to run it."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.serve.http import post, send
from tests.serve.process import SERVE, spawned

SMG = shutil.which("smg")
PROMPTS = [f"{name} packs six rolls in every bag and sells them all. " * 6 for name in ("Tom", "Ann", "Kim", "Bob")]

pytestmark = pytest.mark.skipif(SMG is None, reason="smg is not installed")


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, list[str]]]:
    """The router's address, and those of the servers behind it."""
    with spawned(*SERVE) as (first, _), spawned(*SERVE) as (second, _), socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = str(sock.getsockname()[1])
        sock.close()
        router = subprocess.Popen(
            [str(SMG), "launch", "--port", port, "--policy", "cache_aware", "--worker-urls", first, second],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        url, until = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE_S
        try:
            while not up(url):
                assert router.poll() is None and time.monotonic() < until
                time.sleep(0.2)
            yield url, [first, second]
        finally:
            router.kill()
            router.wait()


def up(url: str) -> bool:
    try:
        return send(f"{url}/v1/models")[0] == 200
    except OSError:
        return False


def ask(url: str, prompt: str) -> dict[str, Any]:
    wish = {"model": "demo", "prompt": prompt, "max_tokens": 8, "temperature": 0.8, "seed": 3}
    status, answer = post(f"{url}/v1/completions", wish)
    assert status == 200, answer
    found: dict[str, Any] = answer
    return found


def test_texts_are_those_of_one_server(servers: tuple[str, list[str]]) -> None:
    """A text does not depend on the server, and a prompt that comes again goes where its K/V is."""
    url, [first, _] = servers
    answers = [ask(url, prompt) for prompt in PROMPTS]
    again = [ask(url, prompt) for prompt in PROMPTS]
    texts = [ask(first, prompt)["choices"][0]["text"] for prompt in PROMPTS]
    assert [answer["choices"][0]["text"] for answer in answers] == texts
    assert [answer["choices"][0]["text"] for answer in again] == texts
    assert all(answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in again)
