"""Engines as Ray actors (extra `paceline[cluster]`). Ray has the processes, the object store and the transport; ours is
what becomes of requests when one dies."""

import os
import re
from collections.abc import AsyncIterator
from socket import create_connection
from typing import Any

from paceline.cluster.live.host import EngineHost
from paceline.cluster.live.messages import EngineFacts, EngineGoneError, Opening, PendingAnswer, Word
from paceline.core.errors import InputError
from paceline.engine.totals import Snapshot

CALLS_AT_ONCE = 4096
"""Calls that an actor answers at once: one for each sample that is followed."""
CONNECT_S = 5.0
"""Longest wait for another machine's Ray."""


def ray_module() -> Any:
    """Ray, or an InputError that says how to get it."""
    try:
        import ray
    except ImportError as error:
        raise InputError("A cluster needs Ray: pip install 'paceline[cluster]'.") from error
    return ray


def join(address: str | None) -> None:
    """Start Ray on this machine, or join the cluster at an address. InputError where none answers."""
    ray = ray_module()
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        host, _, port = (address or "").rpartition(":")
        if host and port.isdecimal() and "/" not in host:  # Ray itself asks for a minute, with many warnings
            create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        ray.init(address=address or "local", include_dashboard=False, log_to_driver=False, logging_level="warning")
    except (OSError, OverflowError, ValueError) as error:
        raise InputError(f"No Ray cluster answers at {address} ({str(error).splitlines()[0]}).") from None


class ActorLink:
    """The way to an engine that is a Ray actor."""

    def __init__(self, name: str, options: dict[str, Any], cpus: float, environment: dict[str, str]) -> None:
        ray = ray_module()
        self.name = name
        remote = ray.remote(
            num_cpus=cpus, max_restarts=0, max_task_retries=0, max_concurrency=CALLS_AT_ONCE,
            runtime_env={"env_vars": environment},
        )(EngineHost)  # fmt: skip
        self._error = ray.exceptions.RayError
        self.actor = remote.remote(options)

    async def open(self, key: str, opening: Opening) -> AsyncIterator[Word]:
        """As `EngineLink.open`."""
        try:
            async for each in self.actor.open.options(num_returns="streaming").remote(key, opening):
                yield await each
        except self._error as error:
            raise EngineGoneError(_first_line(error)) from error

    def give(self, verb: str, *args: Any) -> PendingAnswer:
        """As `EngineLink.give`: what it gives goes from engine to engine."""
        return PendingAnswer(self.actor.ask.remote(verb, *args))

    async def ask(self, verb: str, *args: Any) -> Any:
        """As `EngineLink.ask`."""
        answer = await self._sure(self.actor.ask.remote(verb, *args))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def facts(self) -> EngineFacts:
        """As `EngineLink.facts`."""
        facts: EngineFacts = await self._sure(self.actor.facts.remote())
        return facts

    async def snapshot(self) -> Snapshot:
        """As `EngineLink.snapshot`."""
        now: Snapshot = await self._sure(self.actor.snapshot.remote())
        return now

    async def _sure(self, answer: Any) -> Any:
        try:
            return await answer
        except self._error as error:
            raise EngineGoneError(_first_line(error)) from error

    def kill(self) -> None:
        """End its process."""
        ray_module().kill(self.actor)


def _first_line(error: Exception) -> str:
    """What went wrong, of Ray's long stories: their last line, without the name of a Python class."""
    line = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
    return re.sub(r"^(\w+\.)+\w+: ", "", line.strip())
