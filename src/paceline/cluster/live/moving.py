"""Live migration: a sample goes to another engine while it is being decoded, as `core/handover.py` says."""

import asyncio
from typing import Literal

from paceline.cluster.live.host import arrival
from paceline.cluster.live.messages import EngineGoneError, EngineLink, PendingAnswer, Settled
from paceline.cluster.live.voyage import Voyage, Voyages
from paceline.core.errors import CapacityError, PacelineError
from paceline.core.handover import FINAL_STATES, LAST_BLOCKS, Handover, HandoverEvent

Moved = Literal["moved", "stayed", "ended"]


async def move(voyages: Voyages, voyage: Voyage, to: EngineLink, spare: int = 0) -> Moved:
    """Take a sample to another engine; what became of it. Where an engine dies, or refuses at the end, the sample goes
    on by replay, and its text is the same."""
    if voyage.moving or voyage.over or voyage.link is to:
        return "stayed"
    voyage.moving, voyage.left = True, asyncio.get_running_loop().create_future()
    try:
        return await _Move(voyages, voyage, to, spare).run()
    finally:
        voyage.moving, voyage.left = False, None


class _Move:
    """One hand-over under way."""

    def __init__(self, voyages: Voyages, voyage: Voyage, to: EngineLink, spare: int) -> None:
        self.voyages, self.voyage, self.source, self.to, self.spare = voyages, voyage, voyage.link, to, spare
        self.number, self.reservation, self.parked = voyage.number, 0, PendingAnswer(None)

    async def run(self) -> Moved:
        state = Handover()
        while state.state not in FINAL_STATES:
            event, blocks, left = await self.act(state)
            state = state.step(event, blocks, left)
        return state.state  # type: ignore[return-value]

    async def act(self, state: Handover) -> tuple[HandoverEvent, int, int]:
        """Do what is next: (event, blocks that came, blocks that are left)."""
        voyage, facts = self.voyage, self.voyages.engines.facts
        try:
            match state.action:
                case "reserve":
                    size = -(-len(voyage.request.tokens) // facts.block_size) + LAST_BLOCKS + 1
                    self.reservation = await self.to.ask("reserve", size, self.spare)
                case "copy":
                    piece = self.source.give("peek", self.number, state.copied)
                    have = await self.to.ask("settle", self.reservation, piece)
                    left = await self.source.ask("sealed", self.number) - have
                    return "done", have - state.copied, max(0, left)
                case "park":
                    self.parked = self.source.give("park", self.number, state.copied)
                    return await self._parked(), 0, 0
                case "settle":
                    return await self._settled(), 0, 0
                case "restore":
                    await self.voyages.restore([voyage], self.source)
                case "release":
                    await self.to.ask("settle", self.reservation, None)
        except CapacityError:
            return "refused", 0, 0
        except PacelineError:
            return "gone" if voyage.over else "refused", 0, 0
        except EngineGoneError:
            return "lost" if state.action == "release" else "gone", 0, 0
        return "done", 0, 0

    async def _parked(self) -> HandoverEvent:
        """Wait until the source has let go of it: its stream says how."""
        assert self.voyage.left is not None
        answer = asyncio.ensure_future(arrival(self.parked))
        await asyncio.wait((answer, self.voyage.left), return_when=asyncio.FIRST_COMPLETED)
        if not self.voyage.left.done() and isinstance(await answer, PacelineError):
            return "refused"  # it goes on there
        if await self.voyage.left != "parked":
            return "gone"
        if isinstance(await answer, Exception):  # the source died with its bytes
            await self.voyages.restore([self.voyage])
            return "gone"
        return "done"

    async def _settled(self) -> HandoverEvent:
        """It goes on at the destination."""
        request = self.voyage.request
        heard = len(request.output), len(request.text)
        opening = Settled(self.reservation, self.parked, heard, request.params.client)
        return (await self.voyages.enter([self.voyage], self.to, opening))[0]
