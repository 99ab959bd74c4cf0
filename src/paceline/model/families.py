"""The families that are served: one entry of data each, and the reading of a config by that data.

This is the only file that knows families by name. A new family that is a decoder is one entry here;
if it needs something no other has, that becomes a field of ModelSpec.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from paceline.core.errors import CheckpointError
from paceline.model.quantised import scheme_of
from paceline.model.rope import rope
from paceline.model.spec import (
    Activation,
    Attention,
    Dense,
    Experts,
    Layer,
    Mixer,
    ModelSpec,
    Rope,
    RouterScore,
    ShortConv,
)

ACTIVATION_NAMES: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu2": "relu2",
}


@dataclass(frozen=True, slots=True)
class Names:
    """Where a checkpoint keeps each weight; the names below `layer` are relative to it, without `.weight`. Empty: there
    is none.

    Several names are rows of one fused matrix, in order.
    """

    embedding: str = "model.embed_tokens"
    norm: str = "model.norm"
    head: str = "lm_head"
    layer: str = "model.layers.{}."
    attention_norm: str = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    out: str = "self_attn.o_proj"
    attention_post_norm: str = ""
    ffn_norm: str = "post_attention_layernorm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    ffn_post_norm: str = ""
    router: str = "mlp.gate"
    expert: str = "mlp.experts.{}."
    """Prefix of one expert in a mixture; `expert_gate_up` and `expert_down` are relative to it and to `shared`."""
    expert_gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    expert_down: str = "down_proj"
    shared: str = "mlp.shared_expert."
    shared_gate: str = "mlp.shared_expert_gate"
    correction: str = ""
    """Numbers that are added to the experts' scores where they are chosen, with the name's end."""
    conv: str = "conv.conv"
    """Kernel of a gated short convolution, and below it the projections before and after it."""
    conv_in: str = "conv.in_proj"
    conv_out: str = "conv.out_proj"


@dataclass(frozen=True, slots=True)
class Mixed:
    """The config fields of a mixture of experts; what is no text decides by itself."""

    count: str = "num_experts"
    active: str = "num_experts_per_tok"
    width: str = "moe_intermediate_size"
    normed: bool | str = "norm_topk_prob"
    shared: str = ""
    """With the inner numbers of the expert that all tokens use; none: there is none."""
    shared_count: str = ""
    """With the number of experts that all tokens use, each as wide as the others, computed as one without a gate."""
    every: str = ""
    """Interval of mixture layers, counted from 1; the others, and those of `dense`, are dense."""
    dense: str = ""
    first: str = ""
    """The first layer that may be a mixture, and the last."""
    last: str = ""
    score: RouterScore = "softmax"
    corrected: bool | str = False
    groups: tuple[str, str] | None = None
    """How many groups there are, and how many are active."""
    scale: str = ""
    floor: float = 0.0


@dataclass(frozen=True, slots=True)
class Family:
    """How a family departs from llama. A string names the config field that decides, anything else decides."""

    architecture: str
    names: Names = Names()
    activation: str = "hidden_act"
    """The config field, or the activation itself where there is none."""
    qkv_bias: bool | str = False
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: bool | str = False
    norm_offset: float = 0.0
    embedding_scaled: bool = False
    """Embeddings are multiplied by sqrt(hidden)."""
    attention_scale: str = ""
    """Config field s of the score scale 1/sqrt(s); none: head_dim."""
    attention_softcap: str = ""
    logit_softcap: str = ""
    window: str = ""
    """Config field with the sliding window."""
    layer_types: bool = False
    """Whether `config.layer_types` says which layers slide; else all layers have the window."""
    interleaved: bool = False
    """Pairs of a head that are rotated together lie side by side, not half a head apart."""
    unrotated: str = ""
    """Layers without a rotation: those with a 0 in this list of the config, or `full_attention`: those that do not
    slide, where any do."""
    ungated: bool = False
    """The feed-forward is one matrix, activated, and another."""
    norm_eps: str = "rms_norm_eps"
    layer_norm: bool = False
    norm_bias: bool = False
    whole_norm: bool = False
    parallel: bool = False
    embedding_scale: str = ""
    """Config fields of factors: of the embeddings; of what a layer adds; of the scores; of the logits, which `divided`
    divides by it."""
    residual_scale: str = ""
    score_scale: str = ""
    logit_scale: str = ""
    divided: bool = False
    refused: str = ""
    """Config field that must not be set: a variant that is not served."""
    experts: Mixed | None = None
    conv: tuple[str, str] | None = None
    """Config fields with the length of the convolutions in place of attention where `config.layer_types` says `conv`,
    and whether they have biases."""
    beyond: str = ""
    """Config field with the number of layers behind the last that predict further tokens: they are no part of a pass."""
    stretched: bool = False
    """Queries grow with their position beyond the length of the first training (Llama 4's rule): texts up to it, for
    which that changes nothing, are served."""
    rounded: bool = False
    """The inner numbers of the feed-forward part are made from `intermediate_size` by LFM2's rule."""


GEMMA_NAMES = Names(
    attention_post_norm="post_attention_layernorm",
    ffn_norm="pre_feedforward_layernorm",
    ffn_post_norm="post_feedforward_layernorm",
)
GEMMA2 = Family(
    "Gemma2ForCausalLM",
    names=GEMMA_NAMES,
    activation="hidden_activation",
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    norm_offset=1.0,
    embedding_scaled=True,
    attention_scale="query_pre_attn_scalar",
    attention_softcap="attn_logit_softcapping",
    logit_softcap="final_logit_softcapping",
    window="sliding_window",
    layer_types=True,
)
POST_NAMES = Names(
    attention_norm="",
    attention_post_norm="post_attention_layernorm",
    ffn_norm="",
    ffn_post_norm="post_feedforward_layernorm",
)
OLMO2 = Family(
    "Olmo2ForCausalLM",
    names=POST_NAMES,
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    qk_norm=True,
    whole_norm=True,
)
COHERE = Family(
    "CohereForCausalLM",
    names=Names(ffn_norm=""),
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    interleaved=True,
    norm_eps="layer_norm_eps",
    layer_norm=True,
    parallel=True,
    logit_scale="logit_scale",
    refused="use_qk_norm",
)
LFM2 = Family(
    "Lfm2ForCausalLM",
    names=Names(
        norm="model.embedding_norm",
        attention_norm="operator_norm",
        q_norm="self_attn.q_layernorm",
        k_norm="self_attn.k_layernorm",
        out="self_attn.out_proj",
        ffn_norm="ffn_norm",
        gate_up=("feed_forward.w1", "feed_forward.w3"),
        down="feed_forward.w2",
    ),
    activation="silu",
    qk_norm=True,
    layer_types=True,
    norm_eps="norm_eps",
    conv=("conv_L_cache", "conv_bias"),
    rounded=True,
)
FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaForCausalLM", qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"),
    "mistral": Family("MistralForCausalLM", window="sliding_window"),
    "qwen2": Family("Qwen2ForCausalLM", qkv_bias=True, window="sliding_window", layer_types=True),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        window="sliding_window",
        layer_types=True,
    ),
    "qwen3_vl_text": Family(
        "Qwen3VLForConditionalGeneration", qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        names=Names(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)),
        window="sliding_window",
    ),
    "gemma2": GEMMA2,
    # Gemma 3 replaced the soft-cap of the scores by q/k norms; transformers ignores the field that remains.
    "gemma3_text": replace(GEMMA2, architecture="Gemma3ForCausalLM", qk_norm=True, attention_softcap=""),
    "gemma": Family(
        "GemmaForCausalLM",
        activation="hidden_act",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        norm_offset=1.0,
        embedding_scaled=True,
    ),
    "ministral3": Family("Ministral3ForCausalLM", window="sliding_window", stretched=True),
    "ministral": Family("MinistralForCausalLM", window="sliding_window", layer_types=True),
    "cwm": Family("CwmForCausalLM", mlp_bias="mlp_bias", window="sliding_window", layer_types=True),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        window="sliding_window",
        layer_types=True,
        unrotated="no_rope_layers",
    ),
    "seed_oss": Family(
        "SeedOssForCausalLM", qkv_bias="attention_bias", out_bias="attention_out_bias", mlp_bias="mlp_bias"
    ),
    "ernie4_5": Family(
        "Ernie4_5ForCausalLM", qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", interleaved=True
    ),
    "helium": Family("HeliumForCausalLM", qkv_bias="attention_bias", mlp_bias="mlp_bias", interleaved=True),
    "glm": Family(
        "GlmForCausalLM", names=Names(gate_up=("mlp.gate_up_proj",)), qkv_bias="attention_bias", interleaved=True
    ),
    "glm4": Family(
        "Glm4ForCausalLM",
        names=Names(
            gate_up=("mlp.gate_up_proj",),
            attention_post_norm="post_self_attn_layernorm",
            ffn_post_norm="post_mlp_layernorm",
        ),
        qkv_bias="attention_bias",
        interleaved=True,
    ),
    "granite": Family(
        "GraniteForCausalLM",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        embedding_scale="embedding_multiplier",
        residual_scale="residual_multiplier",
        score_scale="attention_multiplier",
        logit_scale="logits_scaling",
        divided=True,
    ),
    "olmo2": OLMO2,
    "olmo3": replace(OLMO2, architecture="Olmo3ForCausalLM", window="sliding_window", layer_types=True),
    "exaone4": Family(
        "Exaone4ForCausalLM",
        names=POST_NAMES,
        qk_norm=True,
        window="sliding_window",
        layer_types=True,
        unrotated="full_attention",
    ),
    "cohere": COHERE,
    "cohere2": replace(
        COHERE,
        architecture="Cohere2ForCausalLM",
        window="sliding_window",
        layer_types=True,
        unrotated="full_attention",
        refused="",
    ),
    "starcoder2": Family(
        "Starcoder2ForCausalLM",
        names=Names(gate_up=("mlp.c_fc",), down="mlp.c_proj"),
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        window="sliding_window",
        norm_eps="norm_epsilon",
        layer_norm=True,
        norm_bias=True,
        ungated=True,
    ),
    "mixtral": Family(
        "MixtralForCausalLM",
        names=Names(
            router="block_sparse_moe.gate",
            expert="block_sparse_moe.experts.{}.",
            expert_gate_up=("w1", "w3"),
            expert_down="w2",
        ),
        window="sliding_window",
        experts=Mixed(count="num_local_experts", width="intermediate_size", normed=True),
    ),
    "qwen2_moe": Family(
        "Qwen2MoeForCausalLM",
        qkv_bias="qkv_bias",
        window="sliding_window",
        layer_types=True,
        experts=Mixed(shared="shared_expert_intermediate_size", every="decoder_sparse_step", dense="mlp_only_layers"),
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        window="sliding_window",
        experts=Mixed(every="decoder_sparse_step", dense="mlp_only_layers"),
    ),
    "glm4_moe": Family(
        "Glm4MoeForCausalLM",
        names=Names(shared="mlp.shared_experts.", correction="mlp.gate.e_score_correction_bias"),
        qkv_bias="attention_bias",
        qk_norm="use_qk_norm",
        beyond="num_nextn_predict_layers",
        experts=Mixed(
            count="n_routed_experts",
            shared_count="n_shared_experts",
            first="first_k_dense_replace",
            score="sigmoid",
            corrected=True,
            groups=("n_group", "topk_group"),
            scale="routed_scaling_factor",
        ),
    ),
    "ernie4_5_moe": Family(
        "Ernie4_5_MoeForCausalLM",
        names=Names(shared="mlp.shared_experts.", correction="mlp.moe_statics.e_score_correction_bias"),
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        interleaved=True,
        experts=Mixed(
            count="moe_num_experts",
            active="moe_k",
            normed=True,
            shared_count="moe_num_shared_experts",
            every="moe_layer_interval",
            first="moe_layer_start_index",
            last="moe_layer_end_index",
            corrected=True,
        ),
    ),
    "granitemoe": Family(
        "GraniteMoeForCausalLM",
        names=Names(
            router="block_sparse_moe.router.layer",
            expert="block_sparse_moe.",
            expert_gate_up=("input_linear#{}",),
            expert_down="output_linear#{}",
        ),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        embedding_scale="embedding_multiplier",
        residual_scale="residual_multiplier",
        score_scale="attention_multiplier",
        logit_scale="logits_scaling",
        divided=True,
        experts=Mixed(count="num_local_experts", width="intermediate_size", normed=True),
    ),
    "olmoe": Family(
        "OlmoeForCausalLM",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        whole_norm=True,
        refused="clip_qkv",
        experts=Mixed(width="intermediate_size"),
    ),
    "lfm2": LFM2,
    "lfm2_moe": replace(
        LFM2,
        architecture="Lfm2MoeForCausalLM",
        names=replace(
            LFM2.names,
            router="feed_forward.gate",
            expert="feed_forward.experts.{}.",
            expert_gate_up=("w1", "w3"),
            expert_down="w2",
            correction="feed_forward.expert_bias",
        ),
        conv=("conv_L_cache", "conv_bias"),
        rounded=False,
        experts=Mixed(
            first="num_dense_layers",
            score="sigmoid",
            corrected="use_expert_bias",
            scale="routed_scaling_factor",
            floor=1e-6,
        ),
    ),
    "arcee": Family(
        "ArceeForCausalLM",
        names=Names(gate_up=("mlp.up_proj",)),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        ungated=True,
    ),
}


