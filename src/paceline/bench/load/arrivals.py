"""When requests arrive: offsets in seconds from the start of a run, in order."""

import math
from collections.abc import Iterator
from itertools import count, islice, takewhile
from random import Random

from paceline.core.errors import InputError

Offsets = Iterator[float]


def random(rate: float, seed: int, burstiness: float = 1.0) -> Offsets:
    """Gaps drawn from a gamma distribution of mean 1 / rate and shape `burstiness`, without end.

    1 is a Poisson process; below 1 is burstier (coefficient of variation 1 / sqrt(shape)), above 1 more even, and
    infinity is `constant`. The first request also comes after a gap.
    """
    positive(rate, "rate", "requests a second")
    if not burstiness > 0:
        raise InputError(f"burstiness is {burstiness:g}, but it must be above 0; 1 is Poisson.")
    if math.isinf(burstiness):
        yield from constant(rate)
        return
    draw, at = Random(seed), 0.0
    while True:
        at += draw.gammavariate(burstiness, 1 / (rate * burstiness))
        yield at


def constant(rate: float) -> Offsets:
    """0, 1 / rate, 2 / rate, ... without end, each computed from its index: no rounding error adds up."""
    positive(rate, "rate", "requests a second")
    return (i / rate for i in count())


def faster(offsets: Iterator[float], speed: float) -> Offsets:
    """Recorded offsets, played `speed` times as fast."""
    positive(speed, "speed", "a factor such as 2")
    return (at / speed for at in offsets)


def until(offsets: Offsets, requests: int | None, seconds: float | None) -> list[float]:
    """The first `requests` offsets that lie before `seconds`; None: no such limit."""
    within = offsets if seconds is None else takewhile(lambda at: at < seconds, offsets)
    return list(islice(within, requests))


def positive(value: float, name: str, want: str) -> None:
    """Raise InputError unless the value is a positive, finite number."""
    if not 0 < value < math.inf:
        raise InputError(f"{name} is {value:g}, but it must be above 0 and finite: {want}.")
