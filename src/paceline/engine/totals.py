"""Counters of an engine: written by its thread alone, read by others as a frozen `Snapshot`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from paceline.cache.blocks import BlockPool
from paceline.core.plan import Note
from paceline.core.request import Request, SpecStats
from paceline.plan import Account


@dataclass(slots=True)
class Totals:
    """Counters since the start. A request counts for the drafter that drafted in the pass, so a change of drafter in
    mid-text is counted correctly."""

    prompt: int = 0
    """Tokens that requests had when they first got a lease: the prompt, and what a fork or an extension gave."""
    cached: int = 0
    """Prompt tokens that were found in the prefix cache."""
    preemptions: int = 0
    drafter_errors: dict[str, int] = field(default_factory=dict)
    drafters: dict[str, SpecStats] = field(default_factory=dict)
    saved_s: float = 0.0
    """Seconds that speculation has saved against plain decoding, by the governor's account; below 0: lost."""
    busy_s: float = 0.0
    """Seconds of all steps."""
    stopped: bool = False
    """Has speculation lost more than it may, and is stopped for now?"""
    stopped_keys: int = 0
    """Keys for whose requests alone that is so."""
    why: tuple[str, ...] = ()
    """Reasons of the latest decision."""

    def admitted(self, request: Request) -> None:
        """Count a request that got its first lease."""
        self.prompt += len(request.tokens)
        self.cached += request.length

    def passed(self, notes: Sequence[Note], generated: int) -> None:
        """Count one request's part of a step, a note a pass."""
        drafter = notes[0].drafter
        stats = self.drafters.get(drafter)
        if stats is None:
            stats = self.drafters[drafter] = SpecStats()
        for note in notes:
            stats.count(note.offered, note.kept)
        stats.passes += len(notes)
        stats.generated += generated

    def account(self, account: Account | None, why: tuple[str, ...]) -> None:
        """Copy the policy's account, if it keeps one, and the reasons of its decision."""
        if account is not None:
            self.saved_s, self.busy_s, self.stopped, self.stopped_keys = account
        self.why = why or self.why

    @property
    def saved_words(self) -> str:
        """The account in words, to a tenth of a second; below 10 s to a hundredth."""
        digits = 1 if self.busy_s >= 10 else 2
        saved, busy = f"{abs(self.saved_s):.{digits}f} s", f"{self.busy_s:.{digits}f} s"
        plain = f"the {max(0.0, self.saved_s + self.busy_s):.{digits}f} s that plain decoding takes"
        if self.saved_s < 0.0:
            return f"speculation lost {saved}: {busy} instead of {plain}"
        return f"speculation saved {saved} of {plain}"

    def failed(self, drafter: str, count: int = 1) -> None:
        """Count failures of a drafter."""
        self.drafter_errors[drafter] = self.drafter_errors.get(drafter, 0) + count

    def retired(self) -> "Totals":
        """Counters of an engine that has ended, without the gauges."""
        return replace(self, stopped=False, stopped_keys=0, why=())

    def copy(self) -> "Totals":
        """A copy that shares nothing that changes."""
        drafters = {name: summed([stats]) for name, stats in self.drafters.items()}
        return replace(self, drafter_errors=dict(self.drafter_errors), drafters=drafters)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An engine between two steps. Nothing here changes any more."""

    running: int
    waiting: int
    blocks: int
    used: int
    """Blocks that leases hold."""
    cached: int
    """Blocks that no lease holds and that the prefix cache keeps until they are needed."""
    totals: Totals
    expert_loads: int = 0
    """How often the weights of an expert of a mixture were read."""
    gpu: Mapping[str, int | str] = field(default_factory=dict)
    """Passes on a GPU: how many were captured as graphs, replayed, or run kernel by kernel (`eager`), and why capturing
    stopped (`failed`)."""
    block_size: int = 0
    """Tokens of a block; 0: there are none, or of several sizes."""
    prefix: bool = False
    """Is there a prefix cache?"""

    @property
    def speculation(self) -> SpecStats:
        """The sum over all drafters; its `tau` is the server's."""
        return summed(self.totals.drafters.values())


def snapshot(
    running: Sequence[Request], waiting: Sequence[Request], pool: BlockPool, totals: Totals, expert_loads: int = 0
) -> Snapshot:
    """What an engine has done, between two steps."""
    used = pool.num_blocks - pool.room
    return Snapshot(
        len(running), len(waiting), pool.num_blocks, used, len(pool.evictable), totals.copy(), expert_loads,
        block_size=pool.block_size, prefix=pool.prefix,
    )  # fmt: skip


def added(*parts: Totals) -> Totals:
    """Counters of several engines together, and the reasons of all."""
    total = Totals()
    for part in parts:
        total.prompt += part.prompt
        total.cached += part.cached
        total.preemptions += part.preemptions
        total.saved_s += part.saved_s
        total.busy_s += part.busy_s
        total.stopped = total.stopped or part.stopped
        total.stopped_keys += part.stopped_keys
        total.why += part.why
        for name, count in part.drafter_errors.items():
            total.failed(name, count)
        for name, stats in part.drafters.items():
            known = total.drafters.get(name)
            total.drafters[name] = summed([stats] if known is None else [known, stats])
    return total


def summed(parts: Iterable[SpecStats]) -> SpecStats:
    """Figures of several requests, or drafters, together."""
    total = SpecStats()
    for part in parts:
        total.count(part.offered, part.kept)
        total.passes += part.passes
        total.generated += part.generated
        total.preempted += part.preempted
        total.cached += part.cached
    return total
