"""A table-driven Markov target (vocabulary 7, float64) that reads its context through the paged pool.

The logits of a row depend on its position and on the last three tokens of its context; tokens of committed rows are
read back from the slots the block table names, those of candidates through the tree words. A wrong slot, block, mask,
position or move therefore changes the text.
"""

from array import array
from collections.abc import Sequence
from typing import cast

import torch

from paceline.core.program import WHOLE
from paceline.core.proposer import Continuation, Proposer, Turn
from paceline.core.result import Round
from paceline.core.rows import Drawn, Out, Rows, RowsBuilder
from paceline.sample.filters import Warp, law
from paceline.sample.noise import keys_tensor
from paceline.sample.race import race, winners

VOCAB = 7
ORDER = 3
PHASES = 5


def table(seed: int, sharpness: float = 2.0) -> torch.Tensor:
    """[PHASES, (V+1)^3, V] logits."""
    g = torch.Generator().manual_seed(seed)
    return sharpness * torch.randn(PHASES, (VOCAB + 1) ** ORDER, VOCAB, generator=g, dtype=torch.float64)


class Toy:
    """Implements `core.component.Runs` and `Embeds` with a pool of token ids in place of K/V. Its one hidden state,
    `post_norm`, is the row of the table that the logits are read from."""

    def __init__(self, logits: torch.Tensor, max_len: int = 64) -> None:
        self.table = logits
        self.vocab_size, self.max_len = VOCAB, max_len
        self.kv_bytes_per_token, self.weight_bytes = 8, logits.numel() * 8
        self.device = torch.device("cpu")
        self.width, self.taps, self.places = 2, (), frozenset({"post_norm"})
        self.abilities = frozenset({"run", "embed", "lend", "keys", "join"})
        self.lent = 0
        self.forwards = 0

    def allocate(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.pool = [-7] * (blocks * block_size)

    @staticmethod
    def state(context: list[int], length: int | None = None) -> list[float]:
        """The hidden state after `context`: where the table is read. `length`: the next token's position, where
        branches were joined."""
        code = 0
        for token in [VOCAB] * ORDER + context[-ORDER:]:
            code = (code * (VOCAB + 1) + token) % (VOCAB + 1) ** ORDER
        return [float((len(context) if length is None else length) % PHASES), float(code)]

    def next_logits(self, context: list[int], length: int | None = None) -> torch.Tensor:
        """Logits [V] after `context`: the definition."""
        phase, code = self.state(context, length)
        return self.table[int(phase), int(code)]

    def embed(self, token: torch.Tensor) -> torch.Tensor:
        return torch.stack([token, token], -1).to(torch.float64)

    def lend(self, table: torch.Tensor) -> int:
        """Rows beyond the vocabulary: a table of logits knows every id."""
        self.lent = len(table)
        return VOCAB

    def last_keys(self, slots: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """What the pool has in place of keys: one head of two numbers."""
        token = torch.tensor([self.pool[slot] for slot in slots], dtype=torch.float32).view(-1, 1, 1).expand(-1, 1, 2)
        return token, -token

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.table[hidden[:, 0].long(), hidden[:, 1].long()]

    def forward(self, rows: Rows) -> Out:
        self.forwards += 1
        assert rows.program is WHOLE and set(rows.taps) <= self.places
        token, slot, word = rows.token.tolist(), rows.slot.tolist(), rows.word.tolist()
        position, tables = rows.position.tolist(), rows.tables.tolist()
        for s, t in zip(slot, token):
            self.pool[s] = t
        states: list[list[float]] = [[]] * len(token)
        logits: list[torch.Tensor] = [torch.empty(0)] * len(token)
        for segment, blocks in zip(rows.segments, tables):
            size = self.block_size
            for rank in range(segment.rows):
                row = segment.start + rank
                seen = min(segment.base + rank + 1, segment.base + segment.given)
                hidden = {place for pair in segment.hidden for place in range(*pair)}
                context = [self.pool[blocks[p // size] * size + p % size] for p in range(seen) if p not in hidden]
                first = segment.start + segment.given
                context += [token[first + j] for j in range(segment.nodes) if word[row] >> j & 1]
                depth = len(context) + len(hidden) - segment.shift
                assert position[row] == depth - 1, "position is not the depth of the row in its text"
                states[row], logits[row] = self.state(context, depth), self.next_logits(context, depth)
        want = [logits[i] for i in rows.want.tolist()]
        hidden = torch.tensor(states, dtype=torch.float64)
        empty = torch.empty(0, VOCAB, dtype=torch.float64)
        return Out(torch.stack(want) if want else empty, dict.fromkeys(rows.taps, hidden))

    def run(self, rows: Rows, passes: int, texts: Sequence[Continuation], proposer: Proposer | None = None) -> Out:
        """Text by text and pass by pass, each token drawn by the sampler's own parts."""
        out, states, error = list[Drawn](), list[torch.Tensor](), cast(Exception | None, None)
        for i, (text, segment, table) in enumerate(zip(texts, rows.segments, rows.tables.tolist())):
            place = proposer.texts.index(i) if proposer is not None and i in proposer.texts else None
            said, rounds = list[int](), list[Round]()
            while len(rounds) < passes:
                turn = Turn(place or 0, list(said), text, text.most - len(said) - 1)
                drafts = proposer is not None and place is not None and turn.room > 0
                tokens, parents = list[int](), list[int]()
                if drafts and proposer is not None and error is None:
                    try:
                        tokens, parents = map(list, proposer.propose([turn])[0])
                    except Exception as raised:
                        error = raised
                root = int(rows.token[segment.start]) if not said else said[-1]
                start = segment.base + len(said)
                judged = self._judge(root, tokens, parents, start, table, segment.shift)
                node, path, ended = -1, list[int](), False
                while True:
                    said.append(self.draw(judged.logits[node + 1], text, len(said)))
                    states.append(judged.taps["post_norm"][node + 1])
                    ended = said[-1] < 0 or said[-1] in text.ends or len(said) == text.most
                    hits = [j for j, p in enumerate(parents) if p == node and tokens[j] == said[-1]]
                    path, node = [*path, *hits[:1]], hits[0] if hits else node
                    if ended or not hits:
                        break
                drafted = self.slots(table, start + 1, len(tokens))
                self.move([drafted[j] for j in path], drafted[: len(path)])
                if drafts and proposer is not None and error is None:
                    proposer.kept([turn], [path])
                depths = list[int]()
                for parent in parents:
                    depths.append(1 if parent < 0 else depths[parent] + 1)
                rounds.append(Round.of([depths.count(d + 1) for d in range(max(depths, default=0))], len(path)))
                if ended:
                    break
            out.append(Drawn(said, rounds))
        return Out(torch.empty(0, VOCAB), {tap: torch.stack(states) for tap in rows.taps}, drawn=out, error=error)

    def _judge(
        self, root: int, nodes: Sequence[int], parents: Sequence[int], start: int, table: list[int], shift: int
    ) -> Out:
        """The pass over the last token of a text, which has the row `start`, and its draft."""
        depths, words = list[int](), list[int]()
        for j, parent in enumerate(parents):
            depths.append(1 if parent < 0 else depths[parent] + 1)
            words.append((0 if parent < 0 else words[parent]) | 1 << j)
        builder, count = RowsBuilder(), 1 + len(nodes)
        slots = self.slots(table, start, count)
        want = [*range(count)]
        builder.add([root, *nodes], slots, table, start, depths=depths, words=words, want=want, shift=shift)
        return self.forward(builder.build(taps=("post_norm",)))

    def slots(self, table: list[int], start: int, count: int) -> list[int]:
        places = range(start, start + count)
        return [table[place // self.block_size] * self.block_size + place % self.block_size for place in places]

    @staticmethod
    def draw(x: torch.Tensor, text: Continuation, index: int) -> int:
        if not text.temperature:
            return winners(x[None])[0]
        scores = law(x[None], [Warp(text.temperature, 0, 1.0, 0.0)])
        return race(scores, keys_tensor([text.keys[index]]))[0]

    def move(self, source: list[int], target: list[int]) -> None:
        values = [self.pool[s] for s in source]
        for t, value in zip(target, values):
            self.pool[t] = value

    def read(self, slots: list[int]) -> bytes:
        return array("q", [self.pool[s] for s in slots]).tobytes()

    def write(self, slots: list[int], packed: bytes) -> None:
        for s, token in zip(slots, array("q", packed), strict=True):
            self.pool[s] = token
