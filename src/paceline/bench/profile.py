"""Where the time of one step goes, by part and by rows.

One request whose drafter offers rows - 1 arbitrary tokens goes through the engine's own loop. At every moment the
clock runs for exactly one part, the innermost of the wrapped calls, so the parts of a step sum to the step. The native
decoder counts the parts of its pass itself. Those of the PyTorch decoder contain the dispatch of their own operators;
only what lies between them is left for `operator dispatch`. Nothing is wrapped unless someone measures.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch

from paceline.attend import reference
from paceline.attend.turn import rotate_
from paceline.bench import context as contexts
from paceline.bench.busy import CpuWatch
from paceline.bench.files import save, save_json
from paceline.bench.limit import read_speed
from paceline.bench.svg import Chart
from paceline.core.errors import InputError
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.engine.build import build
from paceline.engine.loop import Engine
from paceline.engine.options import Options
from paceline.model import attending
from paceline.model.decoder import Decoder
from paceline.model.native import NativeDecoder

if TYPE_CHECKING:
    from rich.table import Table

P = ParamSpec("P")
T = TypeVar("T")
Progress = Callable[[int, int, str], None]
Swap = tuple[Any, str, Any]
"""(owner, attribute, what stands there while someone measures)"""

FORWARD = ("embedding", "norms and element-wise", "linear layers", "rope", "attention", "head")
"""native.structs.NATIVE_PARTS, in its order."""
EMBEDDING, NORMS, LINEAR, ROPE, ATTENTION, HEAD = FORWARD
HOST_PARTS = (
    "operator dispatch",
    "planning",
    "drafting and layout",
    "cache book-keeping",
    "sampling",
    "detokenising, emit",
)
DISPATCH, PLANNING, LAYOUT_PART, CACHE, SAMPLING, EMIT = HOST_PARTS
PROFILE_PARTS = FORWARD + HOST_PARTS
PROFILED_ROWS = (1, 2, 4, 8, 16, 32, 64)
ROUNDS = 32
"""Timed steps of each row count; one more is a warm-up."""
CONTEXT = 300
"""Tokens before the step, or what the model's context leaves."""


@dataclass(frozen=True, slots=True)
class StepMedians:
    """Medians over the steps with `rows` rows: the step, and each part on its own."""

    rows: int
    count: int
    step_ms: float
    parts_ms: dict[str, float]

    @classmethod
    def of(cls, rows: int, taken: Sequence[Mapping[str, float]]) -> "StepMedians":
        """From the seconds by part of each step."""
        parts = {part: median(step[part] for step in taken) * 1e3 for part in PROFILE_PARTS}
        return cls(rows, len(taken), median(sum(step.values()) for step in taken) * 1e3, parts)


