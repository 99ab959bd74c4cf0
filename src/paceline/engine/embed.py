"""Vectors of texts from the served decoder's last hidden states: passes of their own between the engine's steps."""

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from paceline.cache.lease import Lease
from paceline.core.errors import CapacityError, InputError
from paceline.core.rows import RowsBuilder

if TYPE_CHECKING:
    from paceline.engine.loop import Engine

Pooling = Literal["mean", "last"]
POOLINGS: tuple[str, ...] = get_args(Pooling)
TAP = "post_norm"
PASS_S, LEAST_ROWS = 0.02, 16
"""Expected time of a pass while others decode, in seconds, and its least number of rows."""
EMBEDDED_ROWS = 512
"""Most rows of a pass: hidden states of all are copied."""


class Embedding:
    """Some texts on their way to one vector each. `step` makes one pass of at most the engine's `row_budget` rows, so
    that decoding requests wait no longer than for a prompt. For the engine's thread.

    The K/V of one text at a time lives in the cache, under an open transaction that is aborted at its end: it is never
    published, and nothing that others share goes for it but what is evictable.
    """

    def __init__(
        self, engine: "Engine", texts: Sequence[Sequence[int]], pooling: str, adapter: str = ""
    ) -> None:  # fmt: skip
        """`texts`: token ids, at most `max_len` each. Raises InputError and CapacityError. `close` when it is over."""
        if pooling not in POOLINGS:
            raise InputError(f"pooling is {pooling!r}, but it must be {' or '.join(POOLINGS)}.")
        for ids in texts:
            check(engine, ids)
        self.engine, self.texts, self.pooling = engine, texts, pooling
        self.slot = engine.session.adapters.lend(adapter, self)
        self.lease: Lease | None = None
        self._rate: float | None = None
        """Rows a second of the latest pass."""
        self.vectors: list[Tensor] = []
        """[H] float32 of unit length, of the texts that are done."""

    @property
    def done(self) -> bool:
        return len(self.vectors) == len(self.texts)

    def start(self) -> None:
        """Begin the next text. CapacityError while there is no room; nothing has changed then."""
        cache, ids = self.engine.cache, self.texts[len(self.vectors)]
        lease = cache.open([])
        try:
            self.txn = cache.begin(lease, len(ids), 0)
        except CapacityError:
            cache.close(lease)
            raise
        self.lease = lease
        self.at, self.sum = 0, torch.zeros(())

    def step(self) -> bool:
        """One pass over the text that was begun; True when that text is done."""
        ids, engine, started = self.texts[len(self.vectors)], self.engine, perf_counter()
        end = min(len(ids), self.at + self._most())
        builder = RowsBuilder()
        builder.add(
            list(ids[self.at : end]), self.txn.slots[self.at : end], self.txn.table, self.at, want=[], adapter=self.slot
        )
        hidden = engine.model.forward(builder.build(engine.model.device, (TAP,))).taps[TAP].float().cpu()
        self.sum = hidden[-1] if self.pooling == "last" else self.sum + hidden.sum(0)
        self._rate, self.at = (end - self.at) / max(1e-9, perf_counter() - started), end
        if end == len(ids):
            self.vectors.append(torch.nn.functional.normalize(self.sum, dim=0))
            self.end()
        return end == len(ids)

    def _most(self) -> int:
        """Rows of the next pass."""
        most = min(EMBEDDED_ROWS, self.engine.config.row_budget)
        if not self.engine.busy:
            return most
        return min(most, LEAST_ROWS if self._rate is None else max(LEAST_ROWS, int(PASS_S * self._rate)))

    def close(self) -> None:
        """Give back all that it holds. Harmless when repeated."""
        self.end()
        slot, self.slot = self.slot, 0
        self.engine.session.adapters.give_back(slot, self)

    def end(self) -> None:
        """Give the cache's blocks back, also where a text was not finished. Harmless when repeated."""
        lease, self.lease = self.lease, None
        if lease is not None:
            self.engine.cache.close(lease)


def check(engine: "Engine", ids: Sequence[int]) -> None:
    """Can this text ever be embedded?"""
    model, cache = engine.model, engine.cache
    if not ids:
        raise InputError("input has a text without tokens; give at least one.")
    if len(ids) > model.max_len:
        raise InputError(f"input has a text of {len(ids)} tokens, but the context holds {model.max_len}; shorten it.")
    bad = next((token for token in ids if not 0 <= token < model.vocab_size), None)
    if bad is not None:
        raise InputError(f"input has the id {bad}, but this model's ids are 0 to {model.vocab_size - 1}.")
    if cache.blocks_for(len(ids)) > cache.num_blocks:
        most = cache.num_blocks * cache.block_size
        raise CapacityError(f"input has a text of {len(ids)} tokens, but the K/V cache holds {most}; shorten it.")
