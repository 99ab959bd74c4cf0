"""A table-driven Markov target (vocabulary 7, float64) that reads its context through the paged pool.

The logits of a row depend on its position and on the last three tokens of its context; tokens of committed rows are
read back from the slots the block table names, those of candidates through the tree words. A wrong slot, block, mask,
position or move therefore changes the text.
"""

from collections.abc import Sequence

import torch

from paceline.core.noise import keys_tensor
from paceline.core.rows import Out, Rows, RowsBuilder, Straight
from paceline.sample.filters import Warp, law
from paceline.sample.race import race, winners

VOCAB = 7
ORDER = 3
PHASES = 5


def table(seed: int, sharpness: float = 2.0) -> torch.Tensor:
    """[PHASES, (V+1)^3, V] logits."""
    g = torch.Generator().manual_seed(seed)
    return sharpness * torch.randn(PHASES, (VOCAB + 1) ** ORDER, VOCAB, generator=g, dtype=torch.float64)


class Toy:
    """Implements `core.rows.Model` with a pool of token ids in place of K/V."""

    def __init__(self, logits: torch.Tensor, max_len: int = 64) -> None:
        self.table = logits
        self.vocab_size, self.max_len = VOCAB, max_len
        self.kv_bytes_per_token, self.weight_bytes = 8, logits.numel() * 8
        self.device = torch.device("cpu")
        self.forwards = 0

    def allocate(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.pool = [-7] * (blocks * block_size)

    def next_logits(self, context: list[int]) -> torch.Tensor:
        """Logits [V] after `context`: the definition."""
        code = 0
        for token in [VOCAB] * ORDER + context[-ORDER:]:
            code = (code * (VOCAB + 1) + token) % (VOCAB + 1) ** ORDER
        return self.table[len(context) % PHASES, code]

    def forward(self, rows: Rows) -> Out:
        self.forwards += 1
        token, slot, word = rows.token.tolist(), rows.slot.tolist(), rows.word.tolist()
        position, tables = rows.position.tolist(), rows.tables.tolist()
        for s, t in zip(slot, token):
            self.pool[s] = t
        logits: list[torch.Tensor] = [torch.empty(0)] * len(token)
        for segment, blocks in zip(rows.segments, tables):
            size = self.block_size
            for rank in range(segment.rows):
                row = segment.start + rank
                seen = min(segment.base + rank + 1, segment.base + segment.given)
                context = [self.pool[blocks[p // size] * size + p % size] for p in range(seen)]
                first = segment.start + segment.given
                context += [token[first + j] for j in range(segment.nodes) if word[row] >> j & 1]
                assert position[row] == len(context) - 1, "position is not the depth of the row in its text"
                logits[row] = self.next_logits(context)
        want = rows.want.tolist()
        return Out(torch.stack([logits[i] for i in want]) if want else torch.empty(0, VOCAB, dtype=torch.float64))

    def run(self, rows: Rows, passes: int, texts: Sequence[Straight]) -> Out:
        """Passes one by one, tokens drawn by the sampler's own parts."""
        drawn: list[list[int]] = [[] for _ in texts]
        live = list(range(len(texts)))
        logits, tables = self.forward(rows).logits, rows.tables.tolist()
        while live:
            builder, going = RowsBuilder(), []
            for i, x in zip(live, logits):
                text, segment = texts[i], rows.segments[i]
                if text.temperature:
                    key = keys_tensor([text.keys[len(drawn[i])]])
                    [token] = race(law(x[None], [Warp(text.temperature, 0, 1.0, 0.0)]), key)
                else:
                    [token] = winners(x[None])
                drawn[i].append(token)
                if token >= 0 and token not in text.ends and len(drawn[i]) < passes:
                    at = segment.base + segment.given + len(drawn[i]) - 1
                    slot = tables[i][at // self.block_size] * self.block_size + at % self.block_size
                    builder.add([token], [slot], tables[i], at)
                    going.append(i)
            live = going
            if live:
                logits = self.forward(builder.build()).logits
        return Out(torch.empty(0, VOCAB), drawn=drawn)

    def move(self, source: list[int], target: list[int]) -> None:
        values = [self.pool[s] for s in source]
        for t, value in zip(target, values):
            self.pool[t] = value
