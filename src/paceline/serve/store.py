"""Answers and conversations that a later request may name, within a number of bytes: of the client that holds most,
those used longest ago go."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import Request

from paceline.engine.door import DOOR
from paceline.serve.calls import HttpCall

OVERHEAD = 512
"""Bytes of book-keeping for each entry."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One answer of /v1/responses, as bytes: no reader can change what is kept."""

    owner: str
    """API key it was made for; no other key may see it."""
    response: bytes
    items: bytes
    """The whole conversation so far: what was said, and the answer."""
    given: bytes
    """The input of this turn alone."""

    @property
    def size(self) -> int:
        return len(self.response) + len(self.items) + len(self.given) + OVERHEAD


class Store:
    """For the event loop alone."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes; 0 keeps nothing."""
        self.limit, self.size = limit, 0
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()
        self._owned: dict[str, int] = {}
        """Bytes of each owner."""

    def put(self, id: str, owner: str, response: Any, items: Any, given: Any) -> bool:
        """Keep an answer, in place of one with this id; False where it alone is larger than the limit."""
        if id in self._kept:
            self._drop(id)
        kept = StoredResponse(owner, orjson.dumps(response), orjson.dumps(items), orjson.dumps(given))
        if kept.size > self.limit:
            return False
        self._kept[id] = kept
        self.size += kept.size
        self._owned[owner] = self._owned.get(owner, 0) + kept.size
        while self.size > self.limit:  # the owner that holds most gives up its oldest answer
            largest = max(self._owned, key=self._owned.__getitem__)
            self._drop(next(each for each, it in self._kept.items() if it.owner == largest))
        return True

    def get(self, id: str, owner: str) -> StoredResponse | None:
        kept = self._kept.get(id)
        if kept is None or kept.owner != owner:
            return None
        self._kept.move_to_end(id)
        return kept

    def delete(self, id: str, owner: str) -> bool:
        kept = self.get(id, owner)
        if kept is None:
            return False
        self._drop(id)
        return True

    def _drop(self, id: str) -> None:
        kept = self._kept.pop(id)
        self.size -= kept.size
        self._owned[kept.owner] -= kept.size
        if not self._owned[kept.owner]:
            del self._owned[kept.owner]

    def __len__(self) -> int:
        return len(self._kept)


def of_app(request: Request) -> Store:
    """What the application of a request keeps."""
    store: Store = request.app.state.responses
    return store


def caller() -> str:
    """Which API key this call came with."""
    call = DOOR.get()
    return call.key if isinstance(call, HttpCall) else ""
