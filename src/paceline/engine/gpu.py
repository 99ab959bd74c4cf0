"""Checks of a GPU before an engine begins on it, and the errors where its memory ends."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from paceline.attend.device import simulated
from paceline.core.errors import CapacityError, InputError, RefusalError, memory_ended

log = logging.getLogger("paceline")
RESERVE = 0.05
"""Share of a GPU's free memory that is left to graphs, libraries and pieces that do not fit."""
OTHERS_BYTES = 1 << 30
"""Bytes of a GPU that other programs may hold before the log says so."""


def check_device(device: str, dtype: str = "bfloat16") -> None:
    """Raise InputError for a device that is not served, or that this machine or this torch does not have."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise InputError(f"device is {device!r}, but it must be cpu, cuda or cuda:N.")
    if simulated(device):
        log.warning("TRITON_INTERPRET=1: a GPU's kernels run in Triton's interpreter on the CPU, for tests.")
        return
    if device != "cpu":
        check_gpu(device, dtype)


def check_gpu(device: str, dtype: str) -> None:
    """Raise InputError or RefusalError where this torch sees no such GPU, or it lacks what is asked for; a warning
    where others compute on it, too."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        count = torch.cuda.device_count()
        have = f"this torch sees {count} such GPUs" if count else f"this torch sees no such GPU ({first_line(error)})"
        raise InputError(f"device is {device!r}, but {have}; use cpu.") from None
    name = torch.cuda.get_device_name(device)
    if dtype == "bfloat16" and torch.cuda.get_device_capability(device) < (8, 0):
        raise RefusalError(f"dtype is bfloat16, which the GPU {name} does not have; use dtype float16 or float32.")
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    if others > OTHERS_BYTES:
        log.warning(
            "Other programs hold %.1f of the %.1f GB of %s: both are slower, and the K/V cache gets what is free now.",
            others / 1e9, total / 1e9, name,
        )  # fmt: skip


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [repr(error)])[0][:200].rstrip(".")


def free_bytes(device: str) -> int:
    """Bytes that an engine on this device may take: of the machine, a quarter of what is free is for the K/V cache
    alone (`shape_of`)."""
    if device.startswith("cuda") and not simulated(device):
        return int(torch.cuda.mem_get_info(device)[0] * (1 - RESERVE))
    import psutil

    return int(psutil.virtual_memory().available)


def room_for_blocks(device: str, weights: int, scratch: int) -> int:
    """Bytes of the K/V cache where no option says how many. CapacityError where weights and a pass leave nothing."""
    free = free_bytes(device)
    if not device.startswith("cuda") or simulated(device):
        return free // 4
    left = free - weights - scratch
    if left <= 0:
        raise CapacityError(
            f"The model's weights take {weights / 1e9:.1f} GB and a pass {scratch / 1e9:.1f} GB, but {device} has only "
            f"{free / 1e9:.1f} GB free; use quantize int8 or int4, a smaller row_budget, tensor_parallel, or a smaller "
            "model."
        )
    return left


@contextmanager
def named_memory(where: str, advice: str) -> Iterator[None]:
    """CapacityError in words where a GPU's memory ends, or this machine's."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise CapacityError(f"The GPU ran out of memory {where} ({first_line(error)}); {advice}.") from None
    except Exception as error:
        if not memory_ended(error):
            raise
        words = first_line(error) or type(error).__name__
        raise CapacityError(f"This process ran out of memory {where} ({words}); {advice}.") from error
