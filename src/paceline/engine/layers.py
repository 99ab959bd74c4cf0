"""A target, and its fine-tunes, whose layers are in several processes: what its options allow."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline.core.errors import InputError
from paceline.engine.adapters import adapters_of
from paceline.engine.processes import check_processes
from paceline.model.checkpoint import resolve

if TYPE_CHECKING:
    from paceline.engine.options import Options
    from paceline.model.decoder import Decoder

MAX_LAYER_PROCESSES = 64


def check_layer_options(options: "Options") -> None:
    """Raise InputError or RefusalError for options that do not allow placing the layers of any model."""
    from paceline.model.spread.layers import LAYER_RULES, read_counts

    if options.layer_rule not in LAYER_RULES:
        raise InputError(f"layer_rule is {options.layer_rule!r}, but it must be {' or '.join(LAYER_RULES)}.")
    others = {
        "expert_parallel": options.expert_parallel > 1,
        "tensor_parallel": options.tensor_parallel > 1,
        "lora": bool(options.lora),
        "substitute": bool(options.substitute),
        "schedule layered": options.schedule == "layered",
        f"overlap {options.overlap}": options.overlap != "none",
        f"device {options.device}": options.device != "cpu",
    }
    only = {"layer_counts": options.layer_counts}
    splits = check_processes("layer_processes", options.layer_processes, MAX_LAYER_PROCESSES, others, only)
    if splits and options.layer_counts is not None:
        read_counts(Path(options.layer_counts))


def over_processes(options: "Options", path: Path) -> "Decoder":
    """The target, its layers in `layer_processes` processes. Without `threads` these share the cores."""
    from paceline.model.spread.layers import place_model

    if not options.threads:
        torch.set_num_threads(max(1, torch.get_num_threads() // options.layer_processes))
    form = {
        "dtype": options.dtype, "quantize": options.quantize, "kv_dtype": options.kv_dtype,
        "max_len": options.max_model_len,
    }  # fmt: skip
    tunes = {name: resolve(at, None, options.token) for name, at in adapters_of(options.zoo, "zoo").items()}
    counts = None if options.layer_counts is None else Path(options.layer_counts)
    return place_model(path, tunes, options.layer_processes, form, options.layer_rule, counts)
