"""Speculative retrieval writes the text of a retrieval at a time: every retriever, stride, thread count and seed."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import LLM, SamplingParams
from paceline.retrieve import PassageIndex, Retrieval, generate
from tests.retrieve.scenes import one_at_a_time

QUESTION = "Tom has 3 apples and buys 4 more."
PARAMS = SamplingParams(temperature=0.8, max_tokens=33, drafter="none")


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1 << 32), kind=st.sampled_from(["exact", "hnsw", "bm25"]),
    stride=st.sampled_from([None, 1, 2, 3, 5]), every=st.integers(1, 6), prefetch=st.sampled_from([1, 3, 40]),
    overlap=st.booleans(), threads=st.sampled_from([1, 2]), drafter=st.sampled_from(["none", "ngram"]),
    greedy=st.booleans(), stop=st.sampled_from([(), ("e",), ("qu",)]),
)  # fmt: skip
def test_every_way_writes_the_same_text(
    llm: LLM, index: PassageIndex, seed: int, kind: str, stride: int | None, every: int, prefetch: int, overlap: bool,
    threads: int, drafter: str, greedy: bool, stop: tuple[str, ...],
) -> None:  # fmt: skip
    params = replace(PARAMS, seed=seed, stop=stop, temperature=0.0 if greedy else 0.8)
    wish = Retrieval(every, stride, kind, prefetch=prefetch, overlap=overlap, query_tokens=8)
    want = one_at_a_time(llm, QUESTION, index.passages, index.retriever(kind), params, wish)
    got = generate(llm, QUESTION, index, replace(params, drafter=drafter), wish, threads=threads)
    assert got.output.token_ids == want
    assert got.report["calls"] == got.report["rounds"] + 1 == len(got.report["batches"])
    assert sum(got.report["batches"]) == got.report["proposed"] + 1
    assert not llm.engine.busy and llm.engine.snapshot().used == 0


def test_what_is_asserted_happens(llm: LLM, index: PassageIndex) -> None:
    """Guesses that are right and wrong, strides dropped and overlapped, texts that end in a stride."""
    seen = dict.fromkeys(("accepted", "wrong", "dropped_tokens", "overlapped", "early"), 0)
    for seed in range(20):
        wish = Retrieval(4, 3, "exact", prefetch=2, query_tokens=8)
        report = (made := generate(llm, QUESTION, index, replace(PARAMS, seed=seed, stop="e"), wish)).report
        seen["wrong"] += report["proposed"] - report["accepted"]
        seen["early"] += made.output.finish_reason == "stop"
        for name in ("accepted", "dropped_tokens", "overlapped"):
            seen[name] += report[name]
    assert all(seen.values()), seen
