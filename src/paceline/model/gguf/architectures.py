"""Architectures of GGUF files: one entry of data each."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.model.family import Names

NORM = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
LAYER_NORM = {"attention.layer_norm_epsilon": "layer_norm_eps"}
GRANITE = {
    **NORM,
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
QWEN_EXPERTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
LOCAL_EXPERTS = {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}
WINDOW_KEYS = {"attention.sliding_window": "sliding_window"}
LAST_CAP = {"final_logit_softcapping": "final_logit_softcapping"}
CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", **LAST_CAP}


@dataclass(frozen=True, slots=True)
class Arch:
    """`general.architecture`: its model type, and what of its metadata goes where."""

    model_type: str
    interleaved: bool = False
    """Pairs that are rotated lie side by side, not half a head apart."""
    floats: Mapping[str, str] = field(default_factory=lambda: NORM)
    """Keys of numbers with a fraction, and fields of the config."""
    whole: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    folded: bool = False
    """Norm weights are stored with the family's offset already added."""
    mixture: Mapping[str, str] = field(default_factory=dict)
    """Keys of whole numbers that a mixture of experts must have; empty: it is none."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Keys that are true or false."""
    score: int = 1
    """`expert_gating_func`: 1, shares among all experts; 2, a sigmoid of each."""
    names: Names | None = None
    """Where not those of the family: the converter takes fused matrices apart."""
    sizes: Mapping[str, str] = field(default_factory=dict)
    """Keys of whole numbers that every file must have."""
    keyless: str = ""
    """What `layer_types` calls layers that have no heads of keys (`attention.head_count_kv` is 0)."""
    latent: bool = False
    """Keys and values are made of a latent vector."""
    attends: bool = True
    """Some layers have heads of attention, and a feed-forward part (else gguf/peculiar.py)."""
    varied: bool = False
    """Layers differ in their heads, as Gemma 4's do (gguf/varied.py)."""
    apart: bool = False
    """Feed-forward parts are layers of their own (gguf/hybrid.py)."""
    curved: bool = False
    """Metadata hold the numbers of its activation (`XIELU`)."""
    tiled: bool = False
    """Value heads of the gated delta rule lie in turns of the key heads (`Delta.tiled`)."""


