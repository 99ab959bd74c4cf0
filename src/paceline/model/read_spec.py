"""A model's spec from a config that transformers parsed, by the data of its family."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paceline.core.errors import CheckpointError
from paceline.model.checks import SIZES, UNBOUNDED_LEN, attends_somewhere, positive, whole
from paceline.model.families import FAMILIES
from paceline.model.family import Family, MambaFields, Mixed
from paceline.model.read_attention import (
    CHUNKED,
    STRETCH,
    by_layer,
    latent,
    latent_scale,
    unchunked,
    varied,
    widened_feed,
)
from paceline.model.rope import rope, without_alpha, without_scales
from paceline.model.spec import (
    Activation,
    Attention,
    Both,
    Delta,
    Dense,
    Experts,
    Layer,
    Mamba,
    Mixer,
    ModelSpec,
    Multipliers,
    Rope,
    ShortConv,
)

ACTIVATION_NAMES: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu2": "relu2",
    "xielu": "xielu",
    "swiglu_clamped": "swiglu_clamped",
}
LEAST_SHARE = 1e-6
"""Sum of experts' shares that no token is known to stay below."""


def read_spec(config: Any, max_len: int | None = None) -> ModelSpec:
    """From a config that transformers parsed; `max_len` shortens the context (see rope.longrope)."""
    family = FAMILIES[config.model_type]
    if family.varied:
        config = by_layer(config)
    if getattr(config, "use_bidirectional_attention", None) not in (None, False, "vision"):
        raise CheckpointError(
            f"{config.model_type} with use_bidirectional_attention is an encoder; use a checkpoint that generates text."
        )

    for field in family.refused:
        if getattr(config, field, None):
            raise CheckpointError(
                f"{config.model_type} with {field} is not served; use a checkpoint without it, or another model."
            )

    for field, served in (family.only or {}).items():
        if getattr(config, field, served) not in (served, None):
            raise CheckpointError(
                f"{config.model_type} with {field} {str(getattr(config, field))[:40]} is not served; with {served} it "
                "is."
            )

    def decide(field: bool | str) -> Any:
        return getattr(config, field, None) if isinstance(field, str) and field else field

    def factor(field: str) -> float:
        found = float(getattr(config, field)) if field else 1.0
        if family.divided and field == family.logit_scale and not found:
            raise CheckpointError(f"config.json: {field} is 0, but logits are divided by it; give it another value.")
        return found

    trained_len = int(getattr(config, "max_position_embeddings", UNBOUNDED_LEN))
    if family.stretched and config.rope_parameters.get(STRETCH):
        max_len = unstretched(config, trained_len, max_len)
    if family.chunked:
        max_len = unchunked(config, getattr(config, family.chunked), trained_len, max_len)
    heads, kv_heads, head_dim = (1, 1, 1) if not attends_somewhere(config) else heads_of(config)
    activation = getattr(config, family.activation, family.activation)
    if activation not in ACTIVATION_NAMES:
        raise CheckpointError(f"activation {activation!r} is not supported; supported: {', '.join(ACTIVATION_NAMES)}.")
    if activation == "xielu" and family.experts is not None:
        raise CheckpointError(f"{config.model_type} with {activation} is not served: it is learned for each layer.")
    clamps = activation == "swiglu_clamped"
    return ModelSpec(
        family=config.model_type,
        layers=read_layers(config, family, head_dim, trained_len, max_len or trained_len),
        vocab=config.vocab_size,
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_len=max_len or trained_len,
        activation=ACTIVATION_NAMES[activation],
        norm_eps=getattr(config, family.norm_eps),
        norm_offset=family.norm_offset,
        tied=bool(getattr(config, "tie_word_embeddings", False)),  # a part's config may lack it: its whole's default
        early_exit=bool(getattr(config, "early_exit", False)),
        sinks=family.sinks,
        gated_attention=bool(decide(family.gated_attention)),
        head_gates=family.head_gates,
        multipliers=multipliers(config) if family.multiplied else None,
        swiglu=(float(config.swiglu_alpha), float(config.swiglu_limit)) if clamps else (1.0, 0.0),
        qkv_bias=bool(decide(family.qkv_bias)),
        out_bias=bool(decide(family.out_bias)),
        mlp_bias=bool(decide(family.mlp_bias)),
        qk_norm=bool(decide(family.qk_norm)),
        post_norms=bool(family.names.attention_post_norm),
        attention_scale=score_scale(config, family, head_dim),
        attention_softcap=decide(family.attention_softcap) or None,
        logit_softcap=decide(family.logit_softcap) or None,
        embedding_scale=config.hidden_size**0.5 if decide(family.embedding_scaled) else factor(family.embedding_scale),
        eos=eos_ids(getattr(config, "eos_token_id", None)),
        pre_norms=bool(family.names.attention_norm),
        whole_norm=family.whole_norm,
        layer_norm=family.layer_norm,
        norm_bias=family.norm_bias,
        norm_turned=family.norm_turned,
        norm_unweighted=family.norm_unweighted,
        parallel=bool(decide(family.parallel)),
        head_bias=bool(decide(family.head_bias)),
        gated=not family.ungated,
        residual_scale=factor(family.residual_scale),
        logit_scale=1 / factor(family.logit_scale) if family.divided else factor(family.logit_scale),
        value_norm=family.varied,
        layer_scale=family.varied,
        token_width=int(getattr(config, "hidden_size_per_layer_input", 0) or 0) if family.varied else 0,
        token_vocab=int(getattr(config, "vocab_size_per_layer_input", 0) or 0) if family.varied else 0,
    )


