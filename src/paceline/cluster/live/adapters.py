"""Adapters and fine-tunes as the front of a cluster knows them: their names. The engines have them."""

from collections.abc import Callable, Iterable
from pathlib import Path

from paceline.cluster.live.messages import EngineFacts
from paceline.core.request import Request
from paceline.engine.adapters import Adapters, LoadedAdapter
from paceline.model.chain import is_chain


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
