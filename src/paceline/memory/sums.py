"""One byte budget for everything above the bare process, decided before anything is loaded.

After SpecMemo (arXiv 2506.01986). With T rows a pass, of which D are drafted, B requests, N blocks, vocabulary V:

    weights   W_target + W_draft                                       as they are packed
    K/V       N * (kv_target + kv_draft) + N * block_size * TEXT       tree slots included: nodes live in blocks
    logits    HEAP_SHARE * 4 V * max(JUDGED * min(T, B + D + TOLD_ROWS) + Q * D, DRAWN * D) + CHUNK
              D: at least one row of each request; TABLES for DRAWN without a draft model
    scratch   max(pass of the target over T rows, pass of the draft over T + D)
    rest      HOST, tokenizers, drafters' memories

    Total(N, T, B) = rest + max(weights + loading, weights + K/V + logits + scratch)  <=  budget

What a rule that looks at q keeps of a draft, a float64 row of V numbers a node, is often the largest of these.
"""

from dataclasses import dataclass, replace

from paceline.core.plan import TOLD_ROWS
from paceline.model.footprint import Footprint

JUDGED = 5
"""Rows of V float32 for each row that is judged: logits, those picked, scores, those verified, those drawn."""
Q = 2
"""Rows of V float32 for each node while it is judged: the distribution that it was drawn from, in float64."""
TABLES = 4
"""Rows for each node while it is drafted: that distribution twice, as tables are joined."""
DRAWN = 8
"""Rows for each node where a draft model draws it: that distribution, and logits, scores and what it is made of."""
HEAP_SHARE = 2
"""Bytes that the heap takes for each byte of such rows: not all that is freed serves what is asked for next."""
CHUNK = 64
"""Bytes for each number of the chunk that the sampler is at (sample/chunks.py)."""
NUMBERS = 1 << 18
TEXT = 1024
"""Bytes of book-keeping for each slot: a text's tokens, marks and hashes, and what drafters know of it."""
MEMORIES = 1 << 20, 1 << 28
"""Least and most for what drafters remember of past texts; between, a sixteenth of what is left."""
HELD = 3
"""Copies of the hidden state of a row that waits between two layers: what is held, what a pass enters with, and what it
leaves with."""
HOST = 19 << 20
"""Python objects, heaps that are not full, and what is loaded on first use."""


@dataclass(frozen=True, slots=True)
class BudgetShape:
    """What a budget comes to."""

    blocks: int
    rows: int
    """Most rows of a pass."""
    drafted: int
    """Most drafted rows of a step, of all requests together."""
    requests: int
    """Most running at once."""
    remember: int = 1 << 20
    """Bytes for what drafters remember of past texts."""


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """The arithmetic for a pair of models. `rest`: bytes of what else is loaded, such as tokenizers."""

    target: Footprint
    draft: Footprint | None
    max_len: int
    block_size: int
    rest: int = 0
    held: int = 0
    """Bytes of a row that waits between two layers, 0 where none does; up to HELD copies of it exist at a time."""

    state_limit: int | None = None
    """Bytes of the states that lie with blocks, at most; None: one lies with each."""

    def states(self, blocks: int) -> int:
        """Bytes of the states that lie with these blocks."""
        every = blocks * self.states_of_one
        return every if self.state_limit is None else min(every, self.state_limit)

    @property
    def snapshots(self) -> int | None:
        """Most states that lie with blocks; None: one with each."""
        return None if self.state_limit is None else self.state_limit // self.states_of_one

    @property
    def states_of_one(self) -> int:
        """Bytes of the states of one text."""
        return sum(m.state for m in (self.target, self.draft) if m is not None)

    def parts(self, shape: BudgetShape) -> dict[str, int]:
        """Bytes by name; their sum is the peak while serving."""
        models = [m for m in (self.target, self.draft) if m is not None]
        slots = shape.blocks * self.block_size
        length = min(self.max_len, slots)
        judged = min(shape.rows, shape.requests + shape.drafted + TOLD_ROWS)
        drafted = max(shape.drafted, min(shape.requests, shape.rows - 1))  # of every request something may be drawn
        wide = max(JUDGED * judged + Q * drafted, (DRAWN if self.draft else TABLES) * drafted)
        chunk = min(judged * self.target.vocab, max(NUMBERS, self.target.vocab))
        scratch = self.target.scratch(shape.rows, shape.requests, length)
        if self.draft is not None:
            scratch = max(scratch, self.draft.scratch(shape.rows + drafted, shape.requests, length))
        scratch += HELD * shape.rows * self.held
        return {
            "weights": sum(m.weights for m in models),
            "kv": sum(m.kv(shape.blocks, self.block_size) for m in models) + slots * TEXT,
            "states": self.states(shape.blocks),
            "logits": HEAP_SHARE * 4 * self.target.vocab * wide + CHUNK * chunk,
            "scratch": scratch,
            "rest": HOST + self.rest + shape.remember,
        }

    def total(self, shape: BudgetShape) -> int:
        """The peak, of loading and of serving."""
        parts = self.parts(shape)
        loading = parts["rest"] + self.target.weights + self.target.loading
        if self.draft is not None:
            loading = max(loading, parts["rest"] + parts["weights"] + self.draft.loading)
        return max(loading, sum(parts.values()))

    def smallest(self, blocks: int | None = None) -> BudgetShape:
        """One row a pass, and blocks for the shortest request: a token of prompt and one of output."""
        return BudgetShape(blocks or -(-2 // self.block_size), 1, 0, 1)

    def longest(self, budget: int) -> int:
        """Tokens of the longest context that fits, alone and with one row a pass; at most `max_len`."""
        most = self.most_blocks(budget, self.smallest(), -(-self.max_len // self.block_size))
        return min(self.max_len, most * self.block_size)

    def most_blocks(self, budget: int, shape: BudgetShape, most: int) -> int:
        """The most blocks, up to `most`, with which `shape` stays within the budget; 0 where none does."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.total(replace(shape, blocks=middle)) <= budget
            low, high = (middle, high) if fits else (low, middle - 1)
        return low
