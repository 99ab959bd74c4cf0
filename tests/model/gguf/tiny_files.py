"""What the configs of tiny checkpoints say that become GGUF files, by family."""

from typing import Any

PLAIN = {"rope_type": "default", "rope_theta": 1e4}
LATENT_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
OTHERS: dict[str, dict[str, Any]] = {
    "gemma": {},
    "mamba2": {},
    "gemma4_text": {
        "layers": 5,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "full_attention"],
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 24,
        "vocab_size_per_layer_input": 96,
    },
    "smollm3": {"no_rope_layer_interval": 4, "layers": 5},
    "granite": {},
    "seed_oss": {"attention_bias": True},
    "ernie4_5": {},
    "glm4": {},
    "olmo2": {},
    "exaone4": {"sliding_window_pattern": 4, "layers": 5},
    "cohere2": {"sliding_window_pattern": 4, "layers": 5},
    "starcoder2": {"sliding_window": None},
    "stablelm": {},
    "nemotron": {},
    "arcee": {},
    "mixtral": {},
    "qwen2_moe": {"norm_topk_prob": False, "qkv_bias": True, "use_sliding_window": False},
    "qwen3_moe": {"norm_topk_prob": True, "decoder_sparse_step": 1},
    "olmoe": {},
    "granitemoe": {},
    "glm4_moe": {},
    "ernie4_5_moe": {},
    "gpt_oss": {"layers": 4, "swiglu_limit": 7.0},
    "dots1": {"n_group": 1, "topk_group": 1, "sliding_window": None},
    "exaone_moe": {"layers": 5, "sliding_window_pattern": 4},
    "minimax_m2": {},
    "jais2": {},
    "qwen3_5_text": {"full_attention_interval": 3},
    "qwen3_5_moe_text": {"full_attention_interval": 2},
    "qwen3_next": {"full_attention_interval": 2, "norm_topk_prob": True},
    "ministral3": {},
    "mistral": {"sliding_window": None, "head_dim": 16},
    "lfm2": {"full_attn_idxs": [1, 2]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"], "routed_scaling_factor": 1.0},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "falcon_h1": {},
    "deepseek_v2": {"attention_bias": False, "n_group": 4},
    "deepseek_v3": {"rope_parameters": {**LATENT_YARN, "mscale": 0.8, "mscale_all_dim": 0.8}},
    "glm4_moe_lite": {"attention_bias": False, "layers": 3},
    "youtu": {},
}
"""What GGUF cannot say is as llama.cpp has it."""
USUAL: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {},
    "phi3": {},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"layers": 7, "query_pre_attn_scalar": 16, "sliding_window_pattern": 6},
}
"""Those of families whose cases are tried elsewhere."""
