"""What reading a text with a draft model costs, and whether that is worth it."""

from collections.abc import Iterable

from paceline.core.plan import Work
from paceline.plan.cost import StepTimes

KEEPS = 1.1
"""A drafter has to make decoding so many times as fast, or its K/V is not kept up."""
USUAL = 256
"""Tokens of an answer within which reading its text has to pay, where it may have so many."""


def reading(times: StepTimes, chains: Iterable[str], rows: int) -> float:
    """Seconds in which the draft model of these drafters reads so many rows: it takes about as many times longer for
    them than for one as the target does."""
    one, whole = Work.of([(1, rows, 1)]), Work(rows, 1, rows, rows * rows // 2, 1)
    return times.of_level(chains) * times.of_target(whole) / times.of_target(one)


def plain(times: StepTimes, count: int, length: int) -> float:
    """Seconds of a plain step of so many texts of this length."""
    return times.of_target(Work.of([(1, length, 1)] * max(1, count)))


def pays(times: StepTimes, chains: Iterable[str], count: int, rows: int, left: int, gain: float) -> bool:
    """Is a drafter worth reading so many rows for, where `count` decode, `left` tokens of this text may still come, and
    it makes decoding `gain` times as fast?"""
    if gain < KEEPS:
        return False
    saved = min(left, USUAL) * plain(times, count, rows) / count * (1.0 - 1.0 / gain)
    return reading(times, chains, rows) <= saved
