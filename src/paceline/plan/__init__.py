"""Who gets which rows. Pure decisions: no tensors, no clock (D8)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from paceline.core.plan import Edge, Item, Work, Worth
from paceline.core.request import Request


class Share(NamedTuple):
    """Who drafts for one request in this step, and how much: see `Item`."""

    drafter: str
    nodes: int
    depth: int
    worth: Worth | None = None
    chances: tuple[float, ...] = ()


class LengthPolicy(Protocol):
    """Who drafts how much. May depend on anything known before the draft is drawn, and on nothing else (D2)."""

    def share(self, requests: Sequence[Request], spare: int, base: Work) -> Mapping[int, Share]:
        """{request id: share}, 0 .. MAX_CANDIDATES nodes each and at most `spare` together, for requests that draw a
        token in this step. `base`: the pass without any nodes."""

    def edges(self, base: Work) -> tuple[Edge, ...]:
        """Where drafts may be cut in the step that was just shared out, fewest rows first."""
        return ()

    def passes(self, items: Sequence[Item], base: Work) -> int:
        """Of the target in one step of these items, who decode one token each, at most."""
        return 1
