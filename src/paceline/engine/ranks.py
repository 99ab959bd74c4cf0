"""A target whose matrices are cut over several processes or GPUs: what its options allow."""

from dataclasses import replace
from pathlib import Path

import torch

from paceline.attend.device import simulated
from paceline.core.errors import InputError
from paceline.engine.options import Options
from paceline.engine.processes import check_processes
from paceline.model.checkpoint import read_config
from paceline.model.decoder import Decoder
from paceline.model.footprint import Footprint
from paceline.model.spread.tensors import check_cut, cut_model

MAX_RANKS = 64
"""Most processes of one model."""


def check_ranks(options: Options) -> None:
    """Raise InputError or RefusalError for options that do not allow cutting the matrices of any model."""
    count = options.tensor_parallel
    others = {
        "expert_parallel": options.expert_parallel > 1,
        "kv_dtype int8": options.kv_dtype == "int8",
        "lora": bool(options.lora),
        "zoo": bool(options.zoo),
        "schedule layered": options.schedule == "layered",
        f"overlap {options.overlap}": options.overlap != "none",
        "quantize on a CPU": options.quantize not in (None, "none") and options.device == "cpu",
    }
    splits = check_processes("tensor_parallel", count, MAX_RANKS, others)
    if splits and options.device.startswith("cuda") and not simulated(options.device):
        if ":" in options.device:
            raise InputError(
                f"tensor_parallel takes GPUs 0 to {count - 1}, but device is {options.device!r}; use cuda."
            )
        if (found := torch.cuda.device_count()) < count:
            raise InputError(f"tensor_parallel is {count}, but this torch sees {found} GPUs; use {found} or fewer.")


def part_of(whole: Footprint, ranks: int) -> Footprint:
    """What one of several processes takes of memory: its part of matrices, keys and values."""
    if ranks == 1:
        return whole
    return replace(whole, weights=-(-whole.weights // ranks), slot=-(-whole.slot // ranks))


def cut(options: Options, path: Path) -> Decoder:
    """The target, in `tensor_parallel` processes. Without `threads` these share the cores."""
    check_cut(read_config(path, options.max_model_len), options.tensor_parallel, path)
    if not options.threads:
        torch.set_num_threads(max(1, torch.get_num_threads() // options.tensor_parallel))
    form = {"dtype": options.dtype, "device": options.device, "max_len": options.max_model_len}
    return cut_model(path, options.tensor_parallel, {**form, "quantize": options.quantize})