SHARED_EXPERTS = {
    **QWEN_EXPERTS,
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
GATED_DELTA = Arch(
    "qwen3_5_text",
    folded=True,
    tiled=True,
    sizes={
        "ssm.conv_kernel": "linear_conv_kernel_dim",
        "ssm.state_size": "linear_key_head_dim",
        "ssm.group_count": "linear_num_key_heads",
        "ssm.time_step_rank": "linear_num_value_heads",
        "ssm.inner_size": "value_numbers",
    },
    whole={"full_attention_interval": "full_attention_interval"},
)
DEEPSEEK_ROUTER = {
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
}
ROUTER_SCALE = {"expert_weights_scale": "routed_scaling_factor"}
ROUTER_GROUPS = {"expert_group_count": "n_group", "expert_group_used_count": "topk_group"}
ROUTER_NORM = {"expert_weights_norm": "norm_topk_prob"}
MAMBA_SIZES = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
    "ssm.inner_size": "value_numbers",
}
UNSCALED = {
    **dict.fromkeys(("attention_in_multiplier", "attention_out_multiplier", "key_multiplier", "ssm_in_multiplier",
                     "ssm_out_multiplier", "embedding_multiplier", "lm_head_multiplier"), 1.0),
    "ssm_multipliers": [1.0] * 5,
    "mlp_multipliers": [1.0] * 2,
    "mamba_norm_before_gate": False,
}  # fmt: skip
"""Falcon-H1's factors, which the converter has multiplied into its weights."""
SHORT_CONVOLUTIONS = Arch(
    "lfm2",
    floats={"attention.layer_norm_rms_epsilon": "norm_eps"},
    sizes={"shortconv.l_cache": "conv_L_cache"},
    fixed={"block_auto_adjust_ff_dim": False},
    keyless="conv",
)
ARCHITECTURES: dict[str, Arch] = {
    "llama": Arch("llama", interleaved=True),
    "mistral3": Arch("ministral3", interleaved=True),
    "qwen2": Arch("qwen2"),
    "qwen3": Arch("qwen3"),
    "phi3": Arch("phi3", whole=WINDOW_KEYS),
    "gemma2": Arch("gemma2", floats={**NORM, **CAPS}, whole=WINDOW_KEYS, folded=True),
    "gemma3": Arch("gemma3_text", floats={**NORM, **LAST_CAP}, whole=WINDOW_KEYS, folded=True),
    "gemma4": Arch(
        "gemma4_text",
        varied=True,
        names=Names(
            attention_post_norm="post_attention_layernorm",
            ffn_norm="pre_feedforward_layernorm",
            ffn_post_norm="post_feedforward_layernorm",
            router="router.proj",
            expert="experts.{}.",
        ),
    ),
    "mamba2": Arch("mamba2", attends=False),
    "gemma": Arch("gemma", fixed={"hidden_act": "gelu_pytorch_tanh"}, folded=True),
    "smollm3": Arch("smollm3", interleaved=True),
    "granite": Arch(
        "granite",
        interleaved=True,
        floats=GRANITE,
    ),
    "seed_oss": Arch("seed_oss"),
    "ernie4_5": Arch("ernie4_5", interleaved=True),
    "glm4": Arch("glm4", interleaved=True),
    "olmo2": Arch("olmo2"),
    "exaone4": Arch("exaone4", whole=WINDOW_KEYS),
    "cohere2": Arch(
        "cohere2", interleaved=True, floats={**LAYER_NORM, "logit_scale": "logit_scale"}, whole=WINDOW_KEYS
    ),
    "command-r": Arch("cohere", interleaved=True, floats={**LAYER_NORM, "logit_scale": "logit_scale"}),
    "exaone": Arch("exaone"),
    "starcoder2": Arch(
        "starcoder2",
        floats={"attention.layer_norm_epsilon": "norm_epsilon"},
        fixed={"hidden_act": "gelu_pytorch_tanh", "sliding_window": None},
    ),
    "stablelm": Arch(
        "stablelm",
        floats=LAYER_NORM,
        names=Names(q_norm="self_attn.q_layernorm", k_norm="self_attn.k_layernorm"),
    ),
    "nemotron": Arch(
        "nemotron",
        floats={"attention.layer_norm_epsilon": "norm_eps"},
        fixed={"hidden_act": "relu2"},
        folded=True,
    ),
    "apertus": Arch("apertus", curved=True),
    "hunyuan-dense": Arch("hunyuan_v1_dense"),
    "hunyuan-moe": Arch(
        "hunyuan_v1_moe",
        mixture={
            "expert_count": "num_experts",
            "expert_used_count": "moe_topk",
            "expert_shared_count": "num_shared_expert",
            "expert_shared_feed_forward_length": "moe_shared_width",
        },
    ),
    "arcee": Arch("arcee", interleaved=True, fixed={"hidden_act": "relu2"}),
    "qwen2moe": Arch("qwen2_moe", fixed={"norm_topk_prob": False}, mixture=SHARED_EXPERTS),
    "qwen3moe": Arch(
        "qwen3_moe",
        fixed={"norm_topk_prob": True},
        mixture={**QWEN_EXPERTS, "expert_feed_forward_length": "moe_intermediate_size"},
    ),
    "olmoe": Arch("olmoe", fixed={"norm_topk_prob": False}, mixture=QWEN_EXPERTS),
    "granitemoe": Arch(
        "granitemoe",
        interleaved=True,
        floats=GRANITE,
        mixture=LOCAL_EXPERTS,
        names=Names(router="block_sparse_moe.router.layer"),
    ),
    "glm4moe": Arch(
        "glm4_moe",
        floats={**NORM, **ROUTER_SCALE},
        whole=ROUTER_GROUPS,
        flags=ROUTER_NORM,
        mixture=DEEPSEEK_ROUTER,
        score=2,
    ),
    "dots1": Arch(
        "dots1",
        floats={**NORM, **ROUTER_SCALE},
        flags=ROUTER_NORM,
        fixed={"sliding_window": None},
        mixture=DEEPSEEK_ROUTER,
        score=2,
    ),
    "exaone-moe": Arch(
        "exaone_moe",
        floats={**NORM, **ROUTER_SCALE},
        whole={**WINDOW_KEYS, **ROUTER_GROUPS},
        flags=ROUTER_NORM,
        mixture={
            **DEEPSEEK_ROUTER,
            "expert_count": "num_experts",
            "expert_shared_count": "num_shared_experts",
        },
        score=2,
    ),
    "afmoe": Arch(
        "afmoe",
        floats={**NORM, "expert_weights_scale": "route_scale"},
        whole=WINDOW_KEYS,
        fixed={"mup_enabled": True},
        flags=ROUTER_NORM,
        mixture={
            **QWEN_EXPERTS,
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_count": "num_shared_experts",
            "leading_dense_block_count": "num_dense_layers",
        },
        score=2,
    ),
    "minimax-m2": Arch(
        "minimax_m2",
        mixture={**LOCAL_EXPERTS, "expert_feed_forward_length": "intermediate_size"},
        names=Names(correction="block_sparse_moe.e_score_correction_bias"),
        score=2,
    ),
    "qwen2vl": Arch("qwen2_vl_text"),
    "qwen3vl": Arch("qwen3_vl_text"),
    "qwen3vlmoe": Arch(
        "qwen3_vl_moe_text",
        mixture={**QWEN_EXPERTS, "expert_feed_forward_length": "moe_intermediate_size"},
    ),
    "qwen35": GATED_DELTA,
    "qwen35moe": replace(GATED_DELTA, model_type="qwen3_5_moe_text", mixture=SHARED_EXPERTS),
    "qwen3next": replace(
        GATED_DELTA, model_type="qwen3_next", tiled=False, fixed={"norm_topk_prob": True}, mixture=SHARED_EXPERTS
    ),
    "lfm2": SHORT_CONVOLUTIONS,
    "lfm2moe": replace(
        SHORT_CONVOLUTIONS,
        model_type="lfm2_moe",
        fixed={"norm_topk_prob": True},
        mixture={
            **QWEN_EXPERTS,
            "expert_feed_forward_length": "moe_intermediate_size",
            "leading_dense_block_count": "num_dense_layers",
        },
        score=2,
    ),
    "granitehybrid": Arch(
        "granitemoehybrid",
        interleaved=True,
        floats=GRANITE,
        sizes=MAMBA_SIZES,
        whole={"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        names=Names(router="block_sparse_moe.router.layer"),
        keyless="linear_attention",
    ),
    "nemotron_h": Arch("nemotron_h", apart=True),
    "nemotron_h_moe": Arch("nemotron_h", apart=True, score=2),
    "falcon-h1": Arch("falcon_h1", sizes=MAMBA_SIZES, fixed=UNSCALED),
    "deepseek2": Arch(
        "deepseek_v3",
        latent=True,
        floats={**NORM, **ROUTER_SCALE},
        whole=ROUTER_GROUPS,
        flags=ROUTER_NORM,
        mixture=DEEPSEEK_ROUTER,
        score=2,
    ),
    "mistral4": Arch(
        "mistral4",
        latent=True,
        floats={**NORM, **ROUTER_SCALE},
        whole=ROUTER_GROUPS,
        flags=ROUTER_NORM,
        mixture=DEEPSEEK_ROUTER,
    ),
    "jais2": Arch("jais2", floats=LAYER_NORM, fixed={"hidden_act": "relu2"}),
    "ernie4_5-moe": Arch(
        "ernie4_5_moe",
        interleaved=True,
        mixture={
            "expert_count": "moe_num_experts",
            "expert_used_count": "moe_k",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_count": "moe_num_shared_experts",
            "leading_dense_block_count": "moe_layer_start_index",
            "interleave_moe_layer_step": "moe_layer_interval",
        },
    ),
    "gpt-oss": Arch(
        "gpt_oss",
        whole=WINDOW_KEYS,
        mixture={**LOCAL_EXPERTS, "expert_feed_forward_length": "intermediate_size"},
        score=3,
    ),
}
STEADY_MISTRAL = Arch("mistral", interleaved=True, fixed={"sliding_window": None})
"""Architecture of `mistral3` files whose queries do not grow with their position."""
DENSE_LATENT = Arch("youtu", latent=True)
SOFTMAX_LATENT = Arch(
    "deepseek_v2",
    latent=True,
    floats={**NORM, **ROUTER_SCALE},
    whole=ROUTER_GROUPS,
    flags=ROUTER_NORM,
    mixture=DEEPSEEK_ROUTER,
)
"""Architecture of `deepseek2` files without experts, and with experts that are chosen by shares among all."""
MIXTRAL = Arch("mixtral", interleaved=True, mixture=LOCAL_EXPERTS)
"""Architecture of `llama` files with experts."""
