"""What can be done to the requests of an engine, as data: the only door, logged and replayed. Requests are named by
their ids; every operation takes effect between two steps."""

from dataclasses import dataclass

from paceline.core.handover import RESERVATION_S
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
    """Take a request out of the engine, as bytes that `Resume` takes: its text, its log-probabilities and statistics,
    and the K/V of its sealed blocks from `from_block` on. It ends here, with the reason `parked`. The time at rest does
    not count towards a deadline."""

    id: int
    from_block: int = 0


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with a parked request, here or in another engine with the same model: weights, dtypes and positions. The
    drafter may be another. InputError for damaged bytes; take them only from who may also read and write the prefix
    cache, which their K/V enters."""

    packed: bytes
    client: str = ""
    """Client that it is from, which its bytes do not say."""


@dataclass(frozen=True, slots=True)
class Peek:
    """The K/V of a request's sealed blocks from `from_block` on, as bytes that `Settle` takes elsewhere. The request
    goes on; sealed blocks never change."""

    id: int
    from_block: int = 0


@dataclass(frozen=True, slots=True)
class Reserve:
    """Hold blocks for a request that is to come; the number of the reservation. After `seconds` in which nobody
    speaks of it, it is given back. CapacityError unless `spare` blocks stay free or evictable."""

    blocks: int
    seconds: float = RESERVATION_S
    spare: int = 0


@dataclass(frozen=True, slots=True)
class Settle:
    """Put into a reservation what `Peek` gave (the number of blocks that are there then), or settle it with what `Park`
    gave, whose blocks follow (the requests, as of `Resume`; asked again, the same). None: give it back."""

    reservation: int
    packed: bytes | None
    client: str = ""
    """As of `Resume`."""


TextOperation = Submit | Abort | Extend | Fork | Branch | Close | Join | Rewind | Replace
"""Operations that make, change or end a text."""
TravelOperation = Park | Resume | Peek | Reserve | Settle
"""Operations by which a request goes from one engine to another."""
Operation = TextOperation | TravelOperation
