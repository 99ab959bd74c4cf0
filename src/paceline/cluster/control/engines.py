"""Engines that a controller can ask: HTTP servers, and what any kind of them answers."""

from dataclasses import dataclass
from typing import Protocol

from paceline.bench.load.client import Client, LoadClock, Whole
from paceline.core.errors import InputError


class EngineLost(Exception):
    """The engine died, or cannot be reached: its calls must run elsewhere."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP response; `body` is JSON."""

    status: int
    body: bytes


class RemoteEngine(Protocol):
    """One engine that speaks OpenAI's protocol."""

    async def ask(self, path: str, body: bytes | None) -> Reply:
        """POST a body to a path below /v1, or GET it. Raises EngineLost."""
        ...

    async def alive(self) -> bool:
        """Would it answer now?"""
        ...


class HttpEngine:
    """A server at an address."""

    def __init__(self, url: str, key: str | None = None, timeout: float = 600.0) -> None:
        self.url, self._client, self._timeout = url, Client(url, LoadClock(), key), timeout

    async def ask(self, path: str, body: bytes | None) -> Reply:
        sink = Whole()
        try:
            await self._client.send(path, sink, self._timeout, body)
        except OSError as error:  # ConnectionError and TimeoutError too
            raise EngineLost(f"{self.url}: {error or 'no answer in time'}") from error
        return Reply(sink.status, sink.data)

    async def alive(self) -> bool:
        try:
            await self._client.json("/models", 5.0)
        except InputError:
            return False
        return True
