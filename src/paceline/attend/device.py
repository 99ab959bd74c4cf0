"""The device that kernels run on: a GPU, or this CPU where Triton's interpreter stands in for one."""

import os
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

Device = torch.device | str


def simulated(device: Device) -> bool:
    """Whether the interpreter stands in for this device. TRITON_INTERPRET=1 asks for it where there is no GPU: kernels
    then run on the CPU, slowly, for tests."""
    return str(device).startswith("cuda") and interpreted() and not torch.cuda.is_available()


def interpreted() -> bool:
    """Do kernels run in Triton's interpreter?"""
    found = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
    if found:
        multiply_rows_alone()
    return found


@cache
def multiply_rows_alone() -> None:
    """Give the interpreter a product whose rows do not depend on one another, as a tensor core's do not. Its own is a
    BLAS's, which on CPUs with AVX2 gives a row other bits in a matrix of other height."""
    import numpy
    from triton.runtime import interpreter

    def dot(self: Any, a: Any, b: Any, sums: Any, *how: Any) -> Any:
        rows, columns = (it.data.astype(numpy.float64) for it in (a, b))
        product = numpy.einsum("...ij,...jk->...ik", rows, columns).astype(sums.data.dtype)
        return interpreter.TensorHandle(product + sums.data, sums.dtype.scalar)

    builder: Any = interpreter.InterpreterBuilder
    builder.create_dot = dot


def tensors_on(device: Device) -> torch.device:
    """Where the tensors of a model for this device lie."""
    return torch.device("cpu" if simulated(device) else device)


def kernels_on(device: Device) -> bool:
    """Can Triton's kernels serve this device?"""
    return str(device).startswith("cuda") and find_spec("triton") is not None