STRETCH = "llama_4_scaling_beta"
"""The rotation's parameter of `Family.stretched`."""
JUDGES = ("ForSequenceClassification", "ForTokenClassification", "RewardModel")
"""Ends of the names of architectures whose head is no language model's."""


WITH_PICTURES = frozenset(("gemma3", "mistral3", "qwen3_vl"))
"""Model types of which the text's part is served: pictures are refused."""
FROM_OUTSIDE = ("tie_word_embeddings", "eos_token_id", "quantization_config")
"""Keys that stand beside `text_config` and go for the text."""


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the text's model in that of one that reads pictures, too; else the config itself."""
    inner = config.get("text_config")
    if config.get("model_type") not in WITH_PICTURES or not isinstance(inner, Mapping):
        return config
    kind = inner.get("model_type") or {"gemma3": "gemma3_text", "qwen3_vl": "qwen3_vl_text"}.get(
        config["model_type"], "mistral"
    )
    return {**inner, **{key: config[key] for key in FROM_OUTSIDE if config.get(key) is not None}, "model_type": kind}


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
    near = get_close_matches(str(kind), FAMILIES, 1, 0.5)
    nearest = f"the nearest that is served is {near[0]}; " if near else ""
    supported = f"{nearest}supported model types are {', '.join(FAMILIES)}"
    if "moe" in str(kind) or any(config.get(f) for f in ("num_local_experts", "num_experts", "n_routed_experts")):
        raise CheckpointError(f"{kind} is a mixture of experts (MoE) of a kind that is not served; {supported}.")
    if "auto_map" in config:
        raise CheckpointError(f"{kind} needs remote code, which is never run; {supported}.")
    name = ", ".join(config.get("architectures") or ["an unnamed architecture"])
    raise CheckpointError(f"{name} (model type {kind}) is not supported; {supported}.")


