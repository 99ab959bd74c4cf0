"""Timed runs: every method over the same prompts, batch by batch, in turns.

    for each repeat, batch size, temperature and group of prompts:  none  ngram  model | ngram  model  none | ...

One engine serves all methods; its prefix cache must be off, so that each pays its prefill.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import NamedTuple

from paceline.core.errors import InputError, PacelineError
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.engine.loop import Engine

PLAIN_METHOD = "none"
WARM_UP = 16
"""Tokens of the untimed first run of each method."""


class BenchCell(NamedTuple):
    """One line of the report."""

    method: str
    batch: int
    temperature: float


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What is measured. `params` are resolved, with drafter, temperature and seed to be filled in."""

    methods: Sequence[str]
    """Drafters; `none` first."""
    batches: Sequence[int]
    temperatures: Sequence[float]
    verifier: str
    params: SamplingParams
    repeat: int
    seed: int = 0

    def cells(self) -> Iterator[BenchCell]:
        for temperature in self.temperatures:
            for batch in self.batches:
                yield from (BenchCell(method, batch, temperature) for method in self.methods)

    def wish(self, method: str, temperature: float, prompt: int) -> SamplingParams:
        """Parameters of one request. Plain decoding is always judged by `exact`; the seed is the prompt's own, so that
        all methods draw with the same noise."""
        verifier = "exact" if method == PLAIN_METHOD else self.verifier
        return replace(self.params, drafter=method, verifier=verifier, temperature=temperature, seed=self.seed + prompt)


@dataclass(slots=True)
class BenchRun:
    """One method once over all prompts: sums over its batches."""

    seconds: float = 0.0
    """From the first prompt row to the last token."""
    tokens: int = 0
    decode_seconds: float = 0.0
    """From the end of the step in which the last request of the batch got its first token, to the last token."""
    decode_tokens: int = 0
    """Tokens that came after that step."""
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    outputs: list[list[int]] = field(default_factory=list)
    """Token ids, in the order of the prompts."""
    preempted: int = 0

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    @property
    def decode_speed(self) -> float | None:
        return self.decode_tokens / self.decode_seconds if self.decode_tokens else None

    def add(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.tokens += len(request.output)
            self.passes += request.stats.passes
            self.drafted += request.stats.drafted
            self.accepted += request.stats.accepted
            self.preempted += request.stats.preempted
            self.outputs.append(list(request.output))


Results = dict[BenchCell, list[BenchRun]]
Tick = Callable[[str], None]
"""Callback after every timed batch: what was run."""


def measure(engine: Engine, prompts: Sequence[Sequence[int]], plan: BenchPlan, tick: Tick) -> Results:
    """Runs of every cell, one per repeat. Raises PacelineError, before anything is timed, for a bad prompt."""
    assert not engine.config.prefix_cache, "a prefix cache would spare later runs their prefill"
    check(engine, prompts, plan)
    warm_up(engine, prompts, plan)
    results: Results = {cell: [] for cell in plan.cells()}
    turn = 0
    for _ in range(plan.repeat):
        for runs in results.values():
            runs.append(BenchRun())
        for temperature in plan.temperatures:
            for batch in plan.batches:
                engine.drafters.drafters.clear()  # what they learned of these very prompts
                for group in groups(len(prompts), batch):
                    turn += 1
                    for method in rotated(plan.methods, turn):
                        wishes = [plan.wish(method, temperature, i) for i in group]
                        run = results[BenchCell(method, batch, temperature)][-1]
                        time_batch(engine, [prompts[i] for i in group], wishes, run)
                        tick(f"{method}, batch {batch}")
    return results


def groups(count: int, batch: int) -> Iterator[range]:
    """Prompts 0 .. count - 1, `batch` at a time."""
    return (range(start, min(start + batch, count)) for start in range(0, count, batch))


def rotated(methods: Sequence[str], turn: int) -> list[str]:
    """Each method is first equally often, so that none profits from its place."""
    at = turn % len(methods)
    return [*methods[at:], *methods[:at]]


def time_batch(
    engine: Engine, prompts: Sequence[Sequence[int]], wishes: Sequence[SamplingParams], run: BenchRun
) -> None:
    """Submit the prompts together, run them to their ends, and add the figures to `run`."""
    requests = [engine.submit(prompt, wish)[0] for prompt, wish in zip(prompts, wishes)]
    decoding: float | None = None
    early = 0
    started = perf_counter()
    while engine.busy:
        engine.step()
        if decoding is None and all(r.output or r.finish for r in requests):
            decoding, early = perf_counter(), sum(len(r.output) for r in requests)
    ended = perf_counter()
    failed = next((r for r in requests if r.error), None)
    if failed is not None:
        raise InputError(f"A request of drafter {wishes[0].drafter!r} failed: {failed.error}")
    run.add(requests)
    run.seconds += ended - started
    run.decode_seconds += ended - (decoding or ended)
    run.decode_tokens += sum(len(r.output) for r in requests) - early


def check(engine: Engine, prompts: Sequence[Sequence[int]], plan: BenchPlan) -> None:
    """Offer every prompt to the engine and take it back. Raises what the engine raises, naming the prompt."""
    for method in plan.methods:
        for number, prompt in enumerate(prompts, start=1):
            try:
                requests = engine.submit(prompt, plan.wish(method, plan.temperatures[0], number))
            except PacelineError as error:
                raise type(error)(f"Prompt {number} cannot be served by {method!r}: {error}") from None
            for request in requests:
                engine.abort(request)


def warm_up(engine: Engine, prompts: Sequence[Sequence[int]], plan: BenchPlan) -> None:
    """A short untimed run of each method and batch size: first calls allocate and compile."""
    for cell in plan.cells():
        wish = plan.wish(cell.method, cell.temperature, 0)
        short = replace(wish, max_tokens=min(WARM_UP, wish.max_tokens or WARM_UP), min_tokens=0)
        count = min(cell.batch, len(prompts))
        time_batch(engine, prompts[:count], [short] * count, BenchRun())
