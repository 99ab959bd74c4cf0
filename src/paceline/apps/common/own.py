"""A server of the application's own, for the time of one run: where nobody serves the model that was asked for."""

import asyncio
import os
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

from .client import CallError

OWN_SERVER_S = 600.0
"""Seconds until a server must answer: a model may have to be loaded from the network first."""
OWN_LOOK_S = 2.0
OWN_END_S = 20.0
"""Seconds that a server may take to end by itself."""


async def serves(url: str, model: str | None) -> bool:
    """Whether a server answers there, and has the model if one is named."""
    base = url.rstrip("/").removesuffix("/v1")
    try:
        async with httpx2.AsyncClient(base_url=base, timeout=OWN_LOOK_S) as http:
            answer = await http.get("/v1/models")
            if model is None or not answer.is_success:
                return True
            return model in {card.get("id") for card in answer.json().get("data", ())}
    except httpx2.TimeoutException:
        return True  # it is there, and busy
    except (httpx2.TransportError, ValueError, AttributeError):
        return False


@asynccontextmanager
async def own_server(model: str) -> AsyncIterator[str]:
    """Start `paceline serve MODEL` on a free port, give its address, and end it. Raises CallError with what it said
    where it does not start."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "server.log")
        with log.open("wb") as file:
            command = (sys.executable, "-m", "paceline", "serve", model, "--port", str(port))
            process = await asyncio.create_subprocess_exec(*command, stdout=file, stderr=file, env=environment())
        try:
            await answers(process, url, model, log)
            yield url
        finally:
            if process.returncode is None:
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), OWN_END_S)
            except TimeoutError:
                process.kill()
                await process.wait()


def environment() -> dict[str, str]:
    """Without settings of another server, such as a port or keys."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}


async def answers(process: asyncio.subprocess.Process, url: str, model: str, log: Path) -> None:
    ends = time.monotonic() + OWN_SERVER_S
    while not await serves(url, None):
        if process.returncode is not None or time.monotonic() > ends:
            said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise CallError("unreachable", f"No server of {model} could be started: {said[-1] if said else 'it ended'}")
        await asyncio.sleep(0.2)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
