"""Answers that a later request may name: bounded in bytes, the ones used longest ago go first."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import orjson

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

    def put(self, id: str, owner: str, response: Any, items: Any, given: Any) -> None:
        """Keep an answer, unless it alone is larger than the limit."""
        kept = StoredResponse(owner, orjson.dumps(response), orjson.dumps(items), orjson.dumps(given))
        if kept.size > self.limit:
            return
        self._kept[id] = kept
        self.size += kept.size
        while self.size > self.limit:
            self.size -= self._kept.popitem(last=False)[1].size

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
        self.size -= self._kept.pop(id).size
        return True

    def __len__(self) -> int:
        return len(self._kept)
