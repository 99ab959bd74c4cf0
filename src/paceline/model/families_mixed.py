"""Mixtures of experts, and models with latent keys and values: one entry of data each (see model/families.py)."""

from dataclasses import replace
from typing import Any

from paceline.model.family import Family, Mixed, Names

MIXTRAL_NAMES = Names(
    router="block_sparse_moe.gate",
    expert="block_sparse_moe.experts.{}.",
    expert_gate_up=("w1", "w3"),
    expert_down="w2",
)
DEEPSEEK_NAMES = Names(shared="mlp.shared_experts.", correction="mlp.gate.e_score_correction_bias")
DEEPSEEK_EXPERTS = Mixed(
    count="n_routed_experts",
    shared_count="n_shared_experts",
    first="first_k_dense_replace",
    score="sigmoid",
    corrected=True,
    groups=("n_group", "topk_group"),
    scale="routed_scaling_factor",
)
DEEPSEEK_V3 = Family(
    "DeepseekV3ForCausalLM",
    names=DEEPSEEK_NAMES,
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    latent=True,
    interleaved="rope_interleave",
    beyond="num_nextn_predict_layers",
    experts=DEEPSEEK_EXPERTS,
)
GRANITE_NAMES = Names(
    gate_up=("shared_mlp.input_linear",),
    down="shared_mlp.output_linear",
    router="block_sparse_moe.router.layer",
    expert="block_sparse_moe.",
    expert_gate_up=("input_linear#{}",),
    expert_down="output_linear#{}",
    shared="shared_mlp.",
    shared_gate_up=("input_linear",),
    shared_down="output_linear",
)
GRANITE_EXPERTS = Mixed(count="num_local_experts", width="intermediate_size", normed=True)
GRANITE_MOE = Family(
    "GraniteMoeForCausalLM",
    names=GRANITE_NAMES,
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    embedding_scale="embedding_multiplier",
    residual_scale="residual_multiplier",
    score_scale="attention_multiplier",
    logit_scale="logits_scaling",
    divided=True,
    experts=GRANITE_EXPERTS,
)
GLM4_MOE = Family(
    "Glm4MoeForCausalLM",
    names=DEEPSEEK_NAMES,
    qkv_bias="attention_bias",
    qk_norm="use_qk_norm",
    beyond="num_nextn_predict_layers",
    experts=DEEPSEEK_EXPERTS,
)
HUNYUAN_ONLY: dict[str, Any] = {"use_qk_norm": True, "use_rotary_pos_emb": True}
HUNYUAN = Family(
    "HunYuanDenseV1ForCausalLM",
    names=Names(q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm"),
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    qk_norm=True,
    norm_turned=True,
    by_alpha=True,
    refused=("mlp_bias", "use_cla", "use_mla"),
    only=HUNYUAN_ONLY,
)
MIXED_FAMILIES: dict[str, Family] = {
    "mixtral": Family(
        "MixtralForCausalLM",
        names=MIXTRAL_NAMES,
        window="sliding_window",
        experts=Mixed(count="num_local_experts", width="intermediate_size", normed=True),
    ),
    "phimoe": Family(
        "PhimoeForCausalLM",
        names=MIXTRAL_NAMES,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        layer_norm=True,
        norm_bias=True,
        head_bias="lm_head_bias",
        window="sliding_window",
        by_scale=True,
        only={"num_experts_per_tok": 2},
        experts=Mixed(
            count="num_local_experts",
            width="intermediate_size",
            normed=False,
            score="sparse",
            jitter="router_jitter_noise",
        ),
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
    "qwen3_vl_moe_text": Family(
        "Qwen3VLMoeForConditionalGeneration",
        names=Names(fused_experts="halves"),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        experts=Mixed(normed=True, every="decoder_sparse_step", dense="mlp_only_layers"),
    ),
    "mellum": Family(
        "MellumForCausalLM",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        window="sliding_window",
        layer_types=True,
        refused=("num_mtp_layers",),
        experts=Mixed(kinds="mlp_layer_types"),
    ),
    "minimax_m2": Family(
        "MiniMaxM2ForCausalLM",
        names=replace(MIXTRAL_NAMES, correction="block_sparse_moe.e_score_correction_bias"),
        qk_norm=True,
        whole_norm=True,
        experts=Mixed(
            count="num_local_experts", width="intermediate_size", normed=True, score="sigmoid", corrected=True
        ),
    ),
    "glm4_moe": GLM4_MOE,
    "sarvam_moe": replace(
        GLM4_MOE,
        architecture="SarvamMoEForCausalLM",
        names=replace(
            DEEPSEEK_NAMES,
            embedding="model.word_embeddings",
            qkv=("attention.query_key_value",),
            q_norm="attention.query_layernorm",
            k_norm="attention.key_layernorm",
            out="attention.dense",
            correction="mlp.gate.expert_bias",
        ),
    ),
    "solar_open": replace(
        GLM4_MOE,
        architecture="SolarOpenForCausalLM",
        qk_norm=False,
        beyond="",
        experts=replace(DEEPSEEK_EXPERTS, first=""),
    ),
    "dots1": replace(
        GLM4_MOE,
        architecture="Dots1ForCausalLM",
        out_bias="attention_bias",
        qk_norm=True,
        window="sliding_window",
        layer_types=True,
        beyond="",
    ),
    "exaone_moe": Family(
        "ExaoneMoeForCausalLM",
        names=replace(DEEPSEEK_NAMES, correction="mlp.e_score_correction_bias"),
        qk_norm=True,
        window="sliding_window",
        layer_types=True,
        unrotated="full_attention",
        experts=replace(
            DEEPSEEK_EXPERTS, count="num_experts", shared_count="num_shared_experts", first="", kinds="mlp_layer_types"
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
            least="moe_norm_min",
        ),
    ),
    "granitemoe": GRANITE_MOE,
    "granitemoeshared": replace(
        GRANITE_MOE,
        architecture="GraniteMoeSharedForCausalLM",
        experts=replace(GRANITE_EXPERTS, shared="shared_intermediate_size", shared_gated=False),
    ),
    "hunyuan_v1_moe": replace(
        HUNYUAN,
        architecture="HunYuanMoEV1ForCausalLM",
        names=replace(HUNYUAN.names, router="mlp.gate.wg", shared="mlp.shared_mlp."),
        refused=(*HUNYUAN.refused, "moe_layer_num_skipped"),
        only={**HUNYUAN_ONLY, "use_mixed_mlp_moe": True, "num_shared_expert": 1},
        even=("num_experts", "moe_topk", "moe_intermediate_size", "num_shared_expert"),
        experts=Mixed(
            active="moe_topk", width="intermediate_size", normed=True, shared="intermediate_size", shared_gated=False
        ),
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
        experts=replace(DEEPSEEK_EXPERTS, first="", kinds="mlp_layer_types"),
    ),
    "mistral4": replace(
        DEEPSEEK_V3,
        architecture="Mistral4ForCausalLM",
        names=replace(DEEPSEEK_NAMES, fused_experts="halves"),
        beyond="",
        stretched=True,
        experts=replace(DEEPSEEK_EXPERTS, score="softmax", corrected=False),
    ),
    "sarvam_mla": replace(DEEPSEEK_V3, architecture="SarvamMLAForCausalLM"),
    "youtu": replace(DEEPSEEK_V3, architecture="YoutuForCausalLM", names=Names(), beyond="", experts=None),
}
