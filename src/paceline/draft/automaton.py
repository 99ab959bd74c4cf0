"""A suffix automaton that counts (Blumer et al. 1985): it grows token by token, and several texts may grow in turns.

A state stands for the strings that end at the same places and counts those places. So the counts behind its transitions
are the counts of the tokens that followed, and reading a token costs O(MAX_SUFFIX_TOKENS) at most.
"""

MAX_SUFFIX_TOKENS = 24
"""Longest suffix that is looked up, in tokens."""


class Automaton:
    """All substrings of some texts. State 0 is the empty string.

    length[s]: the longest string of state s; link[s]: the state of its longest suffix that is in another state;
    after[s]: {next token: state}; count[s]: occurrences of its strings, exact for those of at most
    MAX_SUFFIX_TOKENS + 1 tokens.
    """

    def __init__(self) -> None:
        self.length, self.link, self.count = [0], [-1], [0]
        self.after: list[dict[int, int]] = [{}]

    def __len__(self) -> int:
        return len(self.length)

    def extend(self, last: int, token: int) -> int:
        """The state of a whole text and `token`, from the state `last` of the text."""
        old = self.after[last].get(token)
        if old is not None:  # another text began alike
            return old if self.length[old] == self.length[last] + 1 else self._split(last, old, token)
        new, above = self._add(self.length[last] + 1, 0, 0, {}), last
        while above >= 0 and token not in self.after[above]:
            self.after[above][token] = new
            above = self.link[above]
        if above >= 0:
            old = self.after[above][token]
            fits = self.length[old] == self.length[above] + 1
            self.link[new] = old if fits else self._split(above, old, token)
        return new

    def _add(self, length: int, link: int, count: int, after: dict[int, int]) -> int:
        self.length.append(length)
        self.link.append(link)
        self.count.append(count)
        self.after.append(after)
        return len(self.length) - 1

    def _split(self, above: int, old: int, token: int) -> int:
        """Split off a new state for the strings of `old` up to those of `above` + `token`."""
        new = self._add(self.length[above] + 1, self.link[old], self.count[old], self.after[old].copy())
        self.link[old] = new
        while above >= 0 and self.after[above].get(token) == old:
            self.after[above][token] = new
            above = self.link[above]
        return new

    def tally(self, state: int) -> None:
        """Count one more occurrence of the strings of `state` and of their suffixes."""
        while state >= 0:
            self.count[state] += 1
            state = self.link[state]

    def step(self, state: int, n: int, token: int) -> tuple[int, int]:
        """Advance from (state, length) of a string to those of string + `token`, cut to its last MAX_SUFFIX_TOKENS
        tokens."""
        return self.fit(self.after[state][token], min(n + 1, MAX_SUFFIX_TOKENS))

    def fit(self, state: int, n: int) -> tuple[int, int]:
        """The state of the last n tokens of a string of `state`."""
        while state and self.length[self.link[state]] >= n:
            state = self.link[state]
        return state, n

    def match(self, state: int, n: int) -> tuple[int, int]:
        """(state, length) of the longest suffix that something follows."""
        while state and not self.after[state]:
            state = self.link[state]
            n = self.length[state]
        return state, n

    def shares(self, state: int) -> dict[int, float]:
        """{token: its share of what followed}."""
        after, count = self.after[state], self.count
        total = sum(count[s] for s in after.values())
        return {token: count[s] / total for token, s in after.items()}
