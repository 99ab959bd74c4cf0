"""Engines as Ray actors (extra `paceline[cluster]`). Ray has the processes, the object store and the transport; what
happens to requests when an engine dies is decided here."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from socket import create_connection
from threading import Thread
from time import monotonic
from typing import Any

from psutil import virtual_memory

from paceline import __version__
from paceline.cluster.live.host import EngineHost
from paceline.cluster.live.messages import EngineFacts, EngineGoneError, Opening, PendingAnswer, Word
from paceline.core.errors import InputError
from paceline.engine.totals import Snapshot
from paceline.model.spread.rays import quiet_ray, ray_for

CALLS_AT_ONCE = 4096
"""Calls that an actor answers at once: one for each sample that is followed."""
CONNECT_S = 5.0
"""Longest wait for another machine's Ray."""
HEAD_LOOK_S = 2.0
"""Between two looks whether Ray's head is there."""
STARTING_S = 60.0
"""Between two lines of the log on an engine that is still being started."""
ENGINE_BYTES = 256 << 20
"""Memory of an engine's process without its model, at the least."""
DIED = "its process died (killed, out of memory, or crashed)"
log = logging.getLogger("paceline")


@dataclass(frozen=True, slots=True)
class RaySession:
    """A cluster of Ray that this process has joined."""

    head: str
    """Address of its GCS, without which no actor can be started."""
    logs: Path
    """Directory with its logs, on each machine."""
    host: Any = None
    """`EngineHost` as a class of actors: made once, for without the head no new class can be made known."""
    cores: float = inf
    """CPU cores that Ray counts, where no other machine can join; inf where others can."""
    memory: float = inf
    """Bytes of this machine's memory, likewise."""

    def check_room(self, engines: int, cpus: float) -> None:
        """InputError unless this number of engines, of `cpus` cores each, can run at the same time."""
        if engines * cpus > self.cores:
            raise InputError(
                f"engine_cpus is {cpus:g}, so {engines} engines need {engines * cpus:g} cores, but Ray counts "
                f"{self.cores:g} on this machine; ask for fewer engines or cores, or leave it out."
            )
        if engines * ENGINE_BYTES > self.memory:
            raise InputError(
                f"{engines} engines need {engines * ENGINE_BYTES / 1e9:.0f} GB without their models, but this machine "
                f"has {self.memory / 1e9:.0f} GB; ask for fewer engines, or join more machines with address."
            )

    async def check(self) -> None:
        """EngineGoneError where the head does not answer."""
        host, _, port = self.head.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.close()
        except (OSError, TimeoutError):
            raise EngineGoneError(f"Ray's head at {self.head} does not answer; start the cluster again") from None

    async def watch(self) -> None:
        """Say once that the head is gone: Ray then ends this process, and says why to its own log alone."""
        with suppress(EngineGoneError):
            while True:
                await asyncio.sleep(HEAD_LOOK_S)
                await self.check()
        log.error(
            "Ray's head at %s does not answer: no engine can be started, and unless it comes back Ray ends this server "
            "within a minute. Start the cluster again; Ray's logs are in %s.", self.head, self.logs,
        )  # fmt: skip


def join(address: str | None) -> RaySession:
    """Start Ray on this machine, or join the cluster at an address. InputError where none answers."""
    ray = ray_for("A cluster")
    quiet_ray()
    try:
        host, _, port = (address or "").rpartition(":")
        if host and port.isdecimal() and "/" not in host:  # Ray itself asks for a minute, with many warnings
            create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        ours = ray.init(
            address=address or "local", include_dashboard=False, log_to_driver=False, configure_logging=False
        )
    except Exception as error:  # Ray raises what its libraries raise
        raise InputError(no_ray(address, error)) from None
    logs = Path(ours.address_info["session_dir"]) / "logs"
    cores = inf if address else float(ray.cluster_resources().get("CPU", 0.0))
    memory = inf if address else float(virtual_memory().total)
    return RaySession(ray.get_runtime_context().gcs_address, logs, ray.remote(EngineHost), cores, memory)


