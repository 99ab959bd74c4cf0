"""The device that kernels run on: a GPU, or this CPU where Triton's interpreter stands in for one."""

import os
from importlib.util import find_spec

import torch

Device = torch.device | str


def simulated(device: Device) -> bool:
    """Does the interpreter stand in for this device? TRITON_INTERPRET=1 asks for it where there is no GPU: kernels then
    run on the CPU, slowly, for tests."""
    return str(device).startswith("cuda") and interpreted() and not torch.cuda.is_available()


def interpreted() -> bool:
    """Do kernels run in Triton's interpreter?"""
    return os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None


def tensors_on(device: Device) -> torch.device:
    """Where the tensors of a model for this device lie."""
    return torch.device("cpu" if simulated(device) else device)


def kernels_on(device: Device) -> bool:
    """Can Triton's kernels serve this device?"""
    return str(device).startswith("cuda") and find_spec("triton") is not None
