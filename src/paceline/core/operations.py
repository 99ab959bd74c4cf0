"""What can be done to the requests of an engine, as data: the only door, logged and replayed. Requests are named by
their ids; every operation takes effect between two steps."""

from dataclasses import dataclass

from paceline.core.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue a prompt (token ids). `offset`: added to the noise index of every token, for a text whose earlier part is
    no longer there."""

    prompt: list[int]
    params: SamplingParams
    lineage: tuple[int, ...] = ()
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request where it stands."""

    id: int


@dataclass(frozen=True, slots=True)
class Extend:
    """Append tokens to the output, as if the model had drawn them. They end nothing, and count as output."""

    id: int
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Fork:
    """`count` new requests that continue from the text so far, each with noise of its own: its lineage is the request's
    and the number of the branch. The request itself goes on, too."""

    id: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Branch:
    """A fork whose branches are to be joined: the request waits, and a branch that ends keeps its K/V. A request that
    waits may get more branches; when all of them were aborted it goes on. `params`: those of the branches, where they
    are not the request's; their `max_tokens` counts what a branch adds."""

    id: int
    count: int
    params: SamplingParams | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """End a branch where it stands, as a stop would: it can be joined."""

    id: int


@dataclass(frozen=True, slots=True)
class Join:
    """Put branches that ended behind their request, in this order, and `tokens` behind them; it goes on from there.
    Nothing is computed again: their K/V is copied. Branches do not see one another, positions go on behind the longest
    (core/joined.py). Branches that are not named end here. Where the context is short, the request gets fewer
    tokens."""

    id: int
    branches: list[int]
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Rewind:
    """Forget the output from token `length` on. The same tokens are drawn again, unless `redraw`: then an epoch joins
    the lineage, as it must where what was drawn decided that it goes (D2)."""

    id: int
    length: int
    redraw: bool = False


@dataclass(frozen=True, slots=True)
class Replace:
    """Another prompt (token ids) under the output so far, which stays. Noise goes on as before."""

    id: int
    prompt: list[int]


@dataclass(frozen=True, slots=True)
class Park:
    """Take a request out of the engine, as bytes that `Resume` takes: its text, and the K/V of its sealed blocks."""

    id: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with a parked request, here or in another engine with the same model."""

    packed: bytes


Operation = Submit | Abort | Extend | Fork | Branch | Close | Join | Rewind | Replace | Park | Resume
