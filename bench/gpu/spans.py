"""Sizes of tiles and spans for attention on a GPU: a sweep of the present kernel over the layers of a real 8 B. Each
form's result is compared with that of the sizes in use."""

from functools import partial
from itertools import product
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.gpu import stages
from bench.gpu.tiles import COMPILERS, IS_TOY, timed
from paceline.attend import triton as kernels
from paceline.attend.device import tensors_on

LAYERS, HEADS, KV_HEADS, DIM = (1, 2, 2, 16) if IS_TOY else (32, 32, 8, 128)
PASSES = [(1, False, 24), (8, True, 24)] if IS_TOY else [
    (1, False, 512), (8, False, 512), (32, False, 512), (16, True, 512), (64, True, 512), (1, False, 8192)]  # fmt: skip
"""Rows, whether they are a tree's, and the tokens before them."""


class Form(NamedTuple):
    """Sizes that `attend/triton.py` has as constants, and how its kernel is compiled."""

    queries: int
    keys: int
    span: int
    warps: int
    stages: int


def forms() -> list[Form]:
    sizes = [(64, 256), (64, 128), (64, 64), (128, 256), (128, 128), (32, 128)]
    found = [Form(q, *size, w, s) for q, size, w, s in product((16, 32), sizes, (2, 4, 8), (1, 2, 3))]
    return found[::50] if IS_TOY else found


class Launched:
    """The kernel with other options."""

    def __init__(self, kernel: Any, form: Form) -> None:
        self.kernel, self.options = kernel, {"num_warps": form.warps, "num_stages": form.stages}

    def __getitem__(self, grid: Any) -> Any:
        return partial(self.kernel[grid], **self.options)


def attended(form: Form, rows: int, tree: bool, context: int) -> tuple[float, Tensor]:
    """Microseconds of a layer's attention, and what it gives."""
    device, dtype = tensors_on("cuda"), torch.float32 if IS_TOY else torch.bfloat16
    kernel, stages.CONTEXT = kernels._attend, context
    stream = torch.Generator(device).manual_seed(1)
    made = stages.pass_(rows, tree, device)
    blocks = (1 if tree else rows) * -(-(context + 66) // stages.BLOCK)
    shapes = (LAYERS, 2, KV_HEADS, blocks, stages.BLOCK, DIM), (rows, HEADS, DIM)
    pool, q = (torch.randn(shape, device=device, dtype=dtype, generator=stream) for shape in shapes)
    try:
        kernels._attend, kernels.QUERIES, kernels.KEYS, kernels.SPAN = Launched(kernel, form), *form[:3]
        attend = kernels.Triton(pool, [None] * LAYERS, HEADS, DIM**-0.5, None)
        attend.prepare(made)
        out = attend.read(0, q)

        def call() -> None:
            for layer in range(LAYERS):
                attend.read(layer, q)

        return timed(call) / LAYERS, out
    finally:
        kernels._attend = kernel


def compiles(form: Form) -> str:
    """Compile a form into Triton's cache; why it cannot be."""
    try:
        for tree in (False, True):
            attended(form, 8, tree, PASSES[0][2])
    except Exception as error:  # of a compiler, of memory of a multiprocessor
        return f"{form}: {error!r}"[:300]
    return ""


def spans(leave: Any) -> None:
    """The stage: what is quickest, and how far each form is from the present one."""
    now = Form(kernels.QUERIES, kernels.KEYS, kernels.SPAN, 4, 3)
    with get_context("spawn").Pool(COMPILERS) as pool:
        refused = [error for error in pool.map(compiles, forms(), chunksize=1) if error]
    print(*refused, sep="\n", flush=True)
    found = list[dict[str, Any]]()
    some = [form for form in forms() if not any(str(form) in it for it in refused)]
    for rows, tree, context in PASSES:
        present, right = attended(now, rows, tree, context)
        here = list[tuple[float, Form, float]]()
        for form in some:
            us, got = attended(form, rows, tree, context)
            here.append((us, form, float((got - right).norm() / right.norm())))
        found += [
            {"rows": rows, "tree": tree, "context": context, "form": form, "us": us, "apart": apart, "present": present}
            for us, form, apart in here
        ]
        leave("spans", found)
        print(rows, tree, context, f"present {present:.1f} us", *sorted(here)[:4], flush=True)