def read_spec(config: Any, max_len: int | None = None) -> ModelSpec:
    """From a config that transformers parsed; `max_len` shortens the context (see rope.longrope)."""
    family = FAMILIES[config.model_type]
    if getattr(config, "use_bidirectional_attention", None):
        raise CheckpointError(
            f"{config.model_type} with use_bidirectional_attention is an encoder; use a checkpoint that generates text."
        )

    if family.refused and getattr(config, family.refused, None):
        raise CheckpointError(
            f"{config.model_type} with {family.refused} is not served; use a checkpoint without it, or another model."
        )

    def decide(field: bool | str) -> Any:
        return getattr(config, field, None) if isinstance(field, str) and field else field

    def factor(field: str) -> float:
        return float(getattr(config, field)) if field else 1.0

    trained_len = int(config.max_position_embeddings)
    if family.stretched and config.rope_parameters.get(STRETCH):
        max_len = unstretched(config, trained_len, max_len)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    activation = getattr(config, family.activation, family.activation)
    if activation not in ACTIVATION_NAMES:
        raise CheckpointError(f"activation {activation!r} is not supported; supported: {', '.join(ACTIVATION_NAMES)}.")
    return ModelSpec(
        family=config.model_type,
        layers=read_layers(config, family, head_dim, trained_len, max_len or trained_len),
        vocab=config.vocab_size,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        max_len=max_len or trained_len,
        activation=ACTIVATION_NAMES[activation],
        norm_eps=getattr(config, family.norm_eps),
        norm_offset=family.norm_offset,
        tied=bool(config.tie_word_embeddings),
        early_exit=bool(getattr(config, "early_exit", False)),
        qkv_bias=bool(decide(family.qkv_bias)),
        out_bias=bool(decide(family.out_bias)),
        mlp_bias=bool(decide(family.mlp_bias)),
        qk_norm=bool(decide(family.qk_norm)),
        post_norms=bool(family.names.attention_post_norm),
        attention_scale=factor(family.score_scale)
        if family.score_scale
        else float(decide(family.attention_scale) or head_dim) ** -0.5,
        attention_softcap=decide(family.attention_softcap) or None,
        logit_softcap=decide(family.logit_softcap) or None,
        embedding_scale=config.hidden_size**0.5 if family.embedding_scaled else factor(family.embedding_scale),
        eos=eos_ids(config.eos_token_id),
        pre_norms=bool(family.names.attention_norm),
        whole_norm=family.whole_norm,
        layer_norm=family.layer_norm,
        norm_bias=family.norm_bias,
        parallel=family.parallel,
        gated=not family.ungated,
        residual_scale=factor(family.residual_scale),
        logit_scale=1 / factor(family.logit_scale) if family.divided else factor(family.logit_scale),
    )


