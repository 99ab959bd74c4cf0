"""A table-driven Markov target (vocabulary 7, float64) that reads its context through the paged pool.

The logits of a row depend on its position and on the last three tokens of its context; tokens of committed rows are
read back from the slots the block table names, those of candidates through the tree words. A wrong slot, block, mask,
position or move therefore changes the text.
"""

from collections.abc import Sequence

import torch

from paceline.core.noise import keys_tensor
from paceline.core.rows import Chains, Drawn, Lookups, Out, Rows, RowsBuilder, Straight
from paceline.draft.ngram import Index
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

    def run(self, rows: Rows, passes: int, texts: Sequence[Straight], chains: Chains | Lookups | None = None) -> Out:
        """Text by text and pass by pass, each token drawn by the sampler's own parts."""
        out = Drawn([], [])
        for i, (text, segment, table) in enumerate(zip(texts, rows.segments, rows.tables.tolist())):
            said = [int(rows.token[segment.start])]
            draft: ToyDraft | ToyLookup | None = None
            if chains is not None and i in chains.texts:
                place = chains.texts.index(i)
                if isinstance(chains, Lookups):
                    draft = ToyLookup(chains, place)
                else:
                    draft = ToyDraft(chains, place, segment.base)
            done: list[tuple[int, int]] = []
            while len(done) < passes:
                nodes = draft.propose(text, said, table) if draft is not None else []
                drawn = [
                    self.draw(x, text, len(said) - 1 + j)
                    for j, x in enumerate(self._judge(said, nodes, segment.base, table))
                ]
                kept = next((j for j, (a, b) in enumerate(zip(drawn, nodes)) if a != b), len(nodes))
                stop = next((j for j, token in enumerate(drawn[: kept + 1]) if token < 0 or token in text.ends), kept)
                said += drawn[: min(stop, kept) + 1]
                ended = stop < kept or said[-1] < 0 or said[-1] in text.ends or len(said) > text.most
                done.append((len(nodes), min(kept, stop + 1)))
                if isinstance(draft, ToyDraft) and nodes:
                    draft.reach -= max(0, len(nodes) - 1 - min(kept, stop + 1))
                if ended:
                    break
            out.tokens.append(said[1:])
            out.passes.append(done)
            if isinstance(draft, ToyDraft):
                out.reach[i] = draft.reach
        return Out(torch.empty(0, VOCAB), drawn=out)

    def _judge(self, said: list[int], nodes: list[int], base: int, table: list[int]) -> torch.Tensor:
        """Logits behind the last token of a text and behind each of its draft."""
        count, root = 1 + len(nodes), base + len(said) - 1
        words = [(2 << j) - 1 for j in range(len(nodes))]
        builder = RowsBuilder()
        builder.add(
            [said[-1], *nodes], self.slots(table, root, count), table, root,
            depths=[*range(1, count)], words=words, want=[*range(count)],
        )  # fmt: skip
        return self.forward(builder.build()).logits

    def slots(self, table: list[int], start: int, count: int) -> list[int]:
        places = range(start, start + count)
        return [table[place // self.block_size] * self.block_size + place % self.block_size for place in places]

    @staticmethod
    def draw(x: torch.Tensor, text: Straight, index: int) -> int:
        if not text.temperature:
            return winners(x[None])[0]
        scores = law(x[None], [Warp(text.temperature, 0, 1.0, 0.0)])
        return race(scores, keys_tensor([text.keys[index]]))[0]

    def move(self, source: list[int], target: list[int]) -> None:
        values = [self.pool[s] for s in source]
        for t, value in zip(target, values):
            self.pool[t] = value


class ToyLookup:
    """Looks one text up in a run, by the index of `ngram`."""

    def __init__(self, lookups: Lookups, place: int) -> None:
        self.most, self.worth = lookups.most[place], lookups.worth[place]
        self.tokens, self.index = lookups.tokens[place][:-1], Index(len(lookups.tokens[place]))
        rates = lookups.rates[place]
        self.index.extend(lookups.tokens[place])
        self.index.hits, self.index.tries = rates[::2], rates[1::2]

    def propose(self, text: Straight, said: list[int], table: list[int]) -> list[int]:
        return self.index.draft(self.tokens + said, min(self.most, text.most - len(said)), self.worth)


class ToyDraft:
    """Drafts one text's chains in a run. `reach`: rows of it that the draft model has."""

    def __init__(self, chains: Chains, place: int, base: int) -> None:
        assert isinstance(chains.model, Toy)
        self.model, self.most, self.base = chains.model, chains.most[place], base
        segment = chains.rows.segments[place]
        self.reach, self.lacks = segment.base, chains.rows.token[segment.start :][: segment.given].tolist()

    def propose(self, text: Straight, said: list[int], table: list[int]) -> list[int]:
        nodes: list[int] = []
        known, deep = self.base + len(said), min(self.most, text.most - len(said))
        lacks, self.lacks = self.lacks or said[self.reach - known :], []
        while len(nodes) < deep:
            tokens = nodes[-1:] or lacks
            start = known + len(nodes) - len(tokens)
            builder = RowsBuilder()
            builder.add(tokens, self.model.slots(table, start, len(tokens)), table, start)
            nodes.append(Toy.draw(self.model.forward(builder.build()).logits[0], text, len(said) - 1 + len(nodes)))
            self.reach = start + len(tokens)
        return nodes
