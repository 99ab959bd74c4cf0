"""The policy at work: overlap, answers beside one another, ends of context and of clients, what is counted."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from typing import Any

import pytest

from paceline import LLM, InputError, SamplingParams
from paceline.reason.runner import BASE, Runner
from paceline.retrieve import PassageIndex, Retrieval, generate
from paceline.retrieve.policy import Retrieving
from paceline.retrieve.prompts import QuestionPrompts
from paceline.retrieve.retriever import Hit, Retriever

QUESTION = "Tom has 3 apples and buys 4 more."
PARAMS = SamplingParams(temperature=0.8, max_tokens=24, seed=3).resolve({})
WISH = Retrieval(4, 2, "exact", query_tokens=8)


class Gated:
    """A retriever that answers when it is let to."""

    def __init__(self, inner: Retriever) -> None:
        self.inner, self.gate = inner, Event()
        self.kind, self.ranks_exactly, self.unit, self.size = inner.kind, inner.ranks_exactly, inner.unit, inner.size
        self.query, self.scores = inner.query, inner.scores

    def search(self, queries: Sequence[Any], k: int) -> list[list[Hit]]:
        assert self.gate.wait(60)
        return self.inner.search(queries, k)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def policy(
    llm: LLM, index: PassageIndex, pool: ThreadPoolExecutor, retriever: Retriever, wish: Retrieval
) -> Retrieving:
    return Retrieving(QuestionPrompts(llm.text, QUESTION, index.passages, wish), retriever, wish, pool)


@pytest.mark.parametrize("overlap", [True, False])
def test_writing_goes_on_while_a_call_runs(
    llm: LLM, index: PassageIndex, pool: ThreadPoolExecutor, overlap: bool
) -> None:
    retriever, runner = Gated(index.retriever("exact")), Runner({BASE: llm.engine})
    it = policy(llm, index, pool, retriever, replace(WISH, overlap=overlap))
    [request] = runner.submit(it.prompts.bare, PARAMS, it)
    retriever.gate.set()
    while not it.figures.call_s:
        runner.step()
    retriever.gate.clear()
    while len(it.figures.batches) < 2:
        runner.step()
    before = it.figures.tokens
    for _ in range(40):  # the verification cannot end
        runner.step()
    assert (it.figures.tokens > before) is overlap and len(it.figures.call_s) == 1
    retriever.gate.set()
    while runner.busy:
        runner.step()
    assert request.finish == "length" and (it.report["overlapped"] > 0) is overlap


def test_answers_beside_one_another_are_those_alone(llm: LLM, index: PassageIndex, pool: ThreadPoolExecutor) -> None:
    each = [replace(PARAMS, seed=seed) for seed in range(4)]
    want = [generate(llm, QUESTION, index, params, WISH).output.token_ids for params in each]
    [plain] = llm.generate(QUESTION, PARAMS, progress=False)
    runner = Runner({BASE: llm.engine})
    its = [policy(llm, index, pool, index.retriever("exact"), WISH) for _ in each]
    requests = [runner.submit(it.prompts.bare, params, it)[0] for it, params in zip(its, each)]
    [beside] = llm.engine.submit(llm.ids(QUESTION), PARAMS)
    while runner.busy or beside.finish is None:
        runner.step()
    assert [request.output for request in requests] == want and beside.output == plain.token_ids


def test_an_aborted_answer_leaves_nothing(llm: LLM, index: PassageIndex, pool: ThreadPoolExecutor) -> None:
    for steps in range(0, 30, 3):
        runner, it = Runner({BASE: llm.engine}), policy(llm, index, pool, index.retriever("exact"), WISH)
        [request] = runner.submit(it.prompts.bare, PARAMS, it)
        for _ in range(steps):
            runner.step()
        runner.abort(request)
        assert request.finish in ("abort", "length") and not runner.busy and not llm.engine.busy
        llm.engine.cache.check_integrity()
        assert llm.engine.snapshot().used == 0 and "passages" in it.report


def test_the_context_ends_the_answer(llm: LLM, index: PassageIndex) -> None:
    wish = replace(WISH, passage_tokens=760)
    answer = generate(llm, QUESTION, index, replace(PARAMS, max_tokens=None, ignore_eos=True), wish)
    assert answer.output.finish_reason == "length"
    assert (
        len(answer.output.token_ids)
        == llm.engine.model.max_len - QuestionPrompts(llm.text, QUESTION, index.passages, wish).longest
    )
    with pytest.raises(InputError, match="the context holds"):
        generate(llm, QUESTION, index, PARAMS, replace(WISH, passage_tokens=1020))


def test_what_is_before_the_passage_stays_cached(llm: LLM, index: PassageIndex) -> None:
    question = QUESTION * 6
    first = generate(llm, question, index, PARAMS, replace(WISH, prefetch=2, stride=1))
    report = first.report
    assert report["strides"] == len(first.output.token_ids) / 4
    assert report["cached_tokens"] >= (report["strides"] - 1) * (len(llm.ids(question)) // 8 * 8)


def test_the_template_is_filled_once(llm: LLM, index: PassageIndex) -> None:
    wish = replace(WISH, template="{title}: {passage} / {question}")
    prompts = QuestionPrompts(llm.text, "What is {passage}?", index.passages, wish)
    passage = index.passages[3]
    assert (
        llm.text.decode(prompts.of(3)).removeprefix("<bos>")
        == f"{passage.title}: {passage.text} / What is {{passage}}?"
    )
    for bad in ([{"role": "assistant", "content": "x"}], [{"role": "user", "content": " "}], []):
        with pytest.raises(InputError, match="the user's and has a text"):
            QuestionPrompts(llm.text, bad, index.passages, wish)
