"""Options of a target whose experts are split over several processes."""

from pathlib import Path

import torch

from paceline.core.errors import RefusalError
from paceline.engine.options import Options
from paceline.engine.processes import check_processes
from paceline.model.checkpoint import open_tensors, read_config
from paceline.model.decoder import Decoder
from paceline.model.spread.group import spread_model
from paceline.model.spread.layers import LayeredDecoder, write_counts
from paceline.model.spread.table import MAX_DEVICES, RouteTable, mixtures_of, read_table
from paceline.model.stored import stored_bits


def check_experts(options: Options) -> None:
    """Raise InputError or RefusalError for options that do not allow splitting the experts of any model."""
    others = {
        "quantize": options.quantize not in (None, "none"),
        "kv_dtype int8": options.kv_dtype == "int8",
        f"device {options.device}": options.device != "cpu",
        "lora": bool(options.lora),
        f"overlap {options.overlap}": options.overlap != "none",
    }
    only = {"expert_table": options.expert_table}
    check_processes("expert_parallel", options.expert_parallel, MAX_DEVICES, others, only)


def spread(options: Options, path: Path) -> Decoder:
    """Load the target with its experts in `expert_parallel` processes. Without `threads` these share the cores."""
    spec = read_config(path, options.max_model_len)
    mixtures, count = mixtures_of(spec), options.expert_parallel
    if not mixtures:
        raise RefusalError(f"{path} has no experts to share out; leave expert_parallel out.")
    if count > (fewest := min(it.count for it in mixtures.values())):
        raise RefusalError(f"expert_parallel is {count}, but a layer of {path} has only {fewest} experts.")
    if options.quantize is None and stored_bits(open_tensors(path), spec) is not None:
        raise RefusalError(
            f"{path} is quantised, which expert_parallel cannot keep; use quantize none, which widens it to dtype."
        )
    if options.expert_table is None:
        table = RouteTable.plain(spec, count)
    else:
        table = read_table(Path(options.expert_table))
        table.check(spec, count, str(options.expert_table))
    if not options.threads:
        torch.set_num_threads(max(1, torch.get_num_threads() // count))
    return spread_model(path, table, options.dtype, options.max_model_len)


def release(model: object) -> None:
    """End the processes that hold parts of a model, where there are some."""
    if isinstance(model, Decoder) and model.spread is not None:
        if isinstance(model, LayeredDecoder):
            write_counts(model.group)
        model.spread.close()
