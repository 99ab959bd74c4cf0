"""Sizes of tiles for the products of a GPU: a sweep of the present kernel and of
`bench/gpu/candidates.py` on the shapes of a real 8 B.

Each form's result is compared with float64, and a lone row's bits with those next to others, before it is timed by a
graph that reads more weights than the card's cache holds.
"""

import os
from collections.abc import Iterator
from functools import partial
from itertools import product
from multiprocessing import get_context
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.attend.device import interpreted, tensors_on

IS_TOY = bool(os.environ.get("GPU_TOY"))
SHAPES = [(64, 512)] if IS_TOY else [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)]
ROWS = (1, 8, 32)
COLD_BYTES = 0 if IS_TOY else 300_000_000
"""Bytes of matrices that are read in turn: more than a card's cache."""
MAX_PROGRAMS, MIN_PROGRAMS = 2600, 1 if IS_TOY else 100
COMPILERS = 1 if IS_TOY else 12
"""Processes that compile."""


class Form(NamedTuple):
    """A kernel, what it multiplies, and its tile."""

    kernel: str
    kind: str
    outputs: int
    inputs: int
    stages: int
    warps: int


def forms() -> list[Form]:
    tiles = [(64, 128, 4, 4), (64, 256, 3, 4), (128, 64, 4, 4), (128, 128, 3, 8), (64, 64, 6, 4)]
    found = [Form("present", kind, *tile) for kind in ("bf16", "int8") for tile in tiles]
    found += [Form("present", "int4", outputs, 256, *how) for outputs, *how in [(128, 3, 8), (64, 3, 4)]]
    if not IS_TOY:  # the interpreter has no instructions of a device
        groups = [(64, 3, 4), (64, 2, 4), (128, 2, 4), (128, 3, 4), (128, 2, 8), (128, 3, 8), (64, 2, 8)]
        found += [Form("by_groups", "int4", outputs, 256, *how) for outputs, *how in groups]
    return found[::5] if IS_TOY else found


def matrix(kind: str, outputs: int, inputs: int, stream: torch.Generator) -> tuple[Tensor, ...]:
    """Random tensors of a matrix of this kind."""
    device, draw = stream.device, partial(torch.randint, generator=stream, device=stream.device)
    if kind == "bf16":
        dtype = torch.float32 if IS_TOY else torch.bfloat16
        return (torch.empty(outputs, inputs, device=device, dtype=dtype).normal_(0, inputs**-0.5, generator=stream),)
    if kind == "int8":
        return (draw(-127, 128, (outputs, inputs), dtype=torch.int8),)
    records = inputs // 256
    words = draw(-(2**31), 2**31 - 1, (records, outputs, 32), dtype=torch.int32)
    times = draw(1, 64, (records, outputs, 2, 8), dtype=torch.uint8)
    return words, times, torch.rand(records, outputs, 2, device=device, generator=stream) * 1e-4


def dense(kernel: str, tensors: tuple[Tensor, ...]) -> Tensor:
    """A matrix in float64; codes of 4 bits in the order that a kernel takes them."""
    if len(tensors) == 1:
        return tensors[0].double()
    words, times, halves = tensors
    records, outputs, _ = words.shape
    codes = torch.stack([words >> (4 * i) & 15 for i in range(8)], 3 if kernel == "by_groups" else 2).double()
    scale, low = (times.double() * halves.double()[..., None]).unbind(2)
    worth = codes.view(records, outputs, 8, 32) * scale[..., None] + low[..., None]
    return worth.transpose(0, 1).reshape(outputs, -1)


