"""Cost of a long text per step, which reads its keys and values in addition to the weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from statistics import median, quantiles
from time import perf_counter

from paceline.bench.limit import plain_steps, read_speed
from paceline.core.params import SamplingParams
from paceline.engine.loop import Engine

SHORT_TEXT_TOKENS, LONG_TEXT_TOKENS = 300, 3900
"""Tokens of the two texts; of the longer as many as the model and the pool hold."""
TURN_TOKENS = 24
"""Tokens of a text in a turn, in some calls; the median call's counts."""
CONTEXT_TURNS = 24
READING = 0.02
"""Seconds of a turn that go to reading a buffer."""
PROFILED_S, FEWEST_TURNS = 45.0, 3
"""Time limit of the turns, and the turns that are made whatever they take."""
LONG_PROMPT_S = 30.0
"""Time for reading the longer text once, by what the shorter one took; it gets shorter where that is not enough."""


@dataclass(frozen=True, slots=True)
class Context:
    """A plain step behind `tokens` takes `slower_ms` longer than behind `short` (quartiles `low_ms`, `high_ms` over the
    turns). The tokens between have `kv_bytes` of keys and values; windows, if layers have them, are not counted.
    `read_gb_s`: of a buffer as large as these and the weights, as caches may hold a part of either; read in every turn,
    as a shared memory's speed changes by the second."""

    short: int
    tokens: int
    slower_ms: float
    low_ms: float
    high_ms: float
    kv_bytes: int
    read_gb_s: float

    def summary(self) -> str:
        times = self.slower_ms / (self.kv_bytes / self.read_gb_s / 1e6)
        return (
            f"Behind {self.tokens:,} tokens a plain step takes {self.slower_ms:.2f} ms longer than behind {self.short} "
            f"(quartiles {self.low_ms:.2f}-{self.high_ms:.2f}): {times:.2f} times what reading their "
            f"{self.kv_bytes / 1e6:,.1f} MB takes at {self.read_gb_s:.1f} GB/s."
        )


def turns_in_time(most: int) -> Iterator[int]:
    """Count turns from 0, which warms up, to `most`, or until the time is over on a slow machine."""
    end = perf_counter() + PROFILED_S
    for turn in range(most + 1):
        if turn > FEWEST_TURNS and perf_counter() > end:
            return
        yield turn


def measure(engine: Engine, params: SamplingParams, turns: int = CONTEXT_TURNS) -> Context | None:
    """The two texts in turns; None where the longer cannot be twice the shorter. The engine must be idle; its prefix
    cache spares the turns most of their prompts."""
    room = min(engine.model.max_len, engine.config.blocks * engine.config.block_size)
    long = min(LONG_TEXT_TOKENS, room - TURN_TOKENS - 1)
    if long < 2 * SHORT_TEXT_TOKENS:
        return None
    text = Random(1).choices(range(engine.model.vocab_size), k=long)
    plain_steps(engine, text[SHORT_TEXT_TOKENS : SHORT_TEXT_TOKENS + TURN_TOKENS], params, 1)  # warms everything up
    started = perf_counter()
    plain_steps(engine, text[:SHORT_TEXT_TOKENS], params, 1)
    affordable = int(SHORT_TEXT_TOKENS * LONG_PROMPT_S / (perf_counter() - started))
    long = max(2 * SHORT_TEXT_TOKENS, min(long, affordable))
    size = (long - SHORT_TEXT_TOKENS) * engine.model.kv_bytes_per_token
    taken, speeds = [], []
    for turn in turns_in_time(turns):
        (short_ms, _), (long_ms, _) = (
            plain_steps(engine, text[:n], params, TURN_TOKENS) for n in (SHORT_TEXT_TOKENS, long)
        )
        if turn > 0:
            taken.append(long_ms - short_ms)
            speeds.append(read_speed(engine.model.weight_bytes + size, engine.model.device, READING))
    low, middle, high = quantiles(taken, n=4, method="inclusive") if len(taken) > 1 else [median(taken)] * 3
    return Context(SHORT_TEXT_TOKENS, long, middle, low, high, size, median(speeds) / 1e9)
