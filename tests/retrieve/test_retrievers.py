"""Scores that are whole numbers, the ranking property, ties, and a cache that ranks as the knowledge base does."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from paceline.retrieve.dense import VECTOR_SCALE, ExactVectors, VectorGraph, connect, whole
from paceline.retrieve.retriever import PassageCache, Retriever, best
from paceline.retrieve.sparse import Sparse
from tests.retrieve.scenes import WORDS, Hashed

pytest.importorskip("bm25s", reason="bm25s is not installed: the rag extra")
pytest.importorskip("faiss", reason="faiss is not installed: the rag extra")
COUNT = 300


def texts(seed: int = 0) -> list[str]:
    draw = np.random.default_rng(seed)
    made = [" ".join(draw.choice(WORDS.split(), 12)) for _ in range(COUNT)]
    return [*made, *made[:20]]  # the last are twins of the first


@pytest.fixture(scope="module")
def retrievers() -> dict[str, Retriever]:
    encoder = Hashed()
    vectors = whole(encoder.encode(texts()))
    return {"exact": ExactVectors(vectors, encoder), "hnsw": VectorGraph(vectors, encoder, connect(vectors)),
            "bm25": Sparse.of(texts())}  # fmt: skip


def unit(seed: int, count: int, width: int) -> NDArray[np.float64]:
    vectors = np.random.default_rng(seed).standard_normal((count, width))
    made: NDArray[np.float64] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return made


@pytest.mark.parametrize("width", [8, 384, 4096])
def test_float32_adds_whole_vectors_without_an_error(width: int) -> None:
    a, b = whole(unit(0, 64, width)), whole(unit(1, 64, width))
    worst = np.zeros((1, width))
    worst[0, 0] = 1
    a, b = np.concatenate([a, whole(worst), b[:1]]), np.concatenate([b, whole(worst), b[:1]])
    want = a.astype(np.int64) @ b.astype(np.int64).T
    assert ((a.astype(np.float32) @ b.astype(np.float32).T) == want).all()
    one = np.array([np.dot(a[i].astype(np.float32), b[j].astype(np.float32)) for i in range(66) for j in range(66)])
    assert (one.reshape(66, 66) == want).all()
    assert want.max() < 2**24 and want[64, 64] == VECTOR_SCALE**2


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.integers(1, 50))
def test_of_equal_scores_the_lower_number_is_first(scores: list[int], k: int) -> None:
    want = sorted(((-score, i) for i, score in enumerate(scores)))[:k]
    assert best(np.array(scores, np.int64), k) == [(i, -score) for score, i in want]


@pytest.mark.parametrize("kind", ["exact", "hnsw", "bm25"])
def test_a_batch_finds_what_one_query_finds(retrievers: dict[str, Retriever], kind: str) -> None:
    it = retrievers[kind]
    queries = [it.query(text) for text in ("Tom counts apple river", "green dog sleeps", "seven", "xyz", "")]
    together = it.search(queries, 7)
    assert together == [it.search([query], 7)[0] for query in queries]
    for query, hits in zip(queries, together):
        ids = [number for number, _ in hits]
        assert len(set(ids)) == 7
        assert it.scores(query, ids).tolist() == [score for _, score in hits]


def test_a_twin_is_another_passage(retrievers: dict[str, Retriever]) -> None:
    for kind in ("exact", "bm25"):
        it = retrievers[kind]
        [hits] = it.search([it.query(texts()[3])], 2)
        assert [number for number, _ in hits] == [3, COUNT + 3] and hits[0][1] == hits[1][1]


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["exact", "bm25"]), words=st.lists(st.sampled_from(WORDS.split()), min_size=1, max_size=9),
    others=st.sets(st.integers(0, COUNT + 19), max_size=30),
)  # fmt: skip
def test_a_cache_that_holds_the_best_returns_it(
    retrievers: dict[str, Retriever], kind: str, words: list[str], others: set[int]
) -> None:
    it = retrievers[kind]
    query = it.query(" ".join(words))
    [[first]] = it.search([query], 1)
    cache = PassageCache(it)
    assert cache.top(query) is None
    cache.add([*others, first[0]])
    assert it.ranks_exactly and cache.top(query) == first


def test_bm25_is_the_library_s(retrievers: dict[str, Retriever]) -> None:
    import bm25s

    model = bm25s.BM25(method="lucene")
    model.index(bm25s.tokenize(texts(), stopwords="en", return_ids=False, show_progress=False), show_progress=False)
    it = retrievers["bm25"]
    words = ["tom", "counts", "river", "river"]
    want = model.get_scores(words)
    got = it.scores(it.query(" ".join(words)), range(COUNT + 20)) / it.unit
    assert np.abs(got - want).max() < 1e-4 and want.max() > 1


def test_the_graph_finds_most_of_what_the_product_finds(retrievers: dict[str, Retriever]) -> None:
    exact, graph = retrievers["exact"], retrievers["hnsw"]
    assert not graph.ranks_exactly
    queries = [exact.query(text[:30]) for text in texts()[::10]]
    same = sum(a[0] == b[0] for a, b in zip(exact.search(queries, 1), graph.search(queries, 1)))
    assert same >= 0.9 * len(queries)


def test_bm25_is_read_as_it_was_written(retrievers: dict[str, Retriever], tmp_path: Path) -> None:
    it = retrievers["bm25"]
    assert isinstance(it, Sparse)
    it.save(tmp_path / "bm25.npz")
    again = Sparse.load(tmp_path / "bm25.npz")
    assert again.terms == it.terms
    query = it.query("green dog sleeps")
    assert again.query("green dog sleeps") == query and again.search([query], 9) == it.search([query], 9)
