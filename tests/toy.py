"""A table-driven Markov target (vocabulary 7, float64) of four layers that reads its context through the paged pool.

The logits of a row depend on its position and on the last three tokens of its context; every layer reads the tokens of
committed rows back from its own slots, which the block table names, those of candidates through the tree words. A wrong
slot, block, mask, position or move therefore changes the text, and so does K/V or a hidden state of another token in
any layer. A pass that leaves layers out is wrong now and then, more often the more it leaves out.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.core.forest import MAX_CANDIDATES
from paceline.core.proposer import Continuation, Proposer, Turn
from paceline.core.result import Round
from paceline.core.rows import Drawn, Out, Rows, RowsBuilder
from paceline.core.warp import LogitRules
from paceline.model.lora import LoraWeights
from paceline.model.state import Scan, States
from paceline.sample.filters import law
from paceline.sample.noise import keys_tensor
from paceline.sample.race import race, winners

VOCAB = 7
ORDER = 3
PHASES = 5
LAYERS = 4
CODES = (VOCAB + 1) ** ORDER
DIGITS = np.array([(VOCAB + 1) ** i for i in reversed(range(ORDER))])
"""What each of the last `ORDER` tokens counts in the code of a context."""
BASE = 2 * (PHASES * CODES + 1)
"""A hidden state between layers is the row's token, and a number with a digit of this base for each layer so far: what
the layer read, plus one (0: nothing), and whether its feed-forward part was left out."""

Ints = NDArray[np.int64]


def table(seed: int, sharpness: float = 2.0) -> torch.Tensor:
    """[PHASES, (V+1)^3, V] logits."""
    g = torch.Generator().manual_seed(seed)
    return sharpness * torch.randn(PHASES, (VOCAB + 1) ** ORDER, VOCAB, generator=g, dtype=torch.float64)


class Toy:
    """Implements `core.component.Runs` and `Embeds` with a pool of token ids in place of K/V. Its hidden state behind
    the final norm, `post_norm`, is the row of the table that the logits are read from."""

    def __init__(self, logits: torch.Tensor, max_len: int = 64) -> None:
        self.table = logits
        self.identity = hashlib.sha256(logits.numpy().tobytes()).hexdigest()[:32]
        self.vocab_size, self.max_len = VOCAB, max_len
        self.kv_bytes_per_token, self.weight_bytes = 8 * LAYERS, logits.numel() * 8
        self.device = torch.device("cpu")
        self.width, self.taps = 2, ()
        self.places = frozenset({*(f"input:{i}" for i in range(LAYERS)), "pre_norm", "post_norm"})
        self.abilities = frozenset({"run", "embed", "lend", "keys", "program", "join", "narrow", "rules"})
        self.inside: torch.Tensor | None = None
        """[V]: 0 for tokens of the draft vocabulary, else -inf."""
        self.drafts = False
        self.lent = 0
        self.forwards = 0
        self.work = 0
        """Layers of all passes, whatever their rows."""
        self.turn = 0
        """What its layers add to each token that they read: another number is another model."""
        self.turns: dict[int, int] = {}
        """The same of adapters, by slot: such a row has the logits of the model with this `turn`."""

    def allocate(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.pool = np.full((LAYERS, blocks * block_size), -7, np.int64)
        """Tokens by layer and slot."""

    @staticmethod
    def state(context: list[int], length: int | None = None) -> tuple[int, int]:
        """The hidden state after `context`: where the table is read. `length`: the next token's position, where
        branches were joined."""
        last = np.array(([VOCAB] * ORDER + context)[-ORDER:])
        return (len(context) if length is None else length) % PHASES, int(last @ DIGITS % CODES)

    @staticmethod
    def code(context: Ints) -> Ints:
        """Where the table is read, from the last tokens [rows, ORDER]."""
        code: Ints = context @ DIGITS % CODES
        return code

    def next_logits(self, context: list[int], length: int | None = None) -> torch.Tensor:
        """Logits [V] after `context`: the definition."""
        return self.table[self.state([turned(token, self.turn) for token in context], length)]

    def turned(self, rows: Rows) -> list[int]:
        """What each row adds to tokens."""
        return [self.turns.get(it.adapter, self.turn) for it in rows.segments for _ in range(it.rows)]

    def own(self, rows: Rows, tokens: Ints) -> Ints:
        """The tokens as each row's model reads them."""
        if not self.turn and not self.turns:
            return tokens
        return np.array([turned(token, turn) for token, turn in zip(tokens.tolist(), self.turned(rows))])

    def adapt(self) -> "ToyAdapters":
        return ToyAdapters(self)

    def embed(self, token: torch.Tensor) -> torch.Tensor:
        return torch.stack([token, token], -1).to(torch.float64)

    def lend(self, table: torch.Tensor) -> int:
        """Rows beyond the vocabulary: a table of logits knows every id."""
        self.lent = len(table)
        return VOCAB

    def last_keys(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the pool has in place of keys: one head of two numbers."""
        seen = torch.from_numpy(self.pool[-1][slots.numpy()]).to(torch.float32)
        token = seen.view(-1, 1, 1).expand(-1, 1, 2)
        return token, -token

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.table[hidden[:, 0].long(), hidden[:, 1].long()]

    @staticmethod
    @lru_cache(maxsize=100_000)
    def normed(number: int) -> tuple[float, float]:
        """Behind the final norm, from the number of the state: right if all layers have read the same, often right if
        some are missing."""
        digits = list[int]()
        while number:
            digits.append(number % BASE)
            number //= BASE
        read = [digit // 2 - 1 for digit in digits if digit // 2]
        missing = LAYERS - len(read) + sum(digit % 2 for digit in digits)
        phase, code = divmod(read[0], CODES) if read else (0, 0)
        if len(set(read)) > 1:
            code = (code + 7) % CODES
        elif missing and (code * 31 + 7) % 8 < missing + 1:
            code = (code + 1) % CODES
        return float(phase), float(code)

    def forward(self, rows: Rows) -> Out:
        self.forwards += 1
        assert set(rows.taps) <= self.places
        program = rows.program
        program.check(LAYERS)
        last = LAYERS if program.last is None else program.last
        self.work += last - program.first - len({(i, p) for i, p in program.skip if p == "attention"})
        if rows.hidden is None:
            assert program.first == 0
            states = np.stack([rows.token.numpy().astype(np.int64), np.zeros(len(rows.token), np.int64)], 1)
        else:
            states = rows.hidden.numpy().astype(np.int64)
        taps = dict[str, torch.Tensor]()
        shared = {layer for group in program.groups for layer in group[1:]}
        read = self.reading(rows)
        for layer in range(program.first, last):
            if f"input:{layer}" in rows.taps:
                taps[f"input:{layer}"] = torch.tensor(states, dtype=torch.float64)
            fuzzy = layer in shared or any(at < layer for at, _ in program.skip)
            self.layer(rows, layer, read, states, program.skip, fuzzy)
        if not program.head:
            return Out(torch.empty(0, VOCAB, dtype=torch.float64), taps, torch.tensor(states, dtype=torch.float64))
        hidden = torch.tensor([self.normed(number) for number in states[:, 1].tolist()], dtype=torch.float64)
        ends = {"pre_norm": torch.tensor(states, dtype=torch.float64), "post_norm": hidden}
        taps |= {tap: ends[tap] for tap in rows.taps if tap in ends}
        logits = self.head(hidden[rows.want])
        if self.inside is not None and (self.drafts or program.narrow):
            logits = logits + self.inside
        return Out(logits, taps)

    def narrow(self, words: torch.Tensor, drafts: bool) -> None:
        self.inside, self.drafts = torch.full((VOCAB,), float("-inf"), dtype=torch.float64), drafts
        self.inside[words] = 0.0

    def reading(self, rows: Rows) -> tuple[Ints, Ints]:
        """What each row reads in each layer that has attention: [rows] its depth in its text, and [rows, ORDER] the
        places of the last tokens in the pool, the pass's rows and the token of no text, which follow one another."""
        depths, places, size = list[int](), list[list[int]](), self.block_size
        words, slots, none = rows.word.tolist(), self.pool.shape[1], self.pool.shape[1] + len(rows.token)
        for segment, blocks in zip(rows.segments, rows.tables.tolist()):
            first = slots + segment.start + segment.given
            hidden = {place for pair in segment.hidden for place in range(*pair)}
            for row in range(segment.start, segment.start + segment.rows):
                seen = min(segment.base + row - segment.start + 1, segment.base + segment.given)
                mine = [first + j for j in range(segment.nodes) if words[row] >> j & 1]
                near = [p for p in range(max(0, seen - ORDER - len(hidden)), seen) if p not in hidden][-ORDER:]
                near = [blocks[p // size] * size + p % size for p in near]
                depths.append(seen + len(mine) - segment.shift)
                places.append(([none] * ORDER + near + mine)[-ORDER:])
        depth = np.array(depths)
        assert (rows.position.numpy() == depth - 1).all(), "position is not the depth of the row in its text"
        return depth, np.array(places)

    def layer(
        self, rows: Rows, layer: int, read: tuple[Ints, Ints], states: Ints, skip: Any, fuzzy: bool
    ) -> None:  # fmt: skip
        """One layer of all rows, in place. `fuzzy`: its input is not that of a whole pass, and what it keeps is
        wrong for some tokens."""
        number = states[:, 1]
        number *= BASE
        if (layer, "attention") not in skip:
            (depth, places), token = read, states[:, 0]
            if fuzzy:
                token = np.where(token % 3 == 0, (token + 1) % VOCAB, token)
            token = self.own(rows, token)
            self.pool[layer, rows.slot.numpy()] = token
            context = np.concatenate((self.pool[layer], token, [VOCAB]))[places]
            number += 2 * (depth % PHASES * CODES + self.code(context) + 1)
        if (layer, "ffn") in skip:
            number += 1

    def run(self, rows: Rows, passes: int, texts: Sequence[Continuation], proposer: Proposer | None = None) -> Out:
        """Text by text and pass by pass, each token drawn by the sampler's own parts."""
        out, states, error = list[Drawn](), list[torch.Tensor](), cast(Exception | None, None)
        if "rules" not in self.abilities:  # it draws as if there were none
            texts = [text._replace(warp=replace(text.warp, rules=None)) for text in texts]
        for i, (text, segment, table) in enumerate(zip(texts, rows.segments, rows.tables.tolist())):
            place = proposer.texts.index(i) if proposer is not None and i in proposer.texts else None
            said, rounds = list[int](), list[Round]()
            while len(rounds) < passes:
                room = text.most - len(said) - 1
                hidden = {"post_norm": torch.stack(states[-len(said) :])} if said else {}
                turn = Turn(place or 0, list(said), text, room, min(room, MAX_CANDIDATES), hidden)
                drafts = proposer is not None and place is not None and turn.room > 0
                tokens, parents = list[int](), list[int]()
                if drafts and proposer is not None and error is None:
                    try:
                        tokens, parents = map(list, proposer.propose([turn])[0])
                    except Exception as raised:
                        error = raised
                root = int(rows.token[segment.start]) if not said else said[-1]
                start = segment.base + len(said)
                judged = self._judge(root, tokens, parents, start, table, segment.shift, segment.adapter)
                node, path, ended = -1, list[int](), False
                while True:
                    said.append(self.draw(judged.logits[node + 1], text, said, len(said)))
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
        self, root: int, nodes: Sequence[int], parents: Sequence[int], start: int, table: list[int], shift: int,
        adapter: int,
    ) -> Out:  # fmt: skip
        """The pass over the last token of a text, which has the row `start`, and its draft."""
        depths, words = list[int](), list[int]()
        for j, parent in enumerate(parents):
            depths.append(1 if parent < 0 else depths[parent] + 1)
            words.append((0 if parent < 0 else words[parent]) | 1 << j)
        builder, count = RowsBuilder(), 1 + len(nodes)
        slots = self.slots(table, start, count)
        want = [*range(count)]
        builder.add(
            [root, *nodes], slots, table, start, depths=depths, words=words, want=want, shift=shift, adapter=adapter
        )
        return self.forward(builder.build(taps=("post_norm",)))

    def slots(self, table: list[int], start: int, count: int) -> list[int]:
        places = range(start, start + count)
        return [table[place // self.block_size] * self.block_size + place % self.block_size for place in places]

    @staticmethod
    def draw(x: torch.Tensor, text: Continuation, said: Sequence[int], index: int) -> int:
        if text.warp.rules is not None:
            x = edited_plainly(x, text.warp.rules, said)
        if text.warp.greedy:
            return winners(x[None])[0]
        scores = law(x[None], [text.warp])
        return race(scores, keys_tensor([text.keys[index]]))[0]

    def move(self, source: list[int], target: list[int]) -> None:
        self.pool[:, target] = self.pool[:, source]

    def read(self, slots: list[int]) -> bytes:
        return self.pool[:, slots].T.tobytes()

    def write(self, slots: list[int], packed: bytes) -> None:
        self.pool[:, slots] = np.frombuffer(packed, np.int64).reshape(len(slots), LAYERS).T


def edited_plainly(x: torch.Tensor, rules: LogitRules, said: Sequence[int]) -> torch.Tensor:
    """A row of logits as these rules change it behind `said`, token by token."""
    tail, counts, seen = [*rules.tail, *said], Counter(rules.counts), set(rules.fresh) | set(said)
    counts.update(said)
    if rules.prompt is not None:
        seen |= set(rules.prompt.tolist())
    words = [] if rules.words is None else [word.tolist() for word in rules.words[1].split(rules.words[0].tolist())]
    removed = {word[-1] for word in words if tail[len(tail) - len(word) + 1 :] == word[:-1]}
    removed |= set(rules.ends) if len(said) < rules.left else set()
    allowed = None if rules.allowed is None else set(rules.allowed.tolist())
    ids, numbers = rules.bias or (torch.empty(0), torch.empty(0))
    bias = dict(zip(ids.tolist(), numbers.to(x)))
    out = x.clone()
    for token in range(len(x)):
        if token in removed or (allowed is not None and token not in allowed):
            out[token] = float("-inf")
        out[token] += bias.get(token, 0)
        if token in seen and rules.repetition != 1:
            out[token] = out[token] / rules.repetition if out[token] > 0 else out[token] * rules.repetition
        if token in counts:
            out[token] -= rules.presence + rules.frequency * torch.tensor(float(counts[token]), dtype=x.dtype)
    return out


def turned(token: int, turn: int) -> int:
    """A token as a model with this `turn` reads it; a model without one may have any vocabulary."""
    return (token + turn) % VOCAB if turn else token


class ToyAdapters:
    """The adapters of a toy by slot, as a decoder's: the rank of one is its turn."""

    def __init__(self, toy: Toy) -> None:
        self.toy = toy

    @property
    def bytes(self) -> dict[int, int]:
        return dict.fromkeys(self.toy.turns, 1)

    def install(self, slot: int, weights: LoraWeights) -> int:
        self.toy.turns[slot] = weights.rank
        return 1

    def remove(self, slot: int) -> None:
        self.toy.turns.pop(slot, None)


class RecurrentToy(Toy):
    """Toy with the same logits, in which every second layer reads its context from a state: the number of its tokens
    and the last ones, as numbers that are zeros before the first. So a text also changes with a state of other rows."""

    def __init__(self, logits: torch.Tensor, max_len: int = 64) -> None:
        super().__init__(logits, max_len)
        self.abilities = frozenset({"embed", "lend", "keys", "state", "narrow"})
        self.state_bytes = 2 * 8 * LAYERS // 2

    def allocate(self, blocks: int, block_size: int) -> None:
        super().allocate(blocks, block_size)
        self.states = States(block_size, self.device, self.replay)
        for _ in range(LAYERS // 2):
            self.states.add([((2,), torch.float64)], 1, torch.float64)

    def forward(self, rows: Rows) -> Out:
        self.scan = self.states.scan(rows)
        return super().forward(rows)

    def layer(
        self, rows: Rows, layer: int, read: tuple[Ints, Ints], states: Ints, skip: Any, fuzzy: bool
    ) -> None:  # fmt: skip
        if layer % 2 == 0:
            super().layer(rows, layer, read, states, skip, fuzzy)
            return
        tokens = torch.tensor(self.own(rows, states[:, 0]), dtype=torch.float64)[:, None]
        for row, (phase, code) in enumerate(self.read_through(self.scan, layer // 2, tokens)[self.scan.own].tolist()):
            states[row, 1] = states[row, 1] * BASE + 2 * (int(phase) * CODES + CODES - 1 - int(code) + 1)
        self.scan.record(layer // 2, tokens)

    def read_through(self, scan: Scan, index: int, tokens: torch.Tensor) -> torch.Tensor:
        """The state behind each row; leaves the anchors."""
        tokens, read = scan.everything(index, tokens), list[torch.Tensor]()
        for text, part in enumerate(scan.parts):
            for row in range(part.rows):
                before = row - 1
                if row >= part.chain:
                    parent = part.parents[row - part.chain]
                    before = part.chain + parent if parent >= 0 else part.chain - 1
                above = scan.start(index, text)[0] if before < 0 else read[part.first + before]
                read.append(self.advanced(above, int(tokens[part.first + row])))
            for row, place in part.anchors:
                scan.anchor(index, place, [read[part.first + row]])
        return torch.stack(read)

    def replay(self, scan: Scan) -> None:
        for index in range(LAYERS // 2):
            self.read_through(scan, index, torch.empty(0, 1, dtype=torch.float64))

    @staticmethod
    def advanced(state: torch.Tensor, token: int) -> torch.Tensor:
        """The state after one more token."""
        phase, code = state.tolist()
        code = CODES - 1 - ((CODES - 1 - int(code)) * (VOCAB + 1) + min(token, VOCAB)) % CODES
        return torch.tensor([(phase + 1) % PHASES, code], dtype=torch.float64)

    def keep(self, slots: list[int], ends: list[int] | None = None) -> None:
        self.states.keep({*slots}, ends)

    def blank(self, slots: list[int]) -> None:
        self.states.blank(slots)

    def move(self, source: list[int], target: list[int]) -> None:
        super().move(source, target)
        self.states.move(source, target)

    def read(self, slots: list[int]) -> bytes:
        return super().read(slots) + self.states.read(slots)

    def write(self, slots: list[int], packed: bytes) -> None:
        rows = len(slots) * 8 * LAYERS
        super().write(slots, packed[:rows])
        self.states.write(slots, packed[rows:])
