"""A server process: uvicorn around the application, drained on SIGTERM, ended by the engine's death."""

import asyncio
import gc
import logging
import os
import socket
import ssl
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from paceline.core.errors import InputError
from paceline.core.files import open_regular
from paceline.core.system import allow_many_files
from paceline.engine.async_llm import AsyncLLM
from paceline.serve.app import create_app
from paceline.serve.connections import protocol
from paceline.serve.operation import Operation
from paceline.serve.server import ServedHost
from paceline.serve.settings import Settings

log = logging.getLogger("paceline")
ENGINE_DIED = 3
"""Exit code when the engine thread died, or the warm-up failed."""
BACKLOG = 2048
ACCEPTS = 16
"""Connections that are taken in one turn of the loop. asyncio's own loop takes as many as may wait, and would be kept
for seconds."""
SWITCH_S = 0.0005
"""Seconds for which a thread keeps Python's lock while another one waits. The engine's thread takes it several times a
pass, and during a crowd of requests each time would cost Python's own 5 ms."""
CONNECTION_LINGER_S = 2
"""How long connections that do not read their last answer are kept at the end."""


class Process(uvicorn.Server):
    """uvicorn that drains. The first SIGTERM or SIGINT begins, the second ends at once."""

    def __init__(self, config: uvicorn.Config, operation: Operation, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self.operation, self.announce = operation, announce
        self.code = 0
        self._signals = 0
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Runs between any two instructions of the main thread: it only takes note."""
        self._signals += 1
        if self._signals > 1:
            self.should_exit = self.force_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(BACKLOG)  # uvicorn has made it as many as are taken in a turn
        sys.setswitchinterval(SWITCH_S)
        gc.collect()
        gc.freeze()  # models and libraries stay: no search for garbage looks at them again
        self.announce()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: is it time to go?"""
        operation = self.operation
        if self._signals and self._draining is None:
            log.info("Shutting down: %d requests in flight.", len(operation.unanswered))
            self._draining = asyncio.create_task(operation.drain())
        if not operation.host.alive or operation.failed is not None:
            self.code = ENGINE_DIED
            await operation.settle()
            return True
        drained = self._draining is not None and self._draining.done()
        return drained or await super().on_tick(counter)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens: an address in use is found before a model is loaded, also one that another server, still
    loading, has taken. New connections wait meanwhile."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        sock.close()
        raise InputError(f"host {host}, port {port} cannot be used ({error}); choose others.") from None
    return sock


def address(sock: socket.socket, settings: Settings) -> str:
    """Where a browser on this machine finds the server."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """uvicorn's configuration. InputError for certificate files that cannot be used."""

    def tidy() -> None:
        if (operation := getattr(app.state, "operation", None)) is not None and operation.tidy is not None:
            operation.tidy()

    for name in ("tls_cert", "tls_key"):
        if (path := getattr(settings, name)) is not None:
            open_regular(path, name).close()  # a pipe would be waited for
    made = uvicorn.Config(
        app,
        http=protocol(settings, tidy),
        ws="none",  # nothing here speaks it, and the guard sees HTTP alone
        log_config=None,
        backlog=ACCEPTS,
        access_log=False,
        proxy_headers="FORWARDED_ALLOW_IPS" in os.environ,  # else anybody on this machine could call himself another
        server_header=False,
        timeout_graceful_shutdown=CONNECTION_LINGER_S,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    try:
        made.load()
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"tls_cert {settings.tls_cert} or tls_key cannot be used ({error}).") from None
    return made


def run(llm: AsyncLLM | ServedHost, settings: Settings, sock: socket.socket, announce: Callable[[str], None]) -> int:
    """Serve until stopped. Returns the exit code. `announce` is called with the address once requests are taken."""
    allow_many_files()
    return serve_app(create_app(llm, settings), settings, sock, announce)


def serve_app(app: FastAPI, settings: Settings, sock: socket.socket, announce: Callable[[str], None]) -> int:
    """Serve an application that `operation.install` has been given, as `run` does."""
    process = Process(config(app, settings), app.state.operation, lambda: announce(address(sock, settings)))
    process.run([sock])
    app.state.host.pools.close()
    return process.code


async def serving(app: FastAPI, settings: Settings, sock: socket.socket, announce: Callable[[str], None]) -> int:
    """As `serve_app`, in the event loop that runs."""
    allow_many_files()
    process = Process(config(app, settings), app.state.operation, lambda: announce(address(sock, settings)))
    await process.serve([sock])
    app.state.host.pools.close()
    return process.code
