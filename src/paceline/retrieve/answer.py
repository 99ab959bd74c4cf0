"""`generate`: an answer with retrieval, in the caller's thread. Over HTTP it is the chat end point's `retrieval`."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.core.params import SamplingParams
from paceline.engine.llm import LLM
from paceline.engine.outputs import RequestOutput, output
from paceline.reason.runner import BASE, Policy, Runner
from paceline.retrieve.datastore import Datastore
from paceline.retrieve.index import PassageIndex
from paceline.retrieve.knn import Knn, KnnWriting
from paceline.retrieve.policy import Retrieving
from paceline.retrieve.prompts import QuestionPrompts
from paceline.retrieve.retriever import Retriever
from paceline.retrieve.wish import Retrieval

if TYPE_CHECKING:
    from paceline.engine.text import Message


@dataclass(frozen=True, slots=True)
class RetrievalAnswer:
    """One answer that was written with retrieval."""

    output: RequestOutput
    report: dict[str, Any]
    """Passages and scores, which part of the text each served, calls, batches, guesses and seconds."""

    @property
    def text(self) -> str:
        return self.output.text


def generate(
    llm: LLM,
    question: "str | Sequence[Message]",
    index: PassageIndex,
    params: SamplingParams | None = None,
    wish: Retrieval | None = None,
    *,
    retriever: Retriever | None = None,
    threads: int = 1,
) -> RetrievalAnswer:
    """Answer a question, a text or a conversation, with passages of `index`. `retriever`: in place of the index's own;
    `threads`: of the knowledge base. Raises InputError, RefusalError or CapacityError where it cannot be served."""
    wish = wish or Retrieval()
    prompts = QuestionPrompts(llm.text, question, index.passages, wish)
    found = retriever or index.retriever(wish.retriever)
    with ThreadPoolExecutor(threads, thread_name_prefix="paceline-retrieval") as pool:
        return _written(llm, question, prompts.bare, params, Retrieving(prompts, found, wish, pool))


def knn_generate(
    llm: LLM,
    question: "str | Sequence[Message]",
    store: Datastore,
    params: SamplingParams | None = None,
    wish: Knn | None = None,
) -> RetrievalAnswer:
    """Complete a text, or answer a conversation, with the mixture of the model's distribution and that of its
    neighbours in a datastore (KNN-LM). Raises InputError, RefusalError or CapacityError where it cannot be served."""
    with ThreadPoolExecutor(1, thread_name_prefix="paceline-retrieval") as pool:
        return _written(llm, question, llm.ids(question), params, KnnWriting(store, wish or Knn(), pool))


def _written(
    llm: LLM, question: "str | Sequence[Message]", ids: list[int], params: SamplingParams | None, policy: Policy
) -> RetrievalAnswer:
    resolved = (params or SamplingParams()).resolve(llm.text.defaults)
    runner = Runner({BASE: llm.engine})
    requests = runner.submit(ids, resolved, policy)
    try:
        while runner.busy:
            runner.step()
    finally:
        runner.close()
    return RetrievalAnswer(output(requests, question if isinstance(question, str) else None), policy.report)
