"""`lookahead`: lookahead decoding (Fu et al. 2024, arXiv 2402.02057). The target drafts for itself: the pass that
verifies also advances a window of W columns, Jacobi iterations at later places of the text. The n-grams that they leave
behind are pooled by their first token, and those that begin with the root are the next guesses.

    root ─┬─ guess ── guess ── guess          candidates: n-grams of N = 4, merged where they begin alike
          ├─ c[0][1] ── c[0][2]               probes: column 0, whose first token is the root
          └─ c[1][0] ─┬─ c[1][1] ── c[1][2]   column 1
                      └─ c[2][0] ── c[2][1] ── c[2][2]

In the paper's words w[0][i] is c[i + 1][0] and w[l][i], l >= 1, is c[i][l]. A pass appends to each column what the
target says after its last token, and the column slides on by one.

The pool also reads the text. What is spent is learned as in `ngram`: every round the pool is asked what it would have
got right, offered or not. Rows are spent while they pay; the window has to pay by what the text did not know.
"""

from collections.abc import Sequence
from functools import partial

from paceline.core.forest import PROBE, ROOT, Forest, Law
from paceline.core.registry import Offers
from paceline.draft import DRAFTERS, Ask, Host, View
from paceline.draft.rates import FIRST_TRIES
from paceline.sample.race import winners

LEVEL = 4
"""N: tokens of an n-gram, its key included."""
MAX_GUESSES = 5
"""G: most guesses of one key."""
ROW = 0.02
"""Tokens that a row has to bring: one beyond the first costs 1-3 % of a step."""
WINDOW_DECAY = 0.95
"""Weight of an estimate's past at each new observation."""
RETRY_ROUNDS = 16
"""A window that does not pay is tried in one round of this many, N rounds in a row."""


class GuessPool:
    """token -> at most `most` guesses of what follows it, the least recently entered first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.guesses: dict[int, dict[tuple[int, ...], bool]] = {}

    def add(self, key: int, guess: tuple[int, ...], window: bool) -> None:
        """Enter a guess, or make it the latest. `window`: it is owed to the window, until the text has it too."""
        known = self.guesses.setdefault(key, {})
        known[guess] = known.pop(guess, True) and window
        if len(known) > self.most:
            del known[next(iter(known))]

    def right(self, key: int, text: Sequence[int], window: bool) -> int:
        """Most tokens of `text` that a guess has right, of those owed to the window or of the others."""
        mine = (guess for guess, owed in self.guesses.get(key, {}).items() if owed is window)
        return max((agree(guess, text) for guess in mine), default=0)


class Lookahead:
    """Window, pool and estimates of one request."""

    def __init__(self, prompt: list[int], greedy: bool = True, level: int = LEVEL, guesses: int = MAX_GUESSES) -> None:
        self.prompt, self.level, self.pool = prompt, level, GuessPool(guesses)
        self.columns: list[list[int]] = []
        """N - 1 tokens each. The first token of column 0 has no meaning: the root stands there."""
        self.seen = self.fed = self.rounds = 0
        self.hits, self.tries, self.paid = 1.0, FIRST_TRIES[greedy], 1.0

    def width(self, nodes: int) -> int:
        """Columns in this round: half of the nodes, none if no whole guess fits next to it or it does not pay."""
        width = max(0, min((nodes + 1) // 2 + 1, nodes - self.level + 2) // (self.level - 1))
        tried = self.rounds % (RETRY_ROUNDS * self.level) < self.level
        return width if tried or self.paid >= ROW * self.rows(width) else 0

    def rows(self, width: int) -> int:
        return width * (self.level - 1) - 1 if width else 0

    def read(self, text: list[int]) -> None:
        """Pool the text's new n-grams."""
        end = max(self.seen, len(text) - self.level + 1)
        for start in range(self.seen, end):
            self.pool.add(text[start], tuple(text[start + 1 : start + self.level]), window=False)
        self.seen = end

    def guess(self, forest: Forest, place: int, root: int, most: int) -> None:
        """The latest guesses as one trie, of at most `most` nodes and no more than their hit rate pays for."""
        most = min(most, int(self.hits / self.tries / ROW))
        trie: dict[tuple[int, ...], int] = {(): ROOT}
        for guess in reversed(self.pool.guesses.get(root, {})):
            for end in range(1, len(guess) + 1):
                if guess[:end] not in trie and len(trie) <= most:
                    trie[guess[:end]] = forest.add(place, guess[end - 1], trie[guess[: end - 1]], law=Law.POINT)

    def look(self, forest: Forest, place: int, width: int) -> None:
        """The first `width` columns, each after the first below the one before. New ones are runs of the prompt."""
        while len(self.columns) < width:
            self.columns.append([self.prompt[(self.fed + i) % len(self.prompt)] for i in range(self.level - 1)])
            self.fed += self.level - 1
        above = ROOT
        for i, column in enumerate(self.columns[:width]):
            if i:
                above = forest.add(place, column[0], above, law=Law.POINT, role=PROBE)
            node = above
            for token in column[1:]:
                node = forest.add(place, token, node, law=Law.POINT, role=PROBE)

    def learn(self, root: int, accepted: Sequence[int], last: int, new: Sequence[int]) -> None:
        """`accepted`, `last`: the round's tokens after the root; `new`: the target's token after each column it saw."""
        known, owed = (self.pool.right(root, [*accepted, last], window) for window in (False, True))
        self.rounds += 1
        self.hits = WINDOW_DECAY * self.hits + (known + owed > 0)
        self.tries = WINDOW_DECAY * self.tries + 1
        self.paid = WINDOW_DECAY * self.paid + (1 - WINDOW_DECAY) * max(0, owed - known)
        for i, (column, token) in enumerate(zip(self.columns, new)):
            self.pool.add(column[0] if i else root, (*column[1:], token), window=True)
            self.columns[i] = [*column[1:], token]
        if new:
            del self.columns[: len(accepted)]


def agree(guess: Sequence[int], text: Sequence[int]) -> int:
    """Length of the common prefix."""
    return next((i for i, (a, b) in enumerate(zip(guess, text)) if a != b), min(len(guess), len(text)))


@DRAFTERS.register(
    "lookahead",
    Offers(summary="Jacobi windows inside the target's pass", laws=frozenset({Law.POINT}), shape="tree", nodes=15),
)
class LookaheadDrafter:
    def __init__(self, host: Host) -> None:
        pass

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        """Guesses first, then the window: rows beyond the budget are lost from the end."""
        forest = Forest()
        for ask in asks:
            request, nodes = ask.request, ask.item.nodes
            if nodes:
                state = view.slot(request, partial(Lookahead, request.prompt, request.params.greedy))
                state.read(request.tokens)
                width = state.width(nodes)
                state.guess(forest, ask.place, request.tokens[-1], nodes - state.rows(width))
                state.look(forest, ask.place, width)
        return forest

    def learn(self, view: View) -> None:
        for ask in view.asks:
            state: Lookahead | None = view.slots.get(ask.request.id)
            tokens, probes = view.results[ask.place].tokens, view.probes.get(ask.place)
            if state is None or not tokens or not ask.item.nodes:
                continue
            ends = [] if probes is None else winners(probes[state.level - 3 :: state.level - 1])
            state.learn(ask.request.tokens[-1], tokens[:-1], tokens[-1], [max(0, token) for token in ends])