def score_scale(config: Any, family: Family, head_dim: int) -> float:
    """The factor of scores."""
    if family.score_scale:
        return float(getattr(config, family.score_scale))
    if family.varied:
        return 1.0  # queries and keys are normed
    if family.latent:
        return latent_scale(config)
    named = getattr(config, family.attention_scale, None) if family.attention_scale else None
    return 1 / math.sqrt(named or head_dim)


def heads_of(config: Any) -> tuple[int, int, int]:
    """Heads of queries, of keys and values, and their numbers."""
    heads = config.num_attention_heads
    return heads, config.num_key_value_heads, getattr(config, "head_dim", None) or config.hidden_size // heads


def read_layers(config: Any, family: Family, head_dim: int, trained_len: int, max_len: int) -> tuple[Layer, ...]:
    window = getattr(config, family.window) if family.window else None
    everywhere = "sliding_attention" if window else "full_attention"
    kinds = config.layer_types if family.layer_types else [everywhere] * config.num_hidden_layers
    if family.chunked:
        kinds = ["full_attention" if it == CHUNKED else it for it in kinds]
    params = getattr(config, "rope_parameters", None) or {}

    def attention(kind: str, theta: float | None = None) -> Attention:
        if family.turned is not None and getattr(config, family.turned or "-", None) != "rope":
            return Attention(Rope((0.0,) * (head_dim // 2)))
        try:
            given = {
                name: it for name, it in params.get(kind, params).items() if not family.stretched or name != STRETCH
            }
            if family.by_alpha:
                given = without_alpha(given, head_dim)
            if family.by_scale:
                given = without_scales(given, max_len)
            if theta is not None:
                given["rope_theta"] = theta
            turn = rope(given, head_dim, trained_len, max_len)
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"config.json: rope_parameters are incomplete ({error}).") from None
        return Attention(turn, window if kind == "sliding_attention" else None)

    if family.latent:
        form = latent(config, family, trained_len, max_len)
        return tuple(Layer(form, feed_forward(config, family, index, kinds)) for index in range(len(kinds)))
    if family.varied:
        own = varied(config, trained_len, max_len)
        feeds = (feed_forward(config, family, index, kinds) for index in range(len(kinds)))
        return tuple(Layer(it, widened_feed(config, feed, it)) for it, feed in zip(own, feeds))

    def mixer(kind: str) -> Mixer | None:
        if kind == "conv" and family.conv is not None:
            length, bias = (getattr(config, name) for name in family.conv)
            return ShortConv(int(length), bool(bias))
        if kind == "linear_attention" and family.delta:
            return delta(config, family)
        if kind == "linear_attention" and family.mamba is not None:
            return mamba(config, family.mamba)
        if kind == "hybrid" and family.mamba is not None:
            return Both(attention(kind), mamba(config, family.mamba))
        if kind in FEED_TYPES and family.mamba is not None:
            return None
        if kind not in ("sliding_attention", "full_attention"):
            raise CheckpointError(f"layers of type {kind} are not supported.")
        return attention(kind)

    made = {kind: mixer(kind) for kind in sorted(set(kinds))}
    mixers = [made[kind] for kind in kinds]
    if family.by_theta:
        thetas = by_theta(getattr(config, family.by_theta), len(kinds))
        mixers = [attention(kind, theta or None) for kind, theta in zip(kinds, thetas)]
    turned = [it if turns else still(it) for it, turns in zip(mixers, rotated(config, family, kinds))]
    return tuple(Layer(it, feed_forward(config, family, index, kinds)) for index, it in enumerate(turned))


FEED_TYPES = ("mlp", "moe")
"""Types of layers that are a feed-forward part alone; where there are such, the others have none."""


def mamba(config: Any, fields: MambaFields) -> Mamba:
    heads, head_dim, groups, state, length = (
        int(getattr(config, name))
        for name in (fields.heads, fields.head_dim, fields.groups, fields.state, fields.length)
    )
    if min(heads, head_dim, groups, state) < 1 or length < 2 or heads % groups:
        raise CheckpointError(
            f"config.json: {heads} heads of {head_dim} in {groups} groups, {state} numbers and a convolution of "
            f"{length} are no Mamba-2 mixer."
        )
    if getattr(config, fields.activation) not in ("silu", "swish"):
        raise CheckpointError(f"{config.model_type} with {fields.activation} other than silu is not served.")
    low, high = getattr(config, "time_step_limit", None) or (0.0, float("inf"))
    if fields.least:  # as transformers has it, which does not read the limits
        if (float(low), float(high)) != (0.0, math.inf):
            raise CheckpointError(
                f"config.json: time_step_limit is [{low}, {high}], which {config.model_type} is not served with; [0, "
                "Infinity] is."
            )
        low, high = getattr(config, fields.least), float("inf")
    norm = bool(getattr(config, fields.norm)) if fields.norm else True
    first = bool(getattr(config, fields.norm_first)) if fields.norm_first else False
    return Mamba(
        heads,
        head_dim,
        groups,
        state,
        length,
        conv_bias=bool(getattr(config, fields.conv_bias)),
        in_bias=bool(getattr(config, fields.in_bias)),
        out_bias=bool(getattr(config, fields.out_bias)),
        limits=(float(low), float(high)),
        norm="" if not norm else "norm_first" if first else "gate_first",
    )


def delta(config: Any, family: Family) -> Delta:
    heads, keys = int(config.linear_num_value_heads), int(config.linear_num_key_heads)
    if min(heads, keys) < 1 or heads % keys or config.linear_conv_kernel_dim < 2:
        raise CheckpointError(f"config.json: {heads} value heads over {keys} key heads are no gated delta rule.")
    for name in ("hidden_act", "output_gate_type"):
        if (getattr(config, name, None) or "silu") not in ("silu", "swish"):
            raise CheckpointError(f"{config.model_type} with {name} other than silu is not served.")
    return Delta(
        heads,
        int(config.linear_value_head_dim),
        keys,
        int(config.linear_key_head_dim),
        int(config.linear_conv_kernel_dim),
        fused=family.delta == "fused",
    )


def multipliers(config: Any) -> Multipliers:
    gate, down = (float(it) for it in config.mlp_multipliers)
    scan = tuple(float(it) for it in config.ssm_multipliers)
    if len(scan) != 5:
        raise CheckpointError(f"config.json: ssm_multipliers has {len(scan)} numbers, but it must have 5.")
    return Multipliers(
        float(config.attention_in_multiplier),
        float(config.attention_out_multiplier),
        float(config.key_multiplier),
        float(config.ssm_in_multiplier),
        float(config.ssm_out_multiplier),
        scan,
        gate,
        down,
    )


def feed_forward(config: Any, family: Family, index: int, kinds: Sequence[str]) -> Dense | Experts | None:
    form = family.experts
    if family.feedless or (family.apart and kinds[index] not in FEED_TYPES):
        return None
    if form is not None and form.enabled:
        width = config.intermediate_size
        return replace(mixture(config, form), beside=width) if getattr(config, form.enabled) else Dense(width)
    if form is not None and form.kinds and getattr(config, form.kinds)[index] != "sparse":
        return Dense(dense_width(config, form))
    if form is not None and form.listed and index not in getattr(config, form.listed):
        return Dense(dense_width(config, form))
    if form is not None and form.optional and not getattr(config, form.count):
        return Dense(int(getattr(config, form.optional)))
    if family.apart and kinds[index] == "mlp":
        return Dense(config.intermediate_size)
    if form is None:
        return Dense(rounded(config) if family.rounded else config.intermediate_size)
    dense = form.dense and index in (getattr(config, form.dense) or ())
    outside = bool(form.first) and index < getattr(config, form.first)
    outside |= bool(form.last) and index > getattr(config, form.last)
    if dense or outside or (form.every and (index + 1) % getattr(config, form.every)):
        return Dense(config.intermediate_size)
    return mixture(config, form)


def refuse_other_routers(config: Any, form: Mixed) -> None:
    """CheckpointError for a router that its authors' code knows and that is not computed: transformers reads none of
    these keys where the family has no choice."""
    wanted: dict[str, tuple[Any, ...]] = {
        "scoring_func": (form.score, "noaux_tc"),
        "score_function": (form.score,),
        "norm_topk_prob": (True,) if form.normed is True else (),
        "routed_scaling_factor": () if form.scale else (1.0,),
    }
    for key, served in wanted.items():
        found = getattr(config, key, None)
        if served and found is not None and found not in served:
            raise CheckpointError(
                f"config.json: {key} is {str(found)[:40]!r}, a router that {config.model_type} is not served with; "
                f"{served[0]!r} is."
            )


def dense_width(config: Any, form: Mixed) -> int:
    """Inner numbers of a layer of a mixture that is dense."""
    found = getattr(config, form.dense_width)
    return config.intermediate_size if found is None else whole(form.dense_width, found, 1, SIZES["intermediate_size"])


def choice(config: Any, field: str, values: tuple[str, ...]) -> Any:
    """The value of a field that is one of these; CheckpointError for another."""
    found = getattr(config, field)
    if found not in values:
        raise CheckpointError(
            f"config.json: {field} is {str(found)[:40]!r}, which {config.model_type} is not served with; served are "
            f"{' and '.join(values)}."
        )
    return found


def mixture(config: Any, form: Mixed) -> Experts:
    if form.scored:
        score = choice(config, form.scored, ("softmax", "sigmoid"))
        form = replace(form, score=score, normed=True if score == "softmax" else form.normed)
    refuse_other_routers(config, form)
    count, active, width = (int(getattr(config, name)) for name in (form.count, form.active, form.width))
    if not 1 <= active <= count:
        raise CheckpointError(f"config.json: {form.active} is {active}, but it must be 1 to {form.count}, {count}.")
    if form.least and getattr(config, form.least) > LEAST_SHARE:
        raise CheckpointError(
            f"config.json: {form.least} is {getattr(config, form.least)}, which would change the weights of experts; "
            f"served are values up to {LEAST_SHARE}."
        )
    groups, used = (1, 1)
    if form.groups is not None and (form.methods is None or by_groups(config, form.methods)):
        groups, used = (int(getattr(config, name)) for name in form.groups)
    if groups < 1 or count % groups or not 1 <= used <= groups or active > count // groups * used:
        raise CheckpointError(
            f"config.json: {count} experts in {groups} groups, {used} of them active, do not give {active} experts to "
            "a token."
        )

    def decide(field: bool | str) -> bool:
        return bool(getattr(config, field) if isinstance(field, str) else field)

    shared = int(getattr(config, form.shared)) if form.shared else 0
    if form.shared_count:
        shared = width * int(getattr(config, form.shared_count) or 0)
    half = 0.5 if form.joined and shared and choice(config, form.joined, ("sum", "average")) == "average" else 1.0
    return Experts(
        count,
        active,
        width,
        decide(form.normed),
        shared,
        shared_gated=bool(form.shared) and form.shared_gated,
        score=form.score,
        corrected=decide(form.corrected),
        groups=groups,
        active_groups=used,
        group_best=form.group_best,
        scale=float(getattr(config, form.scale)) if form.scale else half,
        floor=form.floor,
        near=2 * float(getattr(config, form.jitter)) if form.jitter else 0.0,
        router_bias=form.bias,
        weighs_inputs=form.weighs_inputs,
        shared_scale=half,
    )


def by_groups(config: Any, methods: dict[str, bool]) -> bool:
    """Are experts chosen by groups?"""
    if config.topk_method not in methods:
        raise CheckpointError(
            f"config.json: topk_method {config.topk_method!r} is not served; served are {', '.join(methods)}."
        )
    return methods[config.topk_method]


def rounded(config: Any) -> int:
    """The inner numbers of LFM2's feed-forward part: two thirds of those named, in whole multiples."""
    width: int = config.intermediate_size
    if not config.block_auto_adjust_ff_dim:
        return width
    width = int(2 * width / 3)
    if config.block_ffn_dim_multiplier is None:
        return width
    width, unit = int(config.block_ffn_dim_multiplier * width), int(config.block_multiple_of)
    return -(-width // unit) * unit


WINDOWED = ("full_attention", "no window")
"""Values of `Family.unrotated` that are no field of the config."""


def rotated(config: Any, family: Family, kinds: Sequence[str]) -> list[bool]:
    """Flag per layer: True if its queries and keys are rotated."""
    if family.unrotated in WINDOWED:
        windowed = family.unrotated == "no window" or bool(getattr(config, family.window))
        dense = family.rotated_dense and getattr(config, family.rotated_dense) == 1
        feeds = config.mlp_layer_types if dense else kinds
        return [kind == "sliding_attention" or not windowed or feed == "dense" for kind, feed in zip(kinds, feeds)]
    marks = getattr(config, family.unrotated, None) if family.unrotated else None
    return [bool(mark) for mark in marks] if marks else [True] * len(kinds)


def by_theta(value: Any, count: int) -> list[float]:
    """The base of each layer's rotation; 0: it has none."""
    if not isinstance(value, list) or len(value) != count:
        raise CheckpointError(
            f"config.json: the bases of {count} layers' rotations are {str(value)[:60]}, no such list."
        )
    for it in value:
        if it != 0:
            positive("layer_rope_theta", it)
    return value


def still(mixer: Mixer | None) -> Mixer | None:
    """One whose rotation is by nothing: the same arithmetic with cos 1 and sin 0."""
    if not isinstance(mixer, Attention):
        return mixer
    return replace(mixer, rope=Rope((0.0,) * len(mixer.rope.inverse)))


def unstretched(config: Any, trained_len: int, max_len: int | None) -> int:
    """The longest text whose queries are as they are. Raises CheckpointError for a longer one that is asked for."""
    most = min(trained_len, int(config.rope_parameters["original_max_position_embeddings"]))
    if max_len is not None and max_len > most:
        raise CheckpointError(
            f"max_len {max_len} is beyond {most}: from there on {config.model_type} multiplies queries by a factor of "
            f"their position ({STRETCH}), which is not served."
        )
    return max_len or most


def eos_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
