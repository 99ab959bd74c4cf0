"""`Proposer`: what drafts between the passes of a run, and how the texts of a run go on."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from paceline.core.warp import Warp

if TYPE_CHECKING:
    import ctypes

    from torch import Tensor


class Continuation(NamedTuple):
    """How a text goes on: at most `most` tokens, to one of its `ends` at most, drawn by this temperature and these
    filters, each by the next of `keys` (greedy: without keys)."""

    warp: Warp
    keys: list[int]
    ends: Collection[int]
    most: int


class Turn(NamedTuple):
    """One text before a pass of a run."""

    place: int
    """Which of the proposer's texts."""
    said: Sequence[int]
    """Tokens that the run has brought it so far."""
    how: Continuation
    room: int
    """Deepest node that could be kept."""
    most: int
    """Most nodes."""
    hidden: "Mapping[str, Tensor]" = MappingProxyType({})
    """The run's taps of the rows that the tokens of `said` were drawn from, [said, H] each; none before the first
    pass."""


Draft = tuple[Sequence[int], Sequence[int]]
"""Tokens of the nodes, and the parent of each: an earlier node, or -1 for the text's last token."""


@dataclass(slots=True)
class ProposerTable:
    """A proposer in the native library: the functions that do in C++ what `Proposer` does in Python (native/run.h)."""

    name: str
    """Prefix of the functions: NAME_propose, NAME_kept and NAME_done."""
    state: "ctypes.Structure"
    """Structure that the functions are called with."""
    held: Any = None
    """What must outlive the run."""
    done: Callable[[], None] | None = None
    """Called behind the run: what the proposer has to read from `state`."""
    parts: "Sequence[ProposerTable]" = ()
    """Tables of the parts of a merged proposer; `state.part` is set to point to them."""
    taps: tuple[str, ...] = ()
    """The hidden states that it reads: `state.tap` is set to point to their numbers among the run's."""


class Proposer(Protocol):
    """Drafts for some of the texts of a run, round by round."""

    texts: Sequence[int]
    """Places of these texts in the run."""
    nodes: Sequence[int]
    """Most nodes of each in one round."""

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        """A draft, which may be empty, for each of these texts."""

    def kept(self, turns: Sequence[Turn], paths: Sequence[Sequence[int]]) -> None:
        """The nodes of each draft that were kept, from depth 1 down. Their K/V in a group of the proposer's own is its
        to move: a node's slot is the text's next one plus its number."""

    def native(self) -> ProposerTable | None:
        """Native form of this proposer; None: the library calls back into Python."""