@dataclass(frozen=True, slots=True)
class Profile:
    """`floor_ms` = weight_bytes / read_gb_s: one reading of layers, norms and head."""

    model: str
    context: int
    weight_bytes: int
    read_gb_s: float
    floor_ms: float
    steps: list[StepMedians]
    long: contexts.Context | None = None
    """None where the context is too short to tell."""
    warnings: list[str] = field(default_factory=list)

    def table(self) -> "Table":
        """Milliseconds for a terminal."""
        from rich import box
        from rich.table import Table

        table = Table("ms by rows", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
        for it in self.steps:
            table.add_column(str(it.rows), justify="right", no_wrap=True)
        for part in PROFILE_PARTS:
            table.add_row(
                part, *(f"{it.parts_ms[part]:.3f}" for it in self.steps), end_section=part == PROFILE_PARTS[-1]
            )
        table.add_row("step", *(f"{it.step_ms:.3f}" for it in self.steps))
        return table

    def summary(self) -> str:
        """The read floor, the linear layers next to it, and the cost of a long text."""
        ratios = []
        for it in self.steps:
            linear, head = it.parts_ms[LINEAR] / self.floor_ms, it.parts_ms[HEAD] / self.floor_ms
            if it.rows in (1, 16):
                ratios.append(f"{linear:.2f} ({linear + head:.2f} with the head) at {it.rows} row{'s' * (it.rows > 1)}")
        long = "" if self.long is None else f"\n{self.long.summary()}"
        return (
            f"Medians of {self.steps[0].count} steps at {self.context} tokens of context; {self.model}.\n"
            f"Reading {self.weight_bytes / 1e6:,.1f} MB of weights at {self.read_gb_s:.1f} GB/s takes "
            f"{self.floor_ms:.3f} ms; linear layers / floor: {', '.join(ratios)}.{long}"
        )

    def plot(self, path: Path) -> None:
        """As SVG. Raises InputError when the file cannot be written."""
        layers = {part: [it.parts_ms[part] for it in self.steps] for part in PROFILE_PARTS}
        bars, line = [str(it.rows) for it in self.steps], (self.floor_ms, "reading the weights")
        save(path, Chart("Time of one step by part", "rows of the step", "ms (medians)", bars, layers, line).svg())

    def write(self, path: Path, beside: Mapping[str, Any]) -> None:
        """As JSON under `profile`, with the entries of `beside`. Raises InputError when it cannot be written."""
        save_json(path, {**beside, "profile": asdict(self)})


class PartClock:
    """Charges every moment to one part. On a GPU it waits at each change, so that the time is that of the part's own
    kernels; that makes the whole slower there."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.seconds: dict[str, float] = {}
        self.part, self.since = "", perf_counter()

    def change(self, part: str) -> str:
        """Run for `part` from now on; return the part until now."""
        if self.on_gpu:
            torch.cuda.synchronize()
        now = perf_counter()
        self.seconds[self.part] = self.seconds.get(self.part, 0.0) + now - self.since
        before, self.part, self.since = self.part, part, now
        return before

    def wrap(self, part: str, function: Callable[P, T]) -> Callable[P, T]:
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            before = self.change(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.change(before)

        return timed


def host_parts(engine: Engine, clock: PartClock) -> Iterator[Swap]:
    """What `step` itself does outside these calls is planning; what `_run` does, drafting and layout."""
    calls: list[tuple[Any, str, str]] = [
        (engine, "_run", LAYOUT_PART), (engine.cache, "begin", CACHE), (engine, "_commit", CACHE),
        (engine.model, "forward", DISPATCH), (engine.judge, "judge", SAMPLING),
        (engine, "_emit", EMIT),
    ]  # fmt: skip
    for owner, name, part in calls:
        yield owner, name, clock.wrap(part, getattr(owner, name))


INNER_LINEARS = ("gate_up", "down")
MIXER_LINEARS = ("qkv", "query", "keys", "latent", "inner", "out")


def forward_parts(model: object, clock: PartClock, native: torch.Tensor) -> Iterator[Swap]:
    """`native` [len(FORWARD)] takes the seconds of a native decoder."""
    if isinstance(model, NativeDecoder):
        yield model, "seconds", native
        return
    if not isinstance(model, Decoder):
        return
    weights = model.weights
    yield model, "graphs", None  # whose parts cannot be timed
    yield model, "embed", clock.wrap(EMBEDDING, model.embed)
    yield model, "logits", clock.wrap(HEAD, model.logits)
    yield model, "rotaries", [clock.wrap(ROPE, rotary) for rotary in model.rotaries]
    for module in (reference, attending):
        yield module, "rotate_", clock.wrap(ROPE, rotate_)
    for pool in model.pools:
        attends = "forward" if isinstance(pool, reference.Reference) else "turned"
        yield pool, "prepare", clock.wrap(ATTENTION, pool.prepare)
        yield pool, attends, clock.wrap(ATTENTION, getattr(pool, attends))
    yield weights, "norm", clock.wrap(NORMS, weights.norm)
    for block in weights.blocks:
        dense = [*getattr(block.ffn, "experts", [block.ffn])]
        parts = [(block.mixer, name) for name in MIXER_LINEARS]
        for owner, name in parts + [(ffn, name) for ffn in dense for name in INNER_LINEARS]:
            if callable(linear := getattr(owner, name, None)):
                yield owner, name, clock.wrap(LINEAR, linear)
    halves = [(clock.wrap(NORMS, block.attend), clock.wrap(NORMS, block.feed)) for block in weights.blocks]
    yield weights, "blocks", [SimpleNamespace(attend=attend, feed=feed, close=None) for attend, feed in halves]


@contextmanager
def swapped(owner: Any, name: str, new: Any) -> Iterator[None]:
    old = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, old)


def chain(tokens: list[int], nodes: int) -> list[int]:
    """The drafter: any tokens will do."""
    return [tokens[i % len(tokens)] for i in range(nodes)]


def profile(options: Options, params: SamplingParams, progress: Progress = lambda done, total, what: None) -> Profile:
    """Load the model and measure it. Raises PacelineError for what cannot be served."""
    engine, text = build(
        replace(options, drafter=chain, draft=None, nodes=None, max_requests=1, prefix_cache=True, check=False)
    )
    watch = CpuWatch()
    warnings = [watch.before()]
    wish = params.resolve(text.defaults)
    context, steps = measure(engine, wish, progress=progress)
    long = contexts.measure(engine, wish)
    size, model = engine.model.weight_bytes, engine.model
    speed = read_speed(size, model.device)
    warnings.append(watch.during())
    name = model.describe() if isinstance(model, Decoder) else type(model).__name__
    told = [warning for warning in warnings if warning]
    return Profile(name, context, size, speed / 1e9, size / speed * 1e3, steps, long, told)


def measure(
    engine: Engine,
    params: SamplingParams,
    rows: Sequence[int] = PROFILED_ROWS,
    rounds: int = ROUNDS,
    progress: Progress = lambda done, total, what: None,
) -> tuple[int, list[StepMedians]]:
    """(tokens of context, medians by row count). The engine must be idle and have `chain` as its callable; its prefix
    cache spares the rounds most of their prompt. A round is a request with one step of each row count, shuffled; a
    slow machine makes fewer than `rounds`."""
    most = sum(rows) + max(rows)
    context = min(CONTEXT, engine.model.max_len - most)
    if context < 1:
        raise InputError(
            f"A context of {engine.model.max_len} tokens is too short to profile steps of {max(rows)} rows; "
            f"use one of at least {most + 1}."
        )
    wish = replace(params, drafter="user", ignore_eos=True, min_tokens=0, max_tokens=most, max_nodes=0)
    prompt = Random(0).choices(range(engine.model.vocab_size), k=context)
    clock, native = PartClock(engine.model.device), torch.zeros(len(FORWARD), dtype=torch.float64)
    taken: dict[int, list[dict[str, float]]] = {count: [] for count in rows}
    with ExitStack() as stack:
        for swap in (*forward_parts(engine.model, clock, native), *host_parts(engine, clock)):
            stack.enter_context(swapped(*swap))
        for turn in contexts.turns_in_time(rounds):
            (request,) = engine.submit(prompt, wish)
            while not request.output:
                engine.step()
            for count in Random(turn).sample(rows, len(rows)):
                seconds = timed(engine, request, count, clock, native)
                if turn > 0:
                    taken[count].append(seconds)
            engine.abort(request)
            progress(turn + 1, rounds + 1, "profile")
    return context, [StepMedians.of(count, steps) for count, steps in taken.items()]


def timed(engine: Engine, request: Request, rows: int, clock: PartClock, native: torch.Tensor) -> dict[str, float]:
    """Seconds of each part of one step with a given number of rows; they sum to the step."""
    request.params, before = replace(request.params, max_nodes=rows - 1), request.stats.drafted
    native.zero_()
    clock.seconds = {}
    clock.wrap(PLANNING, engine.step)()
    assert request.stats.drafted - before == rows - 1, f"the step had no {rows} rows: {engine.drafters.errors}"
    seconds = {part: clock.seconds.get(part, 0.0) for part in PROFILE_PARTS}
    for part, spent in zip(FORWARD, native.tolist(), strict=True):
        seconds[part] += spent
        seconds[DISPATCH] -= spent
    return seconds
