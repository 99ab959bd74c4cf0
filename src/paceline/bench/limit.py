"""How close plain decoding comes to the machine's limit: at batch 1 a step must read every weight once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import torch

from paceline.core.errors import InputError
from paceline.core.params import SamplingParams
from paceline.engine.config import Timer
from paceline.engine.loop import Engine
from paceline.model import pages

LIMIT_WIDTH = 1024
LIMIT_STEPS = 64


@dataclass(frozen=True, slots=True)
class Limit:
    """`floor_ms` = weight_bytes / read_gb_s; `step_ms` the median of a plain token at batch 1; `fraction_of_limit` =
    floor_ms / step_ms; `host_share` = 1 - (time in the target's forward, drafters and sampling) / step time."""

    weight_bytes: int
    read_gb_s: float
    floor_ms: float
    step_ms: float
    fraction_of_limit: float
    host_share: float


def measure(engine: Engine, prompt: Sequence[int], params: SamplingParams) -> Limit:
    """Read a buffer as large as the weights, then take plain steps on `prompt`. The engine must be idle."""
    size = engine.model.weight_bytes
    speed = read_speed(size, engine.model.device)
    step_ms, host_share = plain_steps(engine, prompt, params)
    floor_ms = size / speed * 1e3
    return Limit(size, speed / 1e9, floor_ms, step_ms, floor_ms / step_ms, host_share)


def read_speed(size: int, device: torch.device, seconds: float = 0.5) -> float:
    """Bytes a second: the best of many dot products and sums over a float32 buffer of `size` bytes with all threads.
    Which of the two is the faster depends on the CPU: MKL's dot products read at half speed on some."""
    rows = max(1, size // (4 * LIMIT_WIDTH))
    buffer = pages.tensor((rows, LIMIT_WIDTH), torch.float32, device).fill_(1)  # in huge pages, as weights are
    vector, best = torch.ones(LIMIT_WIDTH, device=device), float("inf")
    reads: tuple[Callable[[], object], ...] = (lambda: buffer.mv(vector), lambda: buffer.sum())
    end = perf_counter() + seconds
    while perf_counter() < end or best == float("inf"):
        for read in reads:
            started = perf_counter()
            read()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            best = min(best, perf_counter() - started)
    return buffer.nbytes / best


def plain_steps(
    engine: Engine, prompt: Sequence[int], params: SamplingParams, steps: int = LIMIT_STEPS
) -> tuple[float, float]:
    """(median milliseconds per token, host share) over the tokens of one plain request."""
    prompt = prompt[: max(1, engine.model.max_len - steps - 1)]
    wish = replace(params, drafter="none", verifier="exact", ignore_eos=True, max_tokens=steps + 1)
    (request,) = engine.submit(prompt, wish)
    while not request.output and request.finish is None:
        engine.step()
    engine.timer, taken = Timer(), []
    while request.finish is None:
        started, before = perf_counter(), len(request.output)
        engine.step()
        taken.append((perf_counter() - started) / max(1, len(request.output) - before))
    if not taken:
        raise InputError(f"A context of {engine.model.max_len} tokens is too short to measure a step; raise it.")
    timer = engine.timer
    return median(taken) * 1e3, 1 - (timer.target + timer.draft + timer.sample) / timer.step