def arranged(kernel: str, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Tensors of a matrix as a kernel takes them."""
    if len(tensors) == 1 or kernel == "by_groups":
        return tensors
    words, times, halves = tensors
    many = times.permute(2, 0, 3, 1).flatten(1, 2).contiguous()
    return words.transpose(0, 1).contiguous(), many, halves.permute(2, 0, 1).contiguous()


def multiply(form: Form, tensors: tuple[Tensor, ...], x: Tensor, out: Tensor) -> None:
    """`out` [parts, rows, outputs] from x [rows, inputs] and tensors as they are `arranged`."""
    from bench.gpu import candidates
    from paceline.model.gpu.product import _multiply, _multiply4

    (parts, rows, outputs), inputs = out.shape, x.shape[1]
    more: dict[str, Any] = {"num_warps": form.warps, "num_stages": form.stages}
    more |= {"ROWS": 16 if rows <= 16 else 32, "OUTPUTS": form.outputs}
    grid: Any = (-(-outputs // form.outputs), parts, 1)
    each = -(-inputs // (parts * form.inputs))
    if form.kernel == "by_groups":
        records = inputs // form.inputs
        candidates.by_groups[grid](x, *tensors, out, rows, outputs, inputs, each, records, INPUTS=form.inputs, **more)
        return
    more |= {"PARTS": 1, "BIASED": False, "WIDE": interpreted(), "enable_fp_fusion": False}
    if form.kind == "int4":
        _multiply4[grid](x, *tensors, x, out, rows, outputs, inputs, inputs, each, inputs // form.inputs, **more)
        return
    more |= {"INPUTS": form.inputs, "SCALED": False, "TURNED": form.kind == "bf16"}
    _multiply[grid](x, *tensors, x, x, out, rows, outputs, inputs, inputs, each * form.inputs, **more)


def compiles(form: Form) -> str:
    """Compile a form into Triton's cache; why it cannot be."""
    device = tensors_on("cuda")
    stream = torch.Generator(device).manual_seed(0)
    try:
        for rows in (2, 32):
            x = torch.randn(rows, 512, device=device, dtype=torch.float32 if IS_TOY else torch.bfloat16)
            tensors = arranged(form.kernel, matrix(form.kind, 256, 512, stream))
            multiply(form, tensors, x, torch.empty(1, rows, 256, device=device))
    except Exception as error:  # of a compiler, of memory of a multiprocessor
        return f"{form}: {error!r}"[:300]
    return ""


def timed(call: Any) -> float:
    """Microseconds of a call by a graph, the median of five."""
    if IS_TOY:
        call()
        return 1.0
    graph, taken = torch.cuda.CUDAGraph(), list[float]()
    with torch.cuda.graph(graph):
        call()
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(1e3 * begin.elapsed_time(end))
    return median(taken[1:])


def measured(shape: tuple[int, int], kind: str, some: list[Form], stream: torch.Generator) -> Iterator[dict[str, Any]]:
    """Every form of a kind on one shape, with every number of parts that fills the card."""
    outputs, inputs = shape
    one = matrix(kind, *shape, stream)
    size = sum(it.nbytes for it in one)
    all_of = [one, *(matrix(kind, *shape, stream) for _ in range(min(11, COLD_BYTES // size)))]
    many = torch.randn(32, inputs, device=stream.device, dtype=torch.float32 if IS_TOY else torch.bfloat16)
    for kernel in sorted({form.kernel for form in some}):
        exact = many.double() @ dense(kernel, one).T
        laid = [arranged(kernel, each) for each in all_of]
        for form, rows, parts in product([it for it in some if it.kernel == kernel], ROWS, (1, 2, 4, 8, 16)):
            programs = parts * -(-outputs // form.outputs)
            if not MIN_PROGRAMS <= programs <= MAX_PROGRAMS or (parts > 1 and inputs // parts < 512):
                continue
            x, out = many[:rows], torch.full((parts, rows, outputs), float("nan"), device=stream.device)
            lone = torch.empty(parts, 1, outputs, device=stream.device)
            multiply(form, laid[0], x, out)
            multiply(form, laid[0], many[rows - 1 : rows], lone)
            got = out.sum(0)
            error = float((got - exact[:rows]).norm() / exact[:rows].norm())
            same = torch.equal(lone.sum(0)[0], got[-1])

            def call(form: Form = form, x: Tensor = x, out: Tensor = out, laid: list[Any] = laid) -> None:
                for tensors in laid:
                    multiply(form, tensors, x, out)

            us = timed(call) / len(laid)
            yield {"kind": kind, "shape": shape, "rows": rows, "parts": parts, "form": form, "us": us, "error": error,
                   "same_bits": same, "gb_s": size / us / 1e3}  # fmt: skip


def tiles(leave: Any) -> None:
    """The stage: what is quickest, and whether it is right."""
    with get_context("spawn").Pool(COMPILERS) as pool:
        refused = [error for error in pool.map(compiles, forms(), chunksize=1) if error]
    print(*refused, sep="\n", flush=True)
    found = list[dict[str, Any]]()
    stream = torch.Generator(tensors_on("cuda")).manual_seed(0)
    for shape, kind in product(SHAPES, ("bf16", "int4", "int8")):
        some = [form for form in forms() if form.kind == kind and not any(str(form) in it for it in refused)]
        here = list(measured(shape, kind, some, stream))
        found += here
        leave("tiles", found)
        for rows in ROWS:
            right = [it for it in here if it["rows"] == rows and it["error"] < 0.02 and it["same_bits"]]
            for it in sorted(right, key=lambda it: float(it["us"]))[:2]:
                print(kind, shape, rows, tuple(it["form"]), it["parts"], f"{it['us']:.1f} us, {it['gb_s']:.0f} GB/s")
    wrong = [it for it in found if not (it["error"] < 0.02 and it["same_bits"])]
    print(f"{len(wrong)} of {len(found)} are wrong, or give a row other bits next to others", flush=True)
