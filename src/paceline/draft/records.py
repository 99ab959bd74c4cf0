"""What the parts of a merged drafter brought, and what they promise (`merge`)."""

from dataclasses import dataclass, field

RECORD_DECAY = 0.98
"""Weight of the past at each new observation."""
TRY = 16
"""Rounds of a request after which a drafter that is passed over is asked again."""
BROKEN = 12
"""Consecutive rounds without a kept token after which a drafter promises nothing, until it brings one."""
TELL = 2
"""Rounds of a request between two reports of what the first part would have brought: a report costs time, too."""


@dataclass(slots=True)
class KeptBySize:
    """Nodes kept a round, by the bit length of a number of nodes, with decay."""

    kept: list[float] = field(default_factory=lambda: [0.0] * 8)
    rounds: list[float] = field(default_factory=lambda: [0.0] * 8)

    def count(self, nodes: int, kept: int) -> None:
        size = nodes.bit_length()
        self.kept[size] = RECORD_DECAY * self.kept[size] + kept
        self.rounds[size] = RECORD_DECAY * self.rounds[size] + 1

    def of(self, nodes: int) -> tuple[float, float]:
        """Kept, and rounds."""
        size = nodes.bit_length()
        return self.kept[size], self.rounds[size]


@dataclass(slots=True)
class DrafterRecord:
    """What one drafter brought: by how many nodes it drafted, and by how many it was asked for."""

    drafted: KeptBySize = field(default_factory=KeptBySize)
    asked: KeptBySize = field(default_factory=KeptBySize)
    used: KeptBySize = field(default_factory=KeptBySize)
    """Nodes that it drafted, in the place of those kept."""
    missed: int = 0
    """The latest rounds that brought nothing, though it drafted, or a model had to run to find nothing worth it."""

    @property
    def sizes(self) -> tuple[KeptBySize, KeptBySize, KeptBySize]:
        """Counts by size, in the order of propose_merged.h."""
        return self.drafted, self.asked, self.used

    def count(self, asked: int, drafted: int, kept: int, runs: bool = False) -> None:
        """A round in which it was asked for nodes; `runs`: a model had to."""
        self.asked.count(asked, kept)
        self.used.count(asked, drafted)
        if drafted:
            self.drafted.count(drafted, kept)
        if drafted or runs:
            self.missed = 0 if kept else self.missed + 1

    def expected(self, drafted: int) -> float:
        """Expected number of kept nodes among `drafted` nodes."""
        kept, rounds = self.drafted.of(drafted)
        return kept / (rounds + 1.0) if drafted else 0.0

    def promised(self, asked: int, row: float) -> float:
        """Nodes kept when it is asked for this many, or for the most so far, less what its rows have to bring at this
        price of each; infinite until it was asked for any."""
        if self.missed >= BROKEN:
            return 0.0
        while asked:
            kept, rounds = self.asked.of(asked)
            if rounds:
                return (kept - row * self.used.of(asked)[0]) / rounds
            asked //= 2
        return float("inf")


def tells(round: int) -> bool:
    """Is this one of a request's rounds that tell of the first part? The same before and after it is committed."""
    return round % TELL == 0