def read_layers(config: Any, family: Family, head_dim: int, trained_len: int, max_len: int) -> tuple[Layer, ...]:
    window = getattr(config, family.window) if family.window else None
    everywhere = "sliding_attention" if window else "full_attention"
    kinds = config.layer_types if family.layer_types else [everywhere] * config.num_hidden_layers
    params = config.rope_parameters
    made: dict[str, Mixer] = {}
    for kind in sorted(set(kinds)):
        if kind == "conv" and family.conv is not None:
            length, bias = (getattr(config, name) for name in family.conv)
            made[kind] = ShortConv(int(length), bool(bias))
            continue
        if kind not in ("sliding_attention", "full_attention"):
            raise CheckpointError(f"layers of type {kind} are not supported.")
        try:
            given = {
                name: it for name, it in params.get(kind, params).items() if not family.stretched or name != STRETCH
            }
            turn = rope(given, head_dim, trained_len, max_len)
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"config.json: rope_parameters are incomplete ({error}).") from None
        made[kind] = Attention(turn, window if kind == "sliding_attention" else None)
    mixers = [made[kind] for kind in kinds]
    turned = [mixer if turns else still(mixer) for mixer, turns in zip(mixers, rotated(config, family, kinds))]
    return tuple(Layer(mixer, feed_forward(config, family, index)) for index, mixer in enumerate(turned))


