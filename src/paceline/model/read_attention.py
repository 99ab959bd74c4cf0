"""Mixers whose keys and values are not the model's (attending.py), from a config that transformers parsed."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from paceline.core.errors import CheckpointError
from paceline.model.checks import whole
from paceline.model.family import Family
from paceline.model.rope import rope
from paceline.model.spec import Attention, Dense, Experts, Latent

LATENT_SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
MAX_LATENT_SIZE = 1 << 16
MAX_CHUNK = 1 << 40
STRETCH = "llama_4_scaling_beta"
"""The rotation's parameter of `Family.stretched`."""
CHUNKED = "chunked_attention"
"""Type of layers that attend within chunks of a text."""
VARIED_FIELDS = ("head_dim", "num_key_value_heads")
"""What a layer of Gemma 4 may have otherwise than the model."""


def latent(config: Any, family: Family, trained_len: int, max_len: int) -> Latent:
    """The mixer of all layers. Raises CheckpointError."""
    for name in LATENT_SIZES:
        whole(name, getattr(config, name), 1, MAX_LATENT_SIZE)
    if config.q_lora_rank is not None:
        whole("q_lora_rank", config.q_lora_rank, 1, MAX_LATENT_SIZE)
    heads, groups, params = config.num_attention_heads, config.num_key_value_heads, config.rope_parameters
    if groups != heads:
        raise CheckpointError(
            f"config.json: num_key_value_heads is {groups}, but heads that are made of one latent vector are as many "
            f"as num_attention_heads, {heads}."
        )
    own = config.qk_rope_head_dim / (config.qk_nope_head_dim + config.qk_rope_head_dim)
    if params.get("partial_rotary_factor", 1.0) not in (1.0, own):
        raise CheckpointError(
            f"{config.model_type} with a partial_rotary_factor is not served: qk_rope_head_dim says what is rotated."
        )
    sides = family.interleaved
    given = {name: it for name, it in params.items() if name not in (STRETCH, "partial_rotary_factor")}
    return Latent(
        rope(given, config.qk_rope_head_dim, trained_len, max_len),
        config.kv_lora_rank,
        config.q_lora_rank,
        config.qk_nope_head_dim,
        config.v_head_dim,
        interleaved=bool(getattr(config, sides) if isinstance(sides, str) else sides),
    )


def unchunked(config: Any, chunk: Any, trained_len: int, max_len: int | None) -> int:
    """The longest text that is one chunk, and whose queries are as they are. Raises CheckpointError for a longer one
    that is asked for."""
    most = trained_len
    if CHUNKED in config.layer_types:
        most = min(most, whole("attention_chunk_size", chunk, 1, MAX_CHUNK))
    if config.attn_temperature_tuning and config.attn_scale and not all(config.no_rope_layers):
        most = min(most, whole("floor_scale", config.floor_scale, 2, MAX_CHUNK) - 1)
    if max_len is not None and max_len > most:
        raise CheckpointError(
            f"max_len {max_len} is beyond {most}: from there on {config.model_type} attends within chunks of a text "
            "and multiplies queries by a factor of their position, which is not served; use a max_len up to that."
        )
    return max_len or most


def latent_scale(config: Any) -> float:
    """The factor of scores, which grows where a rotation is stretched (YaRN)."""
    params = config.rope_parameters
    scale = 1 / math.sqrt(config.qk_nope_head_dim + config.qk_rope_head_dim)
    every = params.get("mscale_all_dim", 0)
    if params.get("rope_type", "default") == "default" or not every or params["factor"] <= 1:
        return scale
    return float(scale * (0.1 * every * math.log(params["factor"]) + 1.0) ** 2)


def by_layer(config: Any) -> SimpleNamespace:
    """A config whose layers differ, with what differs as lists: transformers warns of each look at the model's own."""
    if isinstance(config, SimpleNamespace):
        return config
    given = config.to_dict().get("per_layer_config") or {}
    every = [config.per_layer_config[index] for index in range(config.num_hidden_layers)]
    own = {"own_head_dims": [it.head_dim for it in every], "own_kv_heads": [it.num_key_value_heads for it in every]}
    try:
        modes = config.kv_sharing_modes
    except ValueError:
        raise CheckpointError(
            f"num_kv_shared_layers {config.num_kv_shared_layers} leaves no layer with keys of its own for each kind of "
            "layers; use a checkpoint that has them."
        ) from None
    more = {"model_type": config.model_type, "kv_sharing_modes": modes, "given_by_layer": given}
    return SimpleNamespace(**{**vars(config), **more, **own})


def varied(config: Any, trained_len: int, max_len: int) -> list[Attention]:
    """The mixers of all layers, some of which read the keys and values of the last one of their kind that has its
    own."""
    made, last = list[Attention](), dict[str, int]()
    for index, given in config.given_by_layer.items():
        if unknown := {*given} - {*VARIED_FIELDS}:
            raise CheckpointError(
                f"config.json: per_layer_config gives layer {index} its own {', '.join(sorted(unknown))}; served are "
                f"{' and '.join(VARIED_FIELDS)}."
            )
    for index, (kind, mode) in enumerate(zip(config.layer_types, config.kv_sharing_modes)):
        if kind not in ("sliding_attention", "full_attention"):
            raise CheckpointError(f"layers of type {kind} are not supported.")
        slides, width, groups = kind == "sliding_attention", config.own_head_dims[index], config.own_kv_heads[index]
        if min(width, groups) < 1 or width % 2 or config.num_attention_heads % groups:
            raise CheckpointError(
                f"config.json: {groups} heads of keys of {width} numbers do not fit {config.num_attention_heads} heads."
            )
        params = config.rope_parameters[kind]
        if params.get("rope_type", "default") == "default" and params.get("partial_rotary_factor", 1.0) != 1.0:
            raise CheckpointError(
                f"config.json: rope_parameters of {kind} have a partial_rotary_factor, which is read one way by some "
                "programs and not at all by others; leave it out, or give it rope_type proportional."
            )
        form = Attention(
            rope(params, width, trained_len, max_len),
            config.sliding_window if slides else None,
            groups,
            width,
            same=bool(config.attention_k_eq_v) and not slides,
        )
        if mode == "reuse":
            if kind not in last:
                raise CheckpointError("config.json: num_kv_shared_layers leaves no layer with keys of its own.")
            form = replace(form, shares=last[kind])
        else:
            last[kind] = index
        made.append(form)
    return made


def widened_feed(config: Any, feed: Dense | Experts | None, mixer: Attention) -> Dense | Experts | None:
    """A dense part twice as wide, where a layer without keys of its own has such a one."""
    if mixer.shares is None or not config.use_double_wide_mlp:
        return feed
    if isinstance(feed, Dense):
        return Dense(2 * feed.width)
    return None if feed is None else replace(feed, beside=2 * feed.beside)
