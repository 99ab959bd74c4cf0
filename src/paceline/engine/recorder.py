"""Recorder interface: what an engine reports so that its decisions can be repeated (`simulate/`)."""

from collections.abc import Sequence

from paceline.core.joined import Layout
from paceline.core.operations import Join, Operation
from paceline.core.plan import Note, Plan, Work
from paceline.core.request import Request
from paceline.core.result import Result
from paceline.plan import DrafterFacts
from paceline.plan.cost import Drafting, Times


class Recorder:
    """Receiver of all that decisions depend on, in order, called by the engine's thread. This one drops it."""

    def enrolled(self, drafter: str, facts: DrafterFacts) -> None:
        """A drafter became known."""

    def arrived(self, request: Request) -> None:
        """A request was queued."""

    def operated(self, operation: Operation) -> None:
        """A request is changed, or leaves, between two steps."""

    def joined(self, operation: Join, max_tokens: int, reading: Sequence[str]) -> None:
        """Branches join their request, which may then get up to `max_tokens` tokens. `reading`: as of `Desk.join`."""

    def adopted(
        self,
        tokens: Sequence[int],
        groups: Sequence[str],
        layout: Layout = (),
        extra_key: str = "",
        known: bool = False,
    ) -> None:
        """Rows whose K/V comes from elsewhere enter the prefix cache, if there is room: as of `Desk.adopt`."""

    def dropped(self, tokens: Sequence[int], extra_key: str, layout: Layout) -> None:
        """K/V of a text leaves the prefix cache: as of `Desk.drop`."""

    def reserved(
        self,
        number: int,
        blocks: int | None,
        groups: Sequence[str] = (),
        layout: Layout = (),
        extra_key: str = "",
    ) -> None:
        """Blocks are held for a text that is to come, as of `Desk.reserve`; None: as of `Desk.reopen`."""

    def settled(self, number: int, tokens: Sequence[int]) -> None:
        """Held blocks are given back, or enter the prefix cache: as of `Desk.settle`."""

    def planned(self, now: float, admitted: Sequence[Request], plan: Plan) -> None:
        """A step begins. Without a `ran` before the next event it had no items, or failed: its rows were dropped."""

    def failed(self, drafter: str, requests: Sequence[Request]) -> None:
        """A drafter failed in this step."""

    def advanced(self, request: Request, group: str, length: int) -> None:
        """A drafter has completed `length` rows of a request; or, for the target's group, the text was rewound to
        `length` rows. After the step's commits, before its tokens."""

    def ran(
        self, results: Sequence[Result], found: Sequence[Note], work: Work, parts: Sequence[Drafting], times: Times
    ) -> None:
        """The step is done: outputs have grown, the finished have left. `found`: what merged drafters report about
        their parts."""
