"""Processor time of this process in place of the clock's, for a machine that is not idle. With one thread that is what
a step would take alone, but for caches and memory that others share. Steps have one pass: runs of several time their
drafts by the clock."""

from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import torch

from paceline.engine import calibrate
from paceline.engine.config import EngineConfig
from paceline.engine.loop import Engine


def use(cpu: bool, threads: int) -> tuple[Callable[[], float], int]:
    """Clock for the study, and threads that the engine may have. `cpu`: engines that are built from now on, their
    calibration included, go by processor time, on one thread."""
    if not cpu:
        torch.set_num_threads(threads)
        return perf_counter, threads
    torch.set_num_threads(1)
    changed: Any = Engine.__init__
    changed.__kwdefaults__["clock"] = process_time
    vars(calibrate)["perf_counter"] = process_time
    type.__setattr__(EngineConfig, "patience", property(lambda self: 0.0))
    return process_time, 1
