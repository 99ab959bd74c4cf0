"""Adapters and fine-tunes as the front of a cluster knows them: their names. The engines have them, and each of them
the same: what is loaded later goes to all, and to those that come after it."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cluster.live.messages import EngineFacts, EngineGoneError, EngineLink
from paceline.core.errors import LostError, PacelineError
from paceline.core.request import Request
from paceline.engine.adapters import Adapters, LoadedAdapter
from paceline.model.chain import is_chain

if TYPE_CHECKING:
    from paceline.cluster.live.engines import Engines

TEACH_S = 120.0
"""Time for a new engine to read what was loaded before it came."""
MOST_READERS_LOST = 3
"""Engines that one adapter's files may end before they are given up."""


class FrontAdapters(Adapters):
    """What the HTTP API asks of them. All engines have the same ones."""

    def __init__(self, facts: EngineFacts, going: Callable[[], Iterable[Request]]) -> None:
        """`going`: requests that engines have now."""
        super().__init__(None, max(1, facts.adapters.most))
        self._going, self._has = going, facts.adapters
        digests = facts.adapters.digests
        self.named = {name: LoadedAdapter(name, Path(at), digests[name], 0) for name, at in self._has.places.items()}

    @property
    def running(self) -> list[str]:
        """As `Adapters.running`."""
        return self._used(lambda request: request.admitted is not None)

    @property
    def awaited(self) -> list[str]:
        """As `Adapters.awaited`."""
        return self._used(lambda request: request.admitted is None)

    def _used(self, by: Callable[[Request], bool]) -> list[str]:
        return sorted({each.params.adapter for each in self._going() if each.params.adapter and by(each)})

    @property
    def bytes(self) -> int:
        """As `Adapters.bytes`: none are here."""
        return 0

    def serves(self, name: str) -> bool:
        """As `Adapters.serves`."""
        return name in self.named or (self._has.chained is not None and is_chain(name))

    def knows(self, name: str) -> bool:
        """As `Adapters.knows`."""
        return name in self.named or name in (self._has.chained or ())

    def enter_known(self, name: str, path: Path, version: "AdapterVersion") -> None:
        """Note an adapter that the engines have now."""
        self.named[name] = LoadedAdapter(name, path, version.digest, version.rank)
        self.loads += 1


@dataclass(frozen=True, slots=True)
class AdapterVersion:
    """An adapter as one engine has read it."""

    path: str
    draft: str | None
    digest: str
    rank: int


class LaterAdapters:
    """What was loaded and unloaded since the engines started. For one event loop."""

    def __init__(self, engines: "Engines") -> None:
        self._engines = engines
        self.changes: dict[str, AdapterVersion | None] = {}
        """{name: its version now, or None for one that was unloaded}"""
        self.turn = asyncio.Lock()
        """One change at a time; an engine that has started joins in between."""

    def has(self, request: Request) -> bool:
        """Has every engine the version that a request is computed with?"""
        if request.params.adapter not in self.changes:
            return True
        version = self.changes[request.params.adapter]
        return version is not None and version.digest == request.adapter

    async def read(self, path: Path, draft: Path | None) -> AdapterVersion:
        """As an engine reads it. Raises its InputError, and LostError where none answers, or several die over it."""
        given = str(path), None if draft is None else str(draft)
        for _ in range(MOST_READERS_LOST):
            link = await self._engines.freest()
            try:
                return AdapterVersion(*given, *await link.ask("read", *given))
            except EngineGoneError as error:
                self._engines.lost(link, error)
        raise LostError("The engines that read this adapter broke off, perhaps over its files; check them.")

    async def enter(self, name: str, version: AdapterVersion, replace: bool) -> None:
        """Serve a version by all engines. Where one refuses, none has it."""
        async with self.turn:
            ends = await self._all("load", name, version.path, version.draft, replace, version.digest)
            refusal = next((end for end in ends.values() if isinstance(end, Exception)), None)
            if refusal is None and ends:
                self.changes[name] = version
                return
            taken = [link for link, end in ends.items() if not isinstance(end, Exception)]
            await asyncio.gather(*(self._back(link, name) for link in taken))
            raise refusal or LostError("No engine answers; try again later.")

    async def remove(self, name: str) -> None:
        """Unload an adapter from all engines."""
        async with self.turn:
            self.changes[name] = None
            await self._all("unload", name)

    async def teach(self, link: EngineLink, facts: EngineFacts) -> None:
        """A new engine gets what the others have. Raises InputError where the files have changed."""
        try:
            async with asyncio.timeout(TEACH_S):
                for name, version in self.changes.items():
                    if version is not None:
                        await link.ask("load", name, version.path, version.draft, True, version.digest)
                    elif name in facts.adapters.digests:
                        await link.ask("unload", name)
        except TimeoutError:
            raise EngineGoneError(f"{link.name} has not read the adapters within {TEACH_S:g} s") from None

    async def _back(self, link: EngineLink, name: str) -> None:
        """An engine has what it had before; one that cannot is ended, for it has other adapters than the others."""
        before = self.changes.get(name)
        first = self._engines.facts.adapters
        try:
            if before is not None:
                await link.ask("load", name, before.path, before.draft, True, before.digest)
            elif name in self.changes or name not in first.digests:
                await link.ask("unload", name)
            else:
                await link.ask("load", name, first.places[name], None, True, first.digests[name])
        except (EngineGoneError, PacelineError) as error:
            self._engines.lost(link, error)

    async def _all(self, verb: str, *args: Any) -> dict[EngineLink, Any]:
        """{engine: what it answers, or the error}, but for those that die over it."""

        async def one(link: EngineLink) -> Any:
            try:
                return await link.ask(verb, *args)
            except PacelineError as error:
                return error
            except EngineGoneError as error:
                self._engines.lost(link, error)
                return None

        links = [state.link for state in self._engines.states.values()]
        ends = await asyncio.gather(*map(one, links))
        return {link: end for link, end in zip(links, ends, strict=True) if self._engines.has(link)}
