"""Keys of a quantised checkpoint's settings: those that change what its weights mean, with the values that are served,
and those that say nothing of them."""

import logging
from collections.abc import Mapping
from typing import Any

from paceline.core.errors import CheckpointError

log = logging.getLogger("paceline")
WORDS_OF_32_BITS = (None, "int32", "torch.int32")
"""`pack_dtype`: words that hold 32 bits."""
ROW_ORDER = (None, "gemm")
"""AWQ's words along the outputs."""
SAYS_NOTHING: tuple[Any, ...] = (None, False, [], {}, "")
SERVED_SETTINGS: dict[str, dict[str, tuple[Any, ...]]] = {
    "gptq": {
        "pack_dtype": WORDS_OF_32_BITS,
        "is_marlin_format": SAYS_NOTHING,
        "rotation": SAYS_NOTHING,
        "adapter": SAYS_NOTHING,
        "mock_quantization": SAYS_NOTHING,
    },
    "awq": {
        "pack_dtype": WORDS_OF_32_BITS,
        "format": ROW_ORDER,
        "checkpoint_format": ROW_ORDER,
        "is_marlin_format": SAYS_NOTHING,
        "rotation": SAYS_NOTHING,
        "adapter": SAYS_NOTHING,
    },
    "fp8": {
        "fmt": (None, "e4m3", "e5m2", "e4m3fn", "float8_e4m3fn", "float8_e5m2"),
        "scale_fmt": (None, "float", "float32", "fp32", "ue8m0"),
        "expert_dtype": (None, "fp8"),
    },
    "modelopt": {
        "has_zero_point": SAYS_NOTHING,
        "pre_quant_scale": SAYS_NOTHING,
        "swap_weight_nibbles": SAYS_NOTHING,
        "checkpoint_weight_scale_layout": (None, "linear"),
        "scale_dtype": SAYS_NOTHING,
        "quantized_layers": SAYS_NOTHING,
    },
    "compressed-tensors": {"quantization_status": (None, "compressed", "frozen")},
}
"""Keys that say how weights are stored, with the values that are served, by method."""
SILENT_SETTINGS = frozenset(
    ("quant_method", "bits", "group_size", "desc_act", "sym", "checkpoint_format", "format", "dynamic", "version",
     "weight_block_size", "config_groups", "transform_config", "sparsity_config", "quant_algo",
     "damp_percent", "damp_auto_increment", "true_sequential", "static_groups", "act_group_aware", "meta", "lm_head",
     "dataset", "tokenizer", "batch_size", "model_name_or_path", "model_file_base_name", "backend", "use_exllama",
     "exllama_config", "max_input_length", "model_seqlen", "cache_block_outputs", "pad_token_id", "use_cuda_fp16",
     "disable_exllama", "block_name_to_quantize", "module_name_preceding_first_block", "modules_in_block_to_quantize",
     "quantizer", "hyb_act", "mse", "fail_safe", "failsafe", "offload_to_disk",
     "zero_point",
     "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "modules_to_not_convert", "modules_to_convert", "w_bit",
     "q_group_size", "activation_scheme", "activation_scale_ub", "ignored_layers", "ignore", "exclude_modules",
     "kv_cache_scheme", "kv_cache_quant_algo", "global_compression_ratio", "quantization_status", "run_compressed",
     "use_optimized_inference", "dequantize", "producer", "quant_library", "weights", "input_activations",
     "output_activations", "targets", "quant_type", "smoothquant_val")
)  # fmt: skip
"""Keys that are read, that name layers (each is known by its tensors), or that say how a checkpoint was made and what
other programs run it with."""


def check_keys(settings: Mapping[str, Any]) -> None:
    """Raise CheckpointError for a key whose value changes what weights mean and is not served; one that is not known is
    warned about."""
    method = {"fbgemm_fp8": "fp8"}.get(str(settings.get("quant_method")), str(settings.get("quant_method")))
    known = SERVED_SETTINGS.get(method, {})
    for key, given in settings.items():
        value = given.lower() if isinstance(given, str) else given
        if key in known and not any(value is it or (type(value) is type(it) and value == it) for it in known[key]):
            words = [str(it) for it in known[key] if it is not None]
            served = "a checkpoint without it" if known[key] is SAYS_NOTHING else " or ".join(words)
            raise CheckpointError(
                f"config.json: quantization_config.{key} is {str(given)[:40]}, which changes what the weights mean and "
                f"is not served; {served} is."
            )
    unknown = sorted(key for key, it in settings.items() if key not in known and key not in SILENT_SETTINGS and it)
    if unknown:
        log.warning(
            "config.json: quantization_config has %s, which is not read; if it says how weights are stored, the text "
            "will be wrong.",
            ", ".join(unknown)[:120],
        )
