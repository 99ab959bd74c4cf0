"""The families that are served: one entry of data each.

The three files of families and recognise.py know families by name. A new family that is a decoder is one entry; if it
needs something no other has, that becomes a field of `Family` and of ModelSpec. `read_spec.py` reads a config by this
data.
"""

from dataclasses import replace

from paceline.model.families_mixed import HUNYUAN, MIXED_FAMILIES
from paceline.model.families_recurrent import RECURRENT_FAMILIES
from paceline.model.family import Family, Mixed, Names

LLAMA = Family("LlamaForCausalLM", qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")
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
GEMMA4 = replace(
    GEMMA2,
    architecture="Gemma4UnifiedForConditionalGeneration",
    norm_offset=0.0,
    attention_scale="",
    attention_softcap="",
    qk_norm=True,
    varied=True,
)
GRANITE_DENSE = Family(
    "GraniteForCausalLM",
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    mlp_bias="mlp_bias",
    embedding_scale="embedding_multiplier",
    residual_scale="residual_multiplier",
    score_scale="attention_multiplier",
    logit_scale="logits_scaling",
    divided=True,
)
GLM4 = Family(
    "Glm4ForCausalLM",
    names=Names(
        gate_up=("mlp.gate_up_proj",),
        attention_post_norm="post_self_attn_layernorm",
        ffn_post_norm="post_mlp_layernorm",
    ),
    qkv_bias="attention_bias",
    interleaved=True,
)
QWEN2 = Family("Qwen2ForCausalLM", qkv_bias=True, window="sliding_window", layer_types=True)
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
    qk_norm="use_qk_norm",
)
DENSE_FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "iquestcoder": replace(LLAMA, architecture="IQuestCoderForCausalLM"),
    "internlm3": replace(LLAMA, architecture="InternLM3ForCausalLM"),
    "mistral": Family("MistralForCausalLM", window="sliding_window"),
    "exaone": replace(LLAMA, architecture="ExaoneForCausalLM"),
    "qwen2": QWEN2,
    "qwen2_vl_text": replace(QWEN2, architecture="Qwen2VLForConditionalGeneration"),
    "qwen2_5_vl_text": replace(QWEN2, architecture="Qwen2_5_VLForConditionalGeneration"),
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
    "vaultgemma": replace(
        GEMMA2, architecture="VaultGemmaForCausalLM", names=Names(ffn_norm="pre_feedforward_layernorm")
    ),
    "gemma4_unified_text": GEMMA4,
    "gemma4_text": replace(
        GEMMA4,
        architecture="Gemma4ForCausalLM",
        names=replace(
            GEMMA_NAMES,
            router="router.proj",
            expert="experts.",
            expert_gate_up=("gate_up_proj#{}",),
            expert_down="down_proj#{}",
        ),
        experts=Mixed(active="top_k_experts", normed=True, enabled="enable_moe_block"),
    ),
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
    "glm4": GLM4,
    "glm4v_text": replace(GLM4, architecture="Glm4vForConditionalGeneration", qkv_bias=True),
    "granite": GRANITE_DENSE,
    "granite_swa": replace(
        GRANITE_DENSE,
        architecture="GraniteSWAForCausalLM",
        window="sliding_window",
        layer_types=True,
        unrotated="layer_rope_theta",
        by_theta="layer_rope_theta",
        sinks=True,
    ),
    "hyperclovax": replace(
        GRANITE_DENSE,
        architecture="HyperCLOVAXForCausalLM",
        names=Names(attention_post_norm="post_norm1", ffn_post_norm="post_norm2"),
        divided=False,
        only={"use_post_norm": True},
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
        unrotated="no window",
        qk_norm=False,
    ),
    "cohere2_moe": replace(
        COHERE,
        architecture="Cohere2MoeForCausalLM",
        names=replace(COHERE.names, shared="mlp.shared_experts."),
        window="sliding_window",
        layer_types=True,
        unrotated="no window",
        rotated_dense="prefix_dense_sliding_window_pattern",
        qk_norm=False,
        refused=("rms_norm_eps",),
        experts=Mixed(
            width="intermediate_size",
            shared_count="num_shared_experts",
            kinds="mlp_layer_types",
            dense_width="prefix_dense_intermediate_size",
            scored="expert_selection_fn",
            joined="shared_expert_combination_strategy",
        ),
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
    "jais2": Family(
        "Jais2ForCausalLM",
        names=Names(gate_up=("mlp.up_proj",)),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        norm_eps="layer_norm_eps",
        layer_norm=True,
        norm_bias=True,
        ungated=True,
    ),
    "stablelm": Family(
        "StableLmForCausalLM",
        names=Names(q_norm="self_attn.q_layernorm.norms.{}", k_norm="self_attn.k_layernorm.norms.{}"),
        qkv_bias="use_qkv_bias",
        qk_norm="qk_layernorm",
        parallel="use_parallel_residual",
        norm_eps="layer_norm_eps",
        layer_norm=True,
        norm_bias=True,
    ),
    "nemotron": Family(
        "NemotronForCausalLM",
        names=Names(gate_up=("mlp.up_proj",)),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        norm_eps="norm_eps",
        norm_offset=1.0,
        layer_norm=True,
        norm_bias=True,
        ungated=True,
    ),
    "hunyuan_v1_dense": HUNYUAN,
    "apertus": Family(
        "ApertusForCausalLM",
        names=Names(attention_norm="attention_layernorm", ffn_norm="feedforward_layernorm", gate_up=("mlp.up_proj",)),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        ungated=True,
        refused=("mlp_bias", "post_norm"),
        only={"qk_norm": True},
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
FAMILIES: dict[str, Family] = DENSE_FAMILIES | MIXED_FAMILIES | RECURRENT_FAMILIES