def no_ray(address: str | None, error: Exception) -> str:
    """What to say where Ray cannot be started on this machine, or joined at an address."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if lines[0].startswith("Version mismatch"):
        return (
            f"The Ray cluster at {address} is of other versions than this process ({' '.join(lines[1:])}); install the "
            "same ones of Ray, Python and Paceline on each machine."
        )
    why = lines[0].rstrip(".")
    if address is None:
        return f"Ray cannot start on this machine ({why}); its files are in /tmp/ray, or where RAY_TMPDIR says."
    if "://" in address:
        return f"address is {address}, but it must be HOST:PORT of a Ray cluster's head, as `ray start --head` prints."
    return f"No Ray cluster answers at {address} ({why}); where it wants a token, set RAY_AUTH_MODE=token."


class ActorLink:
    """The way to an engine that is a Ray actor."""

    def __init__(
        self, name: str, options: dict[str, Any], cpus: float, environment: dict[str, str], session: RaySession
    ) -> None:
        ray = ray_for("A cluster")
        self.name, self.session = name, session
        self.process: int | None = None
        """Once it is known: then the engine has started."""
        self._error = ray.exceptions.RayError
        self._ended = asyncio.Event()
        """It counts as dead, whether Ray knows or not."""
        self._cpus = cpus
        self.actor = session.host.options(
            num_cpus=cpus, max_restarts=0, max_task_retries=0, max_concurrency=CALLS_AT_ONCE,
            runtime_env={"env_vars": environment},
        ).remote(options, __version__)  # fmt: skip

    async def open(self, key: str, opening: Opening) -> AsyncIterator[Word]:
        """As `EngineLink.open`."""
        stream = self.actor.open.options(num_returns="streaming").remote(key, opening)
        while True:
            try:
                coming = await self._sure(anext(stream))
            except StopAsyncIteration:
                return
            yield await self._sure(coming)

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
        """As `EngineLink.facts`. Raises as soon as Ray's head is gone, without which none starts. A long start is
        logged."""
        began = told = monotonic()
        answer = asyncio.ensure_future(self._sure(self.actor.facts.remote()))
        try:
            await self.session.check()
            while not (await asyncio.wait({answer}, timeout=HEAD_LOOK_S))[0]:
                await self.session.check()
                if (now := monotonic()) - told >= STARTING_S:
                    told = now
                    self._tell_start(now - began)
            facts: EngineFacts = answer.result()
        finally:
            answer.cancel()
        self.process = facts.process
        return facts

    def _tell_start(self, seconds: float) -> None:
        """Log that it has not started yet, and what it may wait for."""
        cores = f", or waits until a machine has {self._cpus:g} cores free for it (engine_cpus)" if self._cpus else ""
        log.warning(
            "%s has not started after %.0f s: it still loads the model%s. Ray's logs are in %s.",
            self.name, seconds, cores, self.session.logs,
        )  # fmt: skip

    async def snapshot(self) -> Snapshot:
        """As `EngineLink.snapshot`."""
        now: Snapshot = await self._sure(self.actor.snapshot.remote())
        return now

    async def _sure(self, answer: Any) -> Any:
        """It, or EngineGoneError, also where Ray never says so: its head or the engine's machine may be gone."""
        coming, death = asyncio.ensure_future(answer), asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((coming, death), return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                raise EngineGoneError(f"{self.name} was given up")
            return coming.result()
        except self._error as error:
            raise self._gone(error) from error
        finally:
            coming.cancel()
            death.cancel()

    def _gone(self, error: Exception) -> EngineGoneError:
        """What became of it, and where its log is."""
        why = reason(error)
        if why == DIED and self.process is None:
            why = f"{self.name} died as it loaded (killed, out of memory, or crashed); its log is one of"
            why = f"{why} {self.session.logs}/worker-*.err on its machine"
        elif why == DIED:
            why = f"{why}; its log is {self.session.logs}/worker-*-{self.process}.err on its machine"
        return EngineGoneError(why)

    def kill(self) -> None:
        """End its process, in a thread: where Ray's head or its machine is gone, that may never return. What waits
        for its answers ends at once with EngineGoneError."""
        self._ended.set()
        Thread(target=ray_for("A cluster").kill, args=(self.actor,), name="paceline-kill", daemon=True).start()


def reason(error: Exception) -> str:
    """What went wrong, in one sentence of Ray's long stories; what an engine raised at its start, without the name of
    a Python class."""
    text = str(error)
    if type(error).__name__ == "ActorDiedError" and "its creation task" not in text:
        return "its machine is gone" if "node has died" in text or "node was terminated" in text else DIED
    if type(error).__name__ in ("ActorUnavailableError", "NodeDiedError"):
        return "its machine cannot be reached"
    line = next((line for line in reversed(text.splitlines()) if line.strip()), type(error).__name__)
    return re.sub(r"^(\w+\.)+\w+: ", "", line.strip())
