"""Dense retrieval: inner products of vectors, of all passages (`exact`) or by a graph (`hnsw`).

Vectors of unit length are scaled by `VECTOR_SCALE` and rounded. By Cauchy and Schwarz every partial sum of a product of
two such vectors is a whole number below 2^24, so float32 adds them without an error: any order of summation, any batch,
any library and any number of threads give the same score.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import InputError
from paceline.retrieve.encoder import Encoder
from paceline.retrieve.retriever import Hit, Scores, best

VECTOR_SCALE = 4000
MAX_VECTOR_WIDTH = 36_000
"""Numbers per vector: rounding lengthens a vector of this size to less than 4,096 = 2^12."""
Vectors = NDArray[np.float32]
CONNECT, BUILD, SEARCH = 32, 80, 64
"""Parameters of the graph: edges per node, and candidates kept while building and while searching (Malkov and
Yashunin)."""


def whole(vectors: NDArray[np.floating[Any]]) -> NDArray[np.int16]:
    """[n, d] unit vectors as whole numbers of at most `VECTOR_SCALE`."""
    if vectors.shape[1] > MAX_VECTOR_WIDTH:
        raise InputError(f"The encoder's vectors have {vectors.shape[1]} numbers, but {MAX_VECTOR_WIDTH} are the most.")
    return np.rint(vectors.astype(np.float64) * VECTOR_SCALE).astype(np.int16)


class ExactVectors:
    """Exact: one product of all vectors and all queries of a call. Many queries cost little more than one, because the
    vectors are read once."""

    kind, ranks_exactly, unit = "exact", True, float(VECTOR_SCALE**2)

    def __init__(self, vectors: NDArray[np.int16], encoder: Encoder) -> None:
        """`vectors`: [N, d], as `whole` makes them."""
        self.vectors: Vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        self.encoder, self.size = encoder, len(vectors)

    def query(self, text: str) -> Vectors:
        return cast(Vectors, whole(self.encoder.encode([text]))[0].astype(np.float32))

    def search(self, queries: Sequence[Vectors], k: int) -> list[list[Hit]]:
        scores = (np.stack(queries) @ self.vectors.T).astype(np.int64)
        return [best(row, k) for row in scores]

    def scores(self, query: Vectors, ids: Sequence[int]) -> Scores:
        return cast(Scores, (self.vectors[list(ids)] @ query).astype(np.int64))


class VectorGraph(ExactVectors):
    """Approximate: a walk through a graph of near neighbours (faiss, HNSW), in a time that hardly grows with N."""

    kind, ranks_exactly = "hnsw", False

    def __init__(self, vectors: NDArray[np.int16], encoder: Encoder, graph: Any) -> None:
        super().__init__(vectors, encoder)
        self.graph = graph

    def search(self, queries: Sequence[Vectors], k: int) -> list[list[Hit]]:
        scores, ids = self.graph.search(np.stack(queries), min(k, self.size))
        return [
            sorted(((int(i), int(s)) for i, s in zip(*row) if i >= 0), key=lambda hit: (-hit[1], hit[0]))
            for row in zip(ids, scores)
        ]


def connect(vectors: NDArray[np.int16]) -> Any:
    """The graph of these vectors. Built by one thread: the same vectors make the same graph."""
    faiss = library()
    graph = faiss.IndexHNSWFlat(vectors.shape[1], CONNECT, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = BUILD
    graph.add(np.ascontiguousarray(vectors, dtype=np.float32))
    graph.hnsw.efSearch = SEARCH
    return graph


def read_graph(path: Path) -> Any:
    return library().read_index(str(path))


def write_graph(graph: Any, path: Path) -> None:
    library().write_index(graph, str(path))


def library() -> Any:
    """faiss, which has a thread pool of its own: one thread, so that it takes none from the model."""
    try:
        import faiss
    except ImportError:
        raise InputError("hnsw needs faiss, which is not installed: pip install 'paceline[rag]'.") from None
    faiss.omp_set_num_threads(1)
    return faiss
