"""`Datastore`: contexts of a corpus and the tokens that followed them, for a model that looks at what came next before
(KNN-LM, Khandelwal et al. 2020).

A context's key is a projection of the model's own log-probabilities there, scaled and rounded as passages' vectors are:
two contexts are near where the model expects the same. It is all that a processor of logits sees, so any request can be
served; the paper takes a hidden state.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.core.errors import InputError
from paceline.core.files import open_regular
from paceline.core.plan import TOLD_ROWS
from paceline.core.rows import RowsBuilder
from paceline.retrieve.arrays import arrays
from paceline.retrieve.dense import VECTOR_SCALE, Vectors, whole
from paceline.retrieve.retriever import Hit, Scores, best

if TYPE_CHECKING:
    from paceline.engine.llm import LLM

KEY_WIDTH = 128
"""Numbers of a key."""
MIN_LOGPROB = -20.0
"""Log-probabilities below count as this: impossible tokens are not distinguished."""


@lru_cache(maxsize=4)
def directions(vocab: int) -> Tensor:
    """[V, KEY_WIDTH] The projection: the same for every datastore of a vocabulary."""
    made: Tensor = torch.randn(vocab, KEY_WIDTH, generator=torch.Generator().manual_seed(0))
    return made


def keys_of(logits: Tensor) -> NDArray[np.int16]:
    """[n, KEY_WIDTH] Keys of contexts by the logits [n, V] after them; each row by itself, so that none depends on the
    others."""
    spread = logits.float().log_softmax(-1).clamp(min=MIN_LOGPROB)
    spread = spread - spread.mean(-1, keepdim=True)
    made = torch.stack([row @ directions(logits.shape[-1]) for row in spread])
    return whole(torch.nn.functional.normalize(made, dim=-1).numpy())


class Datastore:
    """Keys and values in the order of the corpus. A `Retriever` of entries, exact."""

    kind, ranks_exactly, unit = "exact", True, float(VECTOR_SCALE**2)

    def __init__(self, keys: NDArray[np.int16], values: NDArray[np.int32]) -> None:
        """`keys` [N, KEY_WIDTH], `values` [N]: the token that follows each context."""
        if not len(keys):
            raise InputError("The corpus has no text of two tokens; give some.")
        self.keys: Vectors = np.ascontiguousarray(keys, dtype=np.float32)
        self.values, self.size = values, len(values)

    @classmethod
    def build(cls, llm: "LLM", texts: Sequence[str], longest: int = 256) -> "Datastore":
        """Build the datastore from texts, each cut to `longest` tokens, with one pass of the model per text."""
        keys, values = [], []
        for text in texts:
            ids = llm.ids(text)[:longest]
            if len(ids) > 1:
                keys.append(keys_of(_logits(llm, ids[:-1])))
                values += ids[1:]
        return cls(np.concatenate(keys) if keys else np.empty((0, KEY_WIDTH), np.int16), np.array(values, np.int32))

    def save(self, path: Path | str) -> None:
        np.savez(path, keys=self.keys.astype(np.int16), values=self.values)

    @classmethod
    def load(cls, path: Path | str) -> "Datastore":
        """Read what `save` wrote. InputError for a file that is none."""
        with open_regular(Path(path), "datastore") as file:
            try:
                found = arrays(file, ("keys", "values"))
            except ValueError as error:
                raise InputError(f"{path} holds no datastore ({error}); paceline index --model makes one.") from None
        keys, values = found
        if values.ndim != 1 or keys.shape != (len(values), KEY_WIDTH) or {keys.dtype.kind, values.dtype.kind} != {"i"}:
            raise InputError(f"{path} holds no datastore of this version; make it again with paceline index --model.")
        if not len(values) or values.min() < 0:
            raise InputError(f"{path} holds a datastore without tokens; make it again with paceline index --model.")
        return cls(keys, values)

    def query(self, text: Any) -> Vectors:
        raise InputError("A datastore is asked by logits; use keys_of.")

    def search(self, queries: Sequence[Vectors], k: int) -> list[list[Hit]]:
        scores = (np.stack(queries) @ self.keys.T).astype(np.int64)
        return [best(row, k) for row in scores]

    def scores(self, query: Vectors, ids: Sequence[int]) -> Scores:
        return cast(Scores, (self.keys[list(ids)] @ query).astype(np.int64))


def _logits(llm: "LLM", ids: list[int]) -> Tensor:
    """[len(ids), V] of one text, in passes of at most the row budget; its K/V leaves nothing behind."""
    engine, parts = llm.engine, []
    lease = engine.cache.open([])
    try:
        txn = engine.cache.begin(lease, len(ids), 0)
        most = min(TOLD_ROWS, engine.config.row_budget)
        for at in range(0, len(ids), most):
            part = ids[at : at + most]
            builder = RowsBuilder()
            builder.add(part, txn.slots[at : at + len(part)], txn.table, at, want=list(range(len(part))))
            parts.append(engine.model.forward(builder.build(engine.model.device)).logits.cpu())
    finally:
        engine.cache.close(lease)
    return torch.cat(parts)
