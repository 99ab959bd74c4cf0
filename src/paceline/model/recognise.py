"""The family of a config.json, also of one that reads pictures or hears."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from paceline.core.errors import CheckpointError
from paceline.model.families import FAMILIES
from paceline.model.family import Family
from paceline.model.quantised import scheme_of

JUDGES = ("ForSequenceClassification", "ForTokenClassification", "RewardModel")
"""Ends of the names of architectures whose head is no language model's."""


WITH_PICTURES = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "gemma4_unified": "gemma4_unified_text",
    "glm4v": "glm4v_text",
    "glm46v": "glm4v_text",
    "exaone4_5": "exaone4",
    "kimi_k25": "deepseek_v3",
    "lfm2_vl": "lfm2",
    **dict.fromkeys(("llava", "llava_next", "smolvlm", "idefics3", "voxtral"), "llama"),
    **dict.fromkeys(("llava_onevision", "internvl"), "qwen2"),
}
"""Model types of which the text's part is served, and its type where it is not said: pictures and sound are refused."""
HEADS_APART = ("llava", "llava_next", "smolvlm", "idefics3", "voxtral", "llava_onevision", "internvl", "lfm2_vl")
"""Model types with a head outside of the text's class: programs differ on whether the text's scale or cap of logits
applies."""
TIED_BY_EITHER = ("llava", "llava_onevision", "qwen2_vl", "qwen2_5_vl", "glm4v")
"""Model types whose head is tied if their config or that of the text says so, as in transformers; of others the outer
one decides, where it says anything."""
TEXT_BESIDE_TOWER = ("qwen2_vl", "qwen2_5_vl")
"""Model types whose text may be described next to the tower, without a `text_config`."""
SAME_MODEL = {"kimi_k2": "deepseek_v3", "exaone4_5_text": "exaone4"}
"""Model types that are another one's under a name of their own."""
AHEAD_LISTED = ("exaone4_5", "exaone4_5_text")
"""Model types that may bring layers for further tokens, `mtp.*`, which are left out; `layer_types` may list them."""
NEAREST = {
    **dict.fromkeys(("gemma3n", "gemma3n_text"), "gemma4_text"),
    **dict.fromkeys(("dbrx", "jetmoe", "grok", "arctic"), "mixtral"),
    "phi4_multimodal": "phi3",
    **dict.fromkeys(("aya_vision", "cohere2_vision"), "cohere2"),
    **dict.fromkeys(
        ("phi", "gpt2", "gpt_neo", "gpt_neox", "gpt_bigcode", "codegen", "gptj", "bloom", "mpt", "opt"), "starcoder2"
    ),
    **dict.fromkeys(("baichuan", "falcon", "qwen", "olmo", "mllama", "minicpm"), "llama"),
    **dict.fromkeys(("internlm2", "internvl_chat"), "internlm3"),
    **dict.fromkeys(("minimax", "minimax_text_01", "minimax_m1", "minimax_m3_vl_text"), "minimax_m2"),
    **dict.fromkeys(("deepseek_v32", "deepseek_v4", "longcat_flash", "minicpm3"), "deepseek_v3"),
    **dict.fromkeys(("kimi_linear", "qwen4_exp", "olmo_hybrid"), "qwen3_next"),
    **dict.fromkeys(("glm_moe_dsa", "glm4v_moe"), "glm4_moe"),
    **dict.fromkeys(("jamba", "zamba", "zamba2", "nemotron_nas"), "nemotron_h"),
    **dict.fromkeys(("laguna", "mimo_v2_flash"), "afmoe"),
    **dict.fromkeys(("axk1", "axk2"), "deepseek_v3"),
    "bailing_hybrid": "qwen3_next",
    **dict.fromkeys(("bitnet", "diffllama", "nanochat", "persimmon"), "llama"),
    **dict.fromkeys(("aria", "aria_text"), "mixtral"),
    **dict.fromkeys(("paligemma", "t5gemma2", "recurrent_gemma", "diffusion_gemma"), "gemma2"),
    "paddleocr_vl": "ernie4_5",
    **dict.fromkeys(("lighton_ocr", "janus", "molmo2", "ovis2"), "qwen3"),
    **dict.fromkeys(("mamba", "falcon_mamba", "rwkv", "xlstm"), "mamba2"),
}
"""The nearest family that is served, of model types whose name is nearer to another's."""
COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Keys with how many experts a mixture has."""
TIE, LFM2_TIE = "tie_word_embeddings", "tie_embedding"
"""Key that says that the head is the embedding, and LFM2's older name of it."""
FROM_OUTSIDE = (TIE, "eos_token_id", "quantization_config")
"""Keys next to `text_config` that apply to the text."""


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the text's model in that of one that reads pictures, too, or of one under another name; else the
    config itself."""
    outer, inner = config.get("model_type"), config.get("text_config")
    if not isinstance(outer, str):
        return config
    if (same := SAME_MODEL.get(outer)) is not None:
        return without_ahead(outer, {**config, "model_type": same}, config)
    if outer in TEXT_BESIDE_TOWER and inner is None:
        return {**{key: it for key, it in config.items() if key != "vision_config"}, "model_type": WITH_PICTURES[outer]}
    if outer not in WITH_PICTURES or not isinstance(inner, Mapping):
        return config
    kind = inner.get("model_type") or WITH_PICTURES[outer]
    kind = SAME_MODEL.get(str(kind), kind)
    return without_ahead(outer, {**inner, **from_outside(config), "model_type": kind}, config)


def from_outside(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config says of its text next to `text_config`."""
    found = {key: config[key] for key in FROM_OUTSIDE if config.get(key) is not None}
    if config["model_type"] in TIED_BY_EITHER and found.get(TIE) is False:
        del found[TIE]
    if config["model_type"] == "lfm2_vl" and (tied := config.get(LFM2_TIE, found.get(TIE))) is not None:
        found |= {TIE: tied, LFM2_TIE: tied}
    return found


