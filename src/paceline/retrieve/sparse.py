"""Sparse retrieval: BM25 with the statistics of the whole index (bm25s), its terms rounded to whole numbers."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import InputError
from paceline.core.files import open_regular
from paceline.retrieve.arrays import arrays
from paceline.retrieve.retriever import Hit, Scores, best

SCORE_PARTS = 1 << 16
"""Parts of a score of 1: sums of whole numbers have one value in any order."""
SPARSE_ARRAYS = ("words", "numbers", "starts", "ids", "parts", "size")


class Sparse:
    """BM25. What a term adds to a passage's score is computed once, from counts over all passages, so that a cache of a
    few passages scores them as the whole index does."""

    kind, ranks_exactly, unit = "bm25", True, float(SCORE_PARTS)

    def __init__(self, terms: dict[str, int], starts: NDArray[np.int64], ids: NDArray[np.int32],
                 parts: NDArray[np.int64], size: int) -> None:  # fmt: skip
        """Term t is in passages `ids[starts[t]:starts[t+1]]`, ascending, and adds `parts` there."""
        self.terms, self.starts, self.ids, self.parts, self.size = terms, starts, ids, parts, size

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Sparse":
        """The index of these passages."""
        model = library().BM25(method="lucene")
        model.index(split(texts), show_progress=False)
        starts, ids = model.scores["indptr"].astype(np.int64), model.scores["indices"].astype(np.int32)
        parts = np.rint(model.scores["data"].astype(np.float64) * SCORE_PARTS).astype(np.int64)
        for a, b in pairwise(starts.tolist()):
            order = np.argsort(ids[a:b], kind="stable")
            ids[a:b], parts[a:b] = ids[a:b][order], parts[a:b][order]
        return cls({str(term): int(t) for term, t in model.vocab_dict.items() if term}, starts, ids, parts, len(texts))

    def save(self, path: Path) -> None:
        words = sorted(self.terms, key=self.terms.__getitem__)
        numbers = np.array([self.terms[word] for word in words], np.int64)
        np.savez(path, words=np.array("\n".join(words)), numbers=numbers, starts=self.starts, ids=self.ids,
                 parts=self.parts, size=np.array(self.size))  # fmt: skip

    @classmethod
    def load(cls, path: Path) -> "Sparse":
        library()
        with open_regular(path, "index") as file:
            try:
                words, numbers, starts, ids, parts, size = arrays(file, SPARSE_ARRAYS)
                made = cls(dict(zip(str(words).split("\n"), numbers.tolist())), starts, ids, parts, int(size))
                made.check()
                return made
            except (ValueError, TypeError) as error:
                raise InputError(f"{path} holds no terms of an index ({error}); build the index again.") from None

    def check(self) -> None:
        """Raise ValueError where a search would read outside of the arrays."""
        starts, ids = self.starts, self.ids
        flat = all(each.ndim == 1 and each.dtype.kind == "i" for each in (starts, ids, self.parts))
        if not flat or not len(starts) or len(ids) != len(self.parts) or starts[0] < 0 or starts[-1] > len(ids):
            raise ValueError("its arrays do not fit together")
        if (starts[1:] < starts[:-1]).any() or (len(ids) and not (ids.min() >= 0 and ids.max() < self.size)):
            raise ValueError("its numbers are those of another index")
        if not all(isinstance(at, int) and 0 <= at < len(starts) - 1 for at in self.terms.values()):
            raise ValueError("its terms are those of another index")

    def query(self, text: str) -> list[int]:
        """The numbers of the terms that the index has, as often as the text has them."""
        return [self.terms[word] for word in split([text])[0] if word in self.terms]

    def search(self, queries: Sequence[list[int]], k: int) -> list[list[Hit]]:
        return [best(self._all(query), k) for query in queries]

    def _all(self, query: Sequence[int]) -> Scores:
        scores = np.zeros(self.size, np.int64)
        for term in query:
            span = slice(self.starts[term], self.starts[term + 1])
            scores[self.ids[span]] += self.parts[span]
        return scores

    def scores(self, query: Sequence[int], ids: Sequence[int]) -> Scores:
        wanted, scores = np.asarray(ids, np.int32), np.zeros(len(ids), np.int64)
        for term in query:
            span = slice(self.starts[term], self.starts[term + 1])
            have = self.ids[span]
            at = np.searchsorted(have, wanted)
            found = at < len(have)
            found[found] = have[at[found]] == wanted[found]
            scores[found] += self.parts[span][at[found]]
        return scores


def split(texts: Sequence[str]) -> list[list[str]]:
    """The terms of each text: words in lower case, without English stop words."""
    made: list[list[str]] = library().tokenize(list(texts), stopwords="en", return_ids=False, show_progress=False)
    return made


def library() -> Any:
    try:
        import bm25s
    except ImportError:
        raise InputError("bm25 needs bm25s, which is not installed: pip install 'paceline[rag]'.") from None
    return bm25s
