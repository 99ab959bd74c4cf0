"""Retrieval over HTTP: the server's index, its threads, and a request's `retrieval` as a policy above tokens."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline.reason.runner import Policy, Runner, Stage
from paceline.retrieve import Datastore, Knn, PassageIndex, Retrieval
from paceline.retrieve.knn import KnnWriting
from paceline.retrieve.policy import Retrieving
from paceline.retrieve.prompts import QuestionPrompts
from paceline.serve.errors import ApiError
from paceline.serve.prompts import plain, template
from paceline.serve.protocol import ChatRequest
from paceline.serve.server import Server
from paceline.serve.settings import Settings
from paceline.serve.syntax import short_ids, syntax_of

THREADS = 2
"""Threads that search the knowledge base, for all requests together."""
COUNTERS = {
    "retrieval_requests": "Answers that were written with retrieval.",
    "retrieval_calls": "Calls of the knowledge base.",
    "retrieval_dropped_tokens": "Tokens that were written with a wrong passage.",
}
"""What `Level` does not count."""


@dataclass(eq=False)
class Knowledge(Collector):
    """An index, and what was done with it."""

    index: PassageIndex
    pool: ThreadPoolExecutor
    totals: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0.0))

    def count(self, report: Mapping[str, Any]) -> None:
        """An answer has ended. For the engine's thread."""
        for name in COUNTERS:
            seen = 1 if name == "retrieval_requests" else max(0, report[name.removeprefix("retrieval_")])
            self.totals[name] += seen

    def collect(self) -> Iterator[Metric]:
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"paceline_{name}", text, self.totals[name])


class CountedRetrieval(Retrieving):
    """A policy whose end is counted."""

    def __init__(self, knowledge: Knowledge, prompts: QuestionPrompts, wish: Retrieval) -> None:
        super().__init__(prompts, knowledge.index.retriever(wish.retriever), wish, knowledge.pool)
        self._knowledge = knowledge

    def ended(self, stage: Stage) -> None:
        super().ended(stage)
        self._knowledge.count(self.report)


def knowledge_of(settings: Settings) -> Knowledge | None:
    """The index that a server has; opened once. InputError where it cannot be used."""
    return None if settings.index is None else _open(settings.index, settings.index_encoder)


@lru_cache(maxsize=4)
def _open(path: Path, encoder: Path | None) -> Knowledge:
    index = PassageIndex.open(path, encoder)
    for kind in index.kinds:
        index.retriever(kind)
    return Knowledge(index, searchers())


@lru_cache(maxsize=1)
def searchers() -> ThreadPoolExecutor:
    """The threads that search, of all indexes and datastores."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="paceline-retrieval")


async def make(body: ChatRequest, server: Server, runner: Runner, args: Mapping[str, Any]) -> Policy:
    """The policy of a request. Raises ApiError where the server has no index, InputError for a bad wish."""
    knowledge = knowledge_of(server.settings)
    if knowledge is None:
        message = "retrieval needs an index, and this server has none; start it with --index."
        raise ApiError(400, message, param="retrieval")
    if body.continue_final_message:
        message = "continue_final_message cannot be combined with retrieval; leave one of them out."
        raise ApiError(400, message, param="continue_final_message")
    assert body.retrieval is not None
    wish = Retrieval(**body.retrieval.model_dump(exclude_none=True))
    source = template(server.text)
    developer, short = "developer" if "developer" in source else "system", short_ids(source)

    def work() -> Policy:
        messages = [plain(message, developer, syntax_of(source), short) for message in body.messages]
        return CountedRetrieval(
            knowledge, QuestionPrompts(server.text, messages, knowledge.index.passages, wish, args), wish
        )

    return await server.pools.texts.run(work, sum(len(str(message.content)) for message in body.messages))


# -- neighbours of each token ----------------------------------------------------------------------------------------


def datastore_of(settings: Settings) -> Datastore | None:
    """The datastore that a server has; opened once. InputError where it cannot be used."""
    return None if settings.datastore is None else _store(settings.datastore)


@lru_cache(maxsize=4)
def _store(path: Path) -> Datastore:
    return Datastore.load(path)


async def neighbours(body: ChatRequest, server: Server, runner: Runner, args: Mapping[str, Any]) -> Policy:
    """The policy of a request. Raises ApiError where the server has no datastore, InputError for a bad wish."""
    store = datastore_of(server.settings)
    if store is None:
        message = "neighbours needs a datastore, and this server has none; start it with --datastore."
        raise ApiError(400, message, param="neighbours")
    assert body.neighbours is not None
    return KnnWriting(store, Knn(**body.neighbours.model_dump(exclude_none=True)), searchers())