def feed_forward(config: Any, family: Family, index: int) -> Dense | Experts:
    form = family.experts
    if form is None:
        return Dense(rounded(config) if family.rounded else config.intermediate_size)
    dense = form.dense and index in (getattr(config, form.dense) or ())
    outside = bool(form.first) and index < getattr(config, form.first)
    outside |= bool(form.last) and index > getattr(config, form.last)
    if dense or outside or (form.every and (index + 1) % getattr(config, form.every)):
        return Dense(config.intermediate_size)
    return mixture(config, form)


def mixture(config: Any, form: Mixed) -> Experts:
    count, active, width = (int(getattr(config, name)) for name in (form.count, form.active, form.width))
    if not 1 <= active <= count:
        raise CheckpointError(f"config.json: {form.active} is {active}, but it must be 1 to {form.count}, {count}.")
    groups, used = (1, 1) if form.groups is None else (int(getattr(config, name)) for name in form.groups)
    if groups < 1 or count % groups or not 1 <= used <= groups or active > count // groups * used:
        raise CheckpointError(
            f"config.json: {count} experts in {groups} groups, {used} of them active, do not give {active} experts to a "
            "token."
        )

    def decide(field: bool | str) -> bool:
        return bool(getattr(config, field) if isinstance(field, str) else field)

    shared = int(getattr(config, form.shared)) if form.shared else 0
    if form.shared_count:
        shared = width * int(getattr(config, form.shared_count) or 0)
    return Experts(
        count,
        active,
        width,
        decide(form.normed),
        shared,
        shared_gated=bool(form.shared),
        score=form.score,
        corrected=decide(form.corrected),
        groups=groups,
        active_groups=used,
        scale=float(getattr(config, form.scale)) if form.scale else 1.0,
        floor=form.floor,
    )


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


def rotated(config: Any, family: Family, kinds: Sequence[str]) -> list[bool]:
    """Flag per layer: True if its queries and keys are rotated."""
    if family.unrotated == "full_attention" and "sliding_attention" in kinds:
        return [kind == "sliding_attention" for kind in kinds]
    marks = getattr(config, family.unrotated, None) if family.unrotated else None
    return [bool(mark) for mark in marks] if marks else [True] * len(kinds)


def still(mixer: Mixer) -> Mixer:
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
