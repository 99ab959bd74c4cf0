"""The families that are served: one entry of data each.

This is the only file that knows families by name. A new family that is a decoder is one entry here;
if it needs something no other has, that becomes a field of `Family` and of ModelSpec. `read_spec.py` reads a config by
this data.
"""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from paceline.core.errors import CheckpointError
from paceline.model.family import BACKBONE, HYBRID_NAMES, Family, MambaFields, Mixed, Names
from paceline.model.quantised import scheme_of

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
    refused=("use_qk_norm",),
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
QWEN35 = Family(
    "Qwen3_5ForConditionalGeneration",
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    qk_norm=True,
    norm_offset=1.0,
    layer_types=True,
    delta="apart",
    gated_attention=True,
    mtp=True,
)
DEEPSEEK_NAMES = Names(shared="mlp.shared_experts.", correction="mlp.gate.e_score_correction_bias")
DEEPSEEK_V3 = Family(
    "DeepseekV3ForCausalLM",
    names=DEEPSEEK_NAMES,
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    latent=True,
    interleaved="rope_interleave",
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
        refused=(),
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
    "gpt_oss": Family(
        "GptOssForCausalLM",
        names=Names(router="mlp.router"),
        activation="swiglu_clamped",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias=True,
        window="sliding_window",
        layer_types=True,
        sinks=True,
        experts=Mixed(count="num_local_experts", width="intermediate_size", normed=True, bias=True),
    ),
    "olmoe": Family(
        "OlmoeForCausalLM",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        whole_norm=True,
        refused=("clip_qkv",),
        experts=Mixed(width="intermediate_size"),
    ),
    "deepseek_v2": Family(
        "DeepseekV2ForCausalLM",
        names=DEEPSEEK_NAMES,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        refused=("mlp_bias", "norm_topk_prob"),
        latent=True,
        interleaved=True,
        experts=Mixed(
            count="n_routed_experts",
            normed=False,
            shared_count="n_shared_experts",
            first="first_k_dense_replace",
            groups=("n_group", "topk_group"),
            scale="routed_scaling_factor",
            methods={"greedy": False, "group_limited_greedy": True},
            group_best=1,
        ),
    ),
    "deepseek_v3": DEEPSEEK_V3,
    "glm4_moe_lite": replace(
        DEEPSEEK_V3,
        architecture="Glm4MoeLiteForCausalLM",
        experts=Mixed(
            count="n_routed_experts",
            shared_count="n_shared_experts",
            kinds="mlp_layer_types",
            score="sigmoid",
            corrected=True,
            groups=("n_group", "topk_group"),
            scale="routed_scaling_factor",
        ),
    ),
    "gemma4_text": Family(
        "Gemma4ForCausalLM",
        names=replace(
            GEMMA_NAMES,
            router="router.proj",
            expert="experts.",
            expert_gate_up=("gate_up_proj#{}",),
            expert_down="down_proj#{}",
        ),
        activation="hidden_activation",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        embedding_scaled=True,
        logit_softcap="final_logit_softcapping",
        window="sliding_window",
        layer_types=True,
        varied=True,
        experts=Mixed(active="top_k_experts", normed=True, enabled="enable_moe_block"),
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
    "mamba2": Family(
        "Mamba2ForCausalLM",
        names=BACKBONE,
        norm_eps="layer_norm_epsilon",
        layer_types=True,
        feedless=True,
        mamba=MambaFields(
            "num_heads", "head_dim", "n_groups", "state_size", "conv_kernel", "use_conv_bias", "use_bias", "use_bias"
        ),
    ),
    "bamba": Family(
        "BambaForCausalLM",
        names=HYBRID_NAMES,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        layer_types=True,
        mamba=MambaFields(),
    ),
    "granitemoehybrid": Family(
        "GraniteMoeHybridForCausalLM",
        names=Names(
            gate_up=("shared_mlp.input_linear",),
            down="shared_mlp.output_linear",
            router="block_sparse_moe.router.layer",
            expert="block_sparse_moe.",
            expert_gate_up=("input_linear#{}",),
            expert_down="output_linear#{}",
            shared="shared_mlp.",
            shared_gate_up=("input_linear",),
            shared_down="output_linear",
        ),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        layer_types=True,
        turned="position_embedding_type",
        embedding_scale="embedding_multiplier",
        residual_scale="residual_multiplier",
        score_scale="attention_multiplier",
        logit_scale="logits_scaling",
        divided=True,
        mamba=MambaFields(),
        experts=Mixed(
            count="num_local_experts",
            width="intermediate_size",
            normed=True,
            shared="shared_intermediate_size",
            shared_gated=False,
            optional="shared_intermediate_size",
        ),
    ),
    "falcon_h1": Family(
        "FalconH1ForCausalLM",
        names=HYBRID_NAMES,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        layer_types=True,
        multiplied=True,
        embedding_scale="embedding_multiplier",
        logit_scale="lm_head_multiplier",
        mamba=MambaFields(out_bias="projectors_bias", norm="mamba_rms_norm", norm_first="mamba_norm_before_gate"),
    ),
    "nemotron_h": Family(
        "NemotronHForCausalLM",
        names=replace(
            BACKBONE,
            qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
            out="mixer.o_proj",
            gate_up=("mixer.up_proj",),
            down="mixer.down_proj",
            router="mixer.gate",
            expert="mixer.experts.{}.",
            expert_gate_up=("up_proj",),
            shared="mixer.shared_experts.",
            correction="mixer.gate.e_score_correction_bias",
        ),
        activation="mlp_hidden_act",
        norm_eps="layer_norm_epsilon",
        mlp_bias="mlp_bias",
        ungated=True,
        layer_types=True,
        apart=True,
        turned="",
        refused=("moe_latent_size",),
        mamba=MambaFields(
            "mamba_num_heads",
            "mamba_head_dim",
            "n_groups",
            "ssm_state_size",
            "conv_kernel",
            "use_conv_bias",
            "mamba_proj_bias",
            "use_bias",
            "mamba_hidden_act",
            "time_step_min",
        ),
        experts=Mixed(
            count="n_routed_experts",
            shared="moe_shared_expert_intermediate_size",
            shared_gated=False,
            score="sigmoid",
            corrected=True,
            groups=("n_group", "topk_group"),
            scale="routed_scaling_factor",
        ),
    ),
    "qwen3_next": replace(
        QWEN35,
        architecture="Qwen3NextForCausalLM",
        delta="fused",
        experts=Mixed(shared="shared_expert_intermediate_size", every="decoder_sparse_step", dense="mlp_only_layers"),
    ),
    "qwen3_5_text": QWEN35,
    "arcee": Family(
        "ArceeForCausalLM",
        names=Names(gate_up=("mlp.up_proj",)),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        ungated=True,
    ),
}


JUDGES = ("ForSequenceClassification", "ForTokenClassification", "RewardModel")
"""Ends of the names of architectures whose head is no language model's."""


WITH_PICTURES = frozenset(("gemma3", "gemma4", "mistral3", "qwen3_vl", "qwen3_5"))
"""Model types of which the text's part is served: pictures are refused."""
FROM_OUTSIDE = ("tie_word_embeddings", "eos_token_id", "quantization_config")
"""Keys next to `text_config` that apply to the text."""


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the text's model in that of one that reads pictures, too; else the config itself."""
    inner = config.get("text_config")
    if config.get("model_type") not in WITH_PICTURES or not isinstance(inner, Mapping):
        return config
    kind = inner.get("model_type") or {
        "gemma3": "gemma3_text",
        "gemma4": "gemma4_text",
        "qwen3_vl": "qwen3_vl_text",
        "qwen3_5": "qwen3_5_text",
    }.get(config["model_type"], "mistral")
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
    if kind in WITH_PICTURES:
        raise CheckpointError(
            f"config.json of {kind}, which reads pictures, has no text_config, whose model is the part that is served; "
            "download it again, or use a checkpoint of text alone."
        )
    near = get_close_matches(str(kind), FAMILIES, 1, 0.5)
    nearest = f"the nearest that is served is {near[0]}; " if near else ""
    supported = f"{nearest}supported model types are {', '.join(FAMILIES)}"
    if "moe" in str(kind) or any(config.get(f) for f in ("num_local_experts", "num_experts", "n_routed_experts")):
        raise CheckpointError(f"{kind} is a mixture of experts (MoE) of a kind that is not served; {supported}.")
    if "auto_map" in config:
        raise CheckpointError(f"{kind} needs remote code, which is never run; {supported}.")
    name = ", ".join(config.get("architectures") or ["an unnamed architecture"])
    raise CheckpointError(f"{name} (model type {kind}) is not supported; {supported}.")
