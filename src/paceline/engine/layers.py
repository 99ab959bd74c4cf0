"""A target, and its fine-tunes, whose layers are in several processes: what its options allow."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline.core.errors import InputError, RefusalError
from paceline.engine.adapters import adapters_of
from paceline.model.checkpoint import resolve

if TYPE_CHECKING:
    from paceline.engine.options import Options
    from paceline.model.decoder import Decoder

MAX_LAYER_PROCESSES = 64


def check_layer_options(options: "Options") -> None:
    """Raise InputError or RefusalError where layers cannot be placed so, whatever the model is."""
    from paceline.model.spread.layers import LAYER_RULES, read_counts

    count = options.layer_processes
    if not 1 <= count <= MAX_LAYER_PROCESSES:
        raise InputError(f"layer_processes is {count}, but it must be 1 to {MAX_LAYER_PROCESSES} processes.")
    if options.layer_rule not in LAYER_RULES:
        raise InputError(f"layer_rule is {options.layer_rule!r}, but it must be {' or '.join(LAYER_RULES)}.")
    if count == 1:
        if options.layer_counts is not None:
            raise InputError("layer_counts is given, but layer_processes is 1; say how many processes there are.")
        return
    others = {
        "expert_parallel": options.expert_parallel > 1,
        "tensor_parallel": options.tensor_parallel > 1,
        "lora": bool(options.lora),
        "substitute": bool(options.substitute),
        "schedule layered": options.schedule == "layered",
        f"overlap {options.overlap}": options.overlap != "none",
        f"device {options.device}": options.device != "cpu",
    }
    if wrong := [name for name, given in others.items() if given]:
        raise RefusalError(f"layer_processes and {wrong[0]} cannot be combined; leave one of them out.")
    if options.layer_counts is not None:
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
