"""llama.cpp: a llama-server of its own; alone, with --spec-type draft-simple, or with --spec-type ngram-map-k."""

import atexit
import json
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from tempfile import gettempdir
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

from protocol import Generate, Ids, serve

from paceline.native.build import abilities

NGRAM = 3
"""Length of the run of tokens that ngram-map-k looks for."""
START_SECONDS = 120
DIRECT = build_opener(ProxyHandler({}))
"""The server is on this machine, whatever http_proxy says."""


def load(spec: dict[str, Any]) -> tuple[Generate, dict[str, str]]:
    more = ["--no-webui", *speculation(spec)]
    if "amx_tile" in abilities():
        more += ["--no-repack"]  # repacked quantised weights crash the AMX back end (llama.cpp#20824)
    port = start(spec, more)
    pool = ThreadPoolExecutor(spec["batch"])

    def generate(prompts: Ids, max_tokens: int) -> Ids:
        return list(pool.map(lambda ids: complete(port, ids, max_tokens), prompts))

    return generate, {"llama.cpp": version(spec["options"]["server"])}


def start(spec: dict[str, Any], more: list[str]) -> int:
    """The port of a server with these further options, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    batch, threads = spec["batch"], str(spec["threads"])
    command = [spec["options"]["server"], "-m", spec["model"], "--host", "127.0.0.1", "--port", str(port)]
    command += ["-t", threads, "-tb", threads, "-c", str(batch * context(spec)), "-np", str(batch)]
    logs = gettempdir()  # ik_llama.cpp writes its llama.log where it runs
    process = subprocess.Popen([*command, *more], stdout=sys.stderr, stderr=sys.stderr, cwd=logs)
    atexit.register(end, process)
    wait(process, port)
    return port


def context(spec: dict[str, Any]) -> int:
    """Tokens of one slot: a draft needs room beyond the last token."""
    return -(-(spec["max_len"] + 32) // 256) * 256


def speculation(spec: dict[str, Any]) -> list[str]:
    k, n = str(spec["k"]), str(NGRAM)
    return {
        "plain": [],
        "draft": ["-md", str(spec["draft"]), "--spec-type", "draft-simple", "--spec-draft-n-max", k],
        "lookup": ["--spec-type", "ngram-map-k", "--spec-ngram-map-k-size-n", n, "--spec-ngram-map-k-size-m", k],
    }[spec["mode"]]


def wait(process: "subprocess.Popen[bytes]", port: int) -> None:
    """Until the server answers. Raises RuntimeError when it ends or takes too long."""
    for _ in range(10 * START_SECONDS):
        if process.poll() is not None:
            raise RuntimeError(f"llama-server ended with code {process.returncode} while loading.")
        try:
            with DIRECT.open(f"http://127.0.0.1:{port}/health", timeout=1):
                return
        except (URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"llama-server did not answer within {START_SECONDS} seconds.")


def end(process: "subprocess.Popen[bytes]") -> None:
    """Wait for it too: the next tool must find the machine empty."""
    process.terminate()
    process.wait()


def complete(port: int, prompt: list[int], max_tokens: int) -> list[int]:
    """Ids of one answer; the prompt goes as ids, to which the server adds nothing."""
    wish = {"prompt": prompt, "n_predict": max_tokens, "temperature": 0, "cache_prompt": False, "return_tokens": True}
    answer = post(port, "completion", wish)
    if answer["tokens_evaluated"] != len(prompt):
        raise ValueError(f"The server read {answer['tokens_evaluated']} prompt tokens, but {len(prompt)} were given.")
    if answer["tokens_predicted"] != len(answer["tokens"]):
        raise ValueError(f"The server counts {answer['tokens_predicted']} tokens, but gave {len(answer['tokens'])}.")
    return list(answer["tokens"])


def post(port: int, path: str, wish: dict[str, Any]) -> dict[str, Any]:
    body = json.dumps(wish).encode()
    request = Request(f"http://127.0.0.1:{port}/{path}", body, {"Content-Type": "application/json"})
    with DIRECT.open(request) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def version(server: str) -> str:
    """As the server names itself."""
    done = subprocess.run([server, "--version"], capture_output=True, text=True)
    said = (done.stdout + done.stderr).splitlines()
    return next((line.partition(":")[2].strip() for line in said if line.startswith("version")), "unknown")


if __name__ == "__main__":
    serve(load)
