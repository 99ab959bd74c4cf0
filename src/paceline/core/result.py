"""`Result`: what a step brought one request. A plain step has one round, a run several; no reader needs to know which
it was."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.core.request import FinishReason


class Round(NamedTuple):
    """One verification: nodes at depth 1, 2, ... that had a row, and those of them that were kept."""

    offered: list[int]
    kept: list[int]

    @classmethod
    def of(cls, offered: list[int], depth: int) -> "Round":
        """A draft of which the path down to `depth` was kept."""
        return cls(offered, [int(d < depth) for d in range(len(offered))])

    @property
    def depth(self) -> int:
        """Tokens kept of the draft."""
        return sum(self.kept)


@dataclass(slots=True)
class Result:
    """What the target and the drafters made of one item of a plan."""

    tokens: list[int] = field(default_factory=list)
    """Accepted tokens and, behind the accepted ones of each round, the target's own; [] while the prompt is unfinished.
    The last is -1 where no token could be drawn."""
    ranks: list[int] = field(default_factory=list)
    """Ranks of the accepted rows among the reserved ones: all tokens but the last have a row."""
    rounds: list[Round] = field(default_factory=list)
    """[] while the prompt is unfinished."""
    probes: int = 0
    """Rows of probes, which are judged but never accepted."""
    accepted: dict[str, list[int]] = field(default_factory=dict)
    """{drafter: the accepted nodes, as indices into the forest that it drafted}; a run has none."""
    emitted: int = 0
    """Tokens that the output got: those up to the first that ends the request."""
    finish: FinishReason | None = None

    def heard(self) -> Iterator[tuple[int, int, Round]]:
        """(tokens before it, depth that counts, round) of each round that the output got a token of: what follows the
        end of a request says nothing of its drafts."""
        before = 0
        for number, round in enumerate(self.rounds):
            if number and before >= self.emitted:
                return
            yield before, min(round.depth, self.emitted - before), round
            before += round.depth + 1