def without_ahead(outer: str, text: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The text's config without what `layer_types` says of layers for further tokens."""
    kinds, layers, key = text.get("layer_types"), text.get("num_hidden_layers"), "num_nextn_predict_layers"
    more = text.get(key, config.get(key, 1))
    if outer in AHEAD_LISTED and isinstance(kinds, list) and isinstance(layers, int) and isinstance(more, int):
        return {**text, "layer_types": kinds[:layers]} if 0 < len(kinds) - layers <= more else text
    return text


def stem(kind: str) -> str:
    """The letters that a model type begins with: those of a line of models have the same."""
    return re.split("[^a-z]", kind, maxsplit=1)[0]


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a raw config.json; CheckpointError names what is refused and why."""
    kind = config.get("model_type")
    scheme_of(config)
    for name in map(str, config.get("architectures") or ()):
        if name.endswith(JUDGES):
            raise CheckpointError(
                f"{name} has a head that judges texts (a classifier, a cross-encoder), which is not computed; use a "
                "checkpoint that generates text."
            )
    if kind in FAMILIES:
        return FAMILIES[kind]
    if kind in WITH_PICTURES:
        raise CheckpointError(
            f"config.json of {kind}, which reads pictures or hears, has no text_config, whose model is the part that "
            "is served; download it again, or use a checkpoint of text alone."
        )
    named = NEAREST.get(str(kind))
    near = [named] if named else get_close_matches(str(kind), [it for it in FAMILIES if stem(it) == stem(str(kind))], 1)
    nearest = f"the nearest that is served is {near[0]}; " if near else ""
    supported = f"{nearest}supported model types are {', '.join(FAMILIES)}"
    if "moe" in str(kind) or any(config.get(f) not in (None, 0, 1) for f in COUNTS):
        raise CheckpointError(f"{kind} is a mixture of experts (MoE) of a kind that is not served; {supported}.")
    if "auto_map" in config:
        raise CheckpointError(f"{kind} needs remote code, which is never run; {supported}.")
    name = ", ".join(config.get("architectures") or ["an unnamed architecture"])
    raise CheckpointError(f"{name} (model type {kind}) is not supported; {supported}.")
