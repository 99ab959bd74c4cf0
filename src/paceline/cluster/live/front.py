"""`ClusterLLM`: what the HTTP API asks in place of an `AsyncLLM`. It has the tokenizer and the grammars, and engines do
the rest: so every endpoint serves a cluster, and none knows it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import NoReturn

from paceline.cluster.live.adapters import AdapterVersion, FrontAdapters
from paceline.cluster.live.engines import Engines
from paceline.cluster.live.messages import EngineFacts, EngineGoneError, Submitted
from paceline.cluster.live.voyage import BROKE_OFF, Voyage
from paceline.core.errors import LostError, RefusalError
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.draft import DRAFTERS
from paceline.engine.async_llm import Subscription, TakeIn
from paceline.engine.components import reading
from paceline.engine.door import DOOR
from paceline.engine.options import Options
from paceline.engine.text import Text
from paceline.engine.totals import Snapshot
from paceline.sample.sampler import Sampler


@dataclass(frozen=True, slots=True)
class FrontSpec:
    """A part of a model's shape."""

    hidden: int


class FrontModel:
    """What is asked of a model that is elsewhere."""

    def __init__(self, facts: EngineFacts) -> None:
        self.max_len, self.vocab_size, self.width = facts.max_len, facts.origin.vocab_size, facts.width
        self.spec = FrontSpec(facts.width)
        self.abilities: frozenset[str] = frozenset()


class FrontSession:
    """As `Session`."""

    def __init__(self, facts: EngineFacts, adapters: FrontAdapters) -> None:
        self.eos, self.longest, self.adapters = facts.eos, facts.longest, adapters


class FrontEngine:
    """What the HTTP API reads of an engine."""

    def __init__(self, facts: EngineFacts, text: Text, adapters: FrontAdapters) -> None:
        self.model = FrontModel(facts)
        self.session = FrontSession(facts, adapters)
        self.judge, self.operations, self.drafters, self.config = self, self, self, self
        self.sampler = Sampler(facts.origin.vocab_size, *reading(text.tokenizer, facts.origin.vocab_size, facts.eos))
        self.slots = None
        self.cards = {name: DRAFTERS.card(name) for name in facts.drafters if not {"+", "|"} & set(name)}
        self.drafter, self.max_requests = facts.drafter, facts.max_requests


class FrontLLM:
    """As `LLM`."""

    def __init__(self, facts: EngineFacts, options: Options, adapters: FrontAdapters) -> None:
        self.options = options
        self.text = Text(facts.path, options.chat_template)
        self.text.defaults = facts.defaults
        self.engine = FrontEngine(facts, self.text, adapters)


class ClusterLLM:
    """The verbs of `AsyncLLM` that serve HTTP, over engines. For one event loop."""

    def __init__(self, engines: Engines, options: Options) -> None:
        """`engines` have started."""
        self.engines = engines
        going = engines.voyages.going
        self.adapters = FrontAdapters(engines.facts, lambda: [voyage.request for voyage in going])
        self.llm = FrontLLM(engines.facts, options, self.adapters)
        self.beside: list[object] = []
        self._of: dict[Subscription, list[Voyage]] = {}

    @property
    def alive(self) -> bool:
        return True

    def stuck(self) -> float:
        return 0.0

    @property
    def snapshot(self) -> Snapshot:
        return self.engines.snapshot

    @property
    def max_requests(self) -> int:
        """Samples that all engines decode at once."""
        return self.engines.facts.max_requests * max(1, self.engines.wanted)

    async def submit(
        self, batch: Sequence[tuple[list[int], SamplingParams | None]], *, whole: bool = False, by: TakeIn | None = None
    ) -> Subscription:
        """As `AsyncLLM.submit`."""
        if by is not None:
            self.attach()
        arrived, door = monotonic(), DOOR.get()
        wishes = [(ids, (params or SamplingParams()).resolve(self.llm.text.defaults)) for ids, params in batch]
        wishes, ticket = (wishes, None) if door is None else door.admit(wishes)
        voyages: list[Voyage] = []
        made: list[Subscription] = []

        def tell(request: Request) -> None:
            for subscription in made:
                if not subscription.news():
                    self._of.pop(subscription, None)

        try:
            for ids, params in wishes:
                voyages += await self.engines.voyages.begin(Submitted(ids, params), tell)
        except BaseException:
            self.engines.voyages.end(voyages)
            if ticket is not None:
                ticket.refused()
            raise
        requests = [voyage.request for voyage in voyages]
        made.append(Subscription(requests, asyncio.get_running_loop(), ticket, arrived, whole))
        self._of[made[0]] = voyages
        tell(requests[0])
        return made[0]

    def abort(self, subscription: Subscription) -> None:
        """End what is unfinished."""
        voyages = self._of.pop(subscription, [])
        self.engines.voyages.end([voyage for voyage in voyages if not voyage.over])
        for voyage in voyages:
            if voyage.request.finish is None:
                voyage.request.finish = "abort"
        subscription.news()

    async def embed(self, texts: Sequence[list[int]], pooling: str = "mean", *, adapter: str = "") -> list[list[float]]:
        """As `AsyncLLM.embed`."""
        for _ in range(3):
            link = await self.engines.freest()
            try:
                vectors: list[list[float]] = await link.ask("embed", list(texts), pooling, adapter)
                return vectors
            except EngineGoneError as error:
                self.engines.lost(link, error)
        raise LostError(BROKE_OFF)

    async def enter_adapter(self, name: str, path: Path, version: AdapterVersion, replace: bool) -> None:
        """Serve an adapter under this name by all engines, also where the caller leaves."""

        async def enter() -> None:
            await self.engines.adapters.enter(name, version, replace)
            self.adapters.enter_known(name, path, version)

        await self.engines.to_its_end(enter())

    async def remove_adapter(self, name: str) -> None:
        """Stop serving an adapter."""
        self.adapters.remove(name)
        await self.engines.to_its_end(self.engines.adapters.remove(name))

    async def generate(self, prompt: list[int], params: SamplingParams) -> None:
        """Warm up."""
        subscription = await self.submit([(prompt, params)], whole=True)
        while await subscription.news_to_come():
            pass

    def attach(self, *_: object) -> NoReturn:
        raise RefusalError("A cluster serves no policies above tokens (reasoning, retrieval); ask one server.")
