"""Tiny random checkpoints in Hugging Face layout, one per family, for every test that needs a real model."""

from functools import cache
from pathlib import Path
from typing import Any

import torch

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "num_key_value_heads": 2},
    "mistral": {"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 7},
    "qwen2": {
        "model_type": "qwen2",
        "num_key_value_heads": 2,
        "use_sliding_window": True,
        "sliding_window": 6,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    },
    "qwen3": {"model_type": "qwen3", "num_key_value_heads": 1, "head_dim": 16, "attention_bias": True},
    "phi3": {"model_type": "phi3", "num_key_value_heads": 2, "sliding_window": 9},
    "gemma2": {
        "model_type": "gemma2",
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 8,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 5.0,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "num_key_value_heads": 1,
        "head_dim": 16,
        "sliding_window": 8,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 24,
    },
}
"""What each family's config says beyond the common sizes; windows are smaller than the texts of the tests."""

MAMBA = {
    "num_key_value_heads": 2,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
}
DELTA = {
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "full_attention_interval": 2,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
MORE: dict[str, dict[str, Any]] = {
    "gemma": {"model_type": "gemma", "num_key_value_heads": 1, "head_dim": 16},
    "ministral": {"model_type": "ministral", "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 7},
    "cwm": {"model_type": "cwm", "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 7},
    "smollm3": {"model_type": "smollm3", "num_key_value_heads": 2, "no_rope_layer_interval": 2},
    "seed_oss": {"model_type": "seed_oss", "num_key_value_heads": 2, "head_dim": 16, "attention_out_bias": False},
    "ernie4_5": {"model_type": "ernie4_5", "num_key_value_heads": 2, "head_dim": 8, "use_bias": True},
    "helium": {"model_type": "helium", "num_key_value_heads": 2, "head_dim": 8},
    "glm": {"model_type": "glm", "num_key_value_heads": 2, "head_dim": 16, "attention_bias": True},
    "glm4": {"model_type": "glm4", "num_key_value_heads": 2, "head_dim": 16, "attention_bias": True},
    "granite": {
        "model_type": "granite",
        "num_key_value_heads": 2,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.3,
        "attention_multiplier": 0.2,
        "logits_scaling": 4.0,
    },
    "olmo2": {"model_type": "olmo2", "num_key_value_heads": 2},
    "olmo3": {"model_type": "olmo3", "num_key_value_heads": 2, "sliding_window": 7},
    "exaone4": {"model_type": "exaone4", "num_key_value_heads": 2, "sliding_window": 7, "sliding_window_pattern": 2},
    "cohere": {"model_type": "cohere", "num_key_value_heads": 2, "logit_scale": 0.25},
    "cohere2": {"model_type": "cohere2", "num_key_value_heads": 2, "sliding_window": 7, "sliding_window_pattern": 2},
    "starcoder2": {"model_type": "starcoder2", "num_key_value_heads": 2, "sliding_window": 7},
    "arcee": {"model_type": "arcee", "num_key_value_heads": 2},
    "mixtral": {
        "model_type": "mixtral",
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        "num_key_value_heads": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
        "norm_topk_prob": True,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "num_key_value_heads": 2,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "decoder_sparse_step": 2,
        "head_dim": 16,
    },
    "olmoe": {"model_type": "olmoe", "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2},
    "glm4_moe": {
        "model_type": "glm4_moe",
        "num_key_value_heads": 2,
        "head_dim": 16,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.7,
        "use_qk_norm": True,
        "attention_bias": True,
    },
    "ernie4_5_moe": {
        "model_type": "ernie4_5_moe",
        "num_key_value_heads": 2,
        "moe_num_experts": 6,
        "moe_k": 2,
        "moe_intermediate_size": 24,
        "moe_num_shared_experts": 1,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": 2,
        "moe_layer_interval": 1,
    },
    "granitemoe": {
        "model_type": "granitemoe",
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.3,
        "attention_multiplier": 0.2,
        "logits_scaling": 4.0,
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 7,
        "swiglu_limit": 0.4,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "truncate": False,
        },
    },
    "ministral3": {
        "model_type": "ministral3",
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 2.0,
            "original_max_position_embeddings": 256,
            "llama_4_scaling_beta": 0.1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    },
    "mamba2": {"model_type": "mamba2", "num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 2},
    "bamba": {"model_type": "bamba", **MAMBA, "attn_layer_indices": [1]},
    "granitemoehybrid": {
        "model_type": "granitemoehybrid",
        **MAMBA,
        "layer_types": ["linear_attention", "full_attention"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 48,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.3,
        "attention_multiplier": 0.2,
        "logits_scaling": 4.0,
    },
    "falcon_h1": {
        "model_type": "falcon_h1",
        **MAMBA,
        "mamba_d_ssm": 64,
        "attention_in_multiplier": 0.7,
        "attention_out_multiplier": 1.3,
        "key_multiplier": 0.6,
        "ssm_in_multiplier": 1.2,
        "ssm_out_multiplier": 0.8,
        "ssm_multipliers": [0.9, 1.1, 0.7, 1.3, 0.8],
        "mlp_multipliers": [0.6, 1.4],
        "lm_head_multiplier": 0.5,
        "embedding_multiplier": 2.0,
    },
    "nemotron_h": {
        "model_type": "nemotron_h",
        "num_key_value_heads": 2,
        "head_dim": 8,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 8,
        "layers_block_type": ["linear_attention", "full_attention", "mlp", "moe"],
        "n_routed_experts": 4,
        "moe_intermediate_size": 24,
        "moe_shared_expert_intermediate_size": 40,
        "routed_scaling_factor": 1.7,
    },
    "qwen3_next": {
        "model_type": "qwen3_next",
        **DELTA,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
    },
    "qwen3_5_text": {"model_type": "qwen3_5_text", **DELTA},
    "deepseek_v2": {
        "model_type": "deepseek_v2",
        **LATENT,
        "q_lora_rank": None,
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "topk_method": "group_limited_greedy",
        "routed_scaling_factor": 1.7,
        "attention_bias": True,
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        **LATENT,
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "mscale": 1.0,
            "mscale_all_dim": 0.8,
        },
    },
    "glm4_moe_lite": {"model_type": "glm4_moe_lite", **LATENT, "n_routed_experts": 4, "attention_bias": True},
    "gemma4_text": {
        "model_type": "gemma4_text",
        "num_key_value_heads": 2,
        "head_dim": 8,
        "global_head_dim": 16,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention"],
        "hidden_size_per_layer_input": 6,
        "vocab_size_per_layer_input": 320,
        "final_logit_softcapping": 5.0,
    },
    "lfm2_moe": {
        "model_type": "lfm2_moe",
        "num_key_value_heads": 2,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "num_dense_layers": 1,
        "routed_scaling_factor": 1.3,
        "layer_types": ["conv", "full_attention"],
        "tie_word_embeddings": False,
    },
    "lfm2": {
        "model_type": "lfm2",
        "num_key_value_heads": 2,
        "block_multiple_of": 8,
        "tie_word_embeddings": False,
        "full_attn_idxs": [1],
    },
}
"""Families that the lossless matrix leaves out: their layers differ in data alone, or are PyTorch's."""

CORPUS = """Tom has 3 apples and buys 4 more. How many apples does he have now? 3 + 4 = 7. The answer is 7.
def add(a, b):
    return a + b
for i in range(10):
    print(i, add(i, i))
The quick brown fox jumps over the lazy dog, then the lazy dog sleeps. Größe, naïve, 東京, 🙂.
"""
SPECIAL = ["<bos>", "<eos>", "<pad>", "<user>", "<assistant>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tiny_config(family: str, *, vocab: int = 320, layers: int = 2, hidden: int = 32, **changes: Any) -> dict[str, Any]:
    """The family's config as a dictionary; `changes` override any field."""
    common: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }
    return common | {**FAMILIES, **MORE}[family] | changes


def tiny_checkpoint(
    path: Path,
    family: str = "llama",
    *,
    vocab: int = 320,
    seed: int = 0,
    layers: int = 2,
    hidden: int = 32,
    with_tokenizer: bool = True,
    shard: str = "5GB",
    **changes: Any,
) -> Path:
    """Write a random float32 checkpoint of `family` to `path` and return it.

    With a tokenizer the vocabulary must hold at least 256 bytes + 5 special tokens. `changes` override
    config fields; `shard` is transformers' max_shard_size.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**tiny_config(family, vocab=vocab, layers=layers, hidden=hidden, **changes))
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    randomise(model, seed)
    model.save_pretrained(path, max_shard_size=shard)
    if with_tokenizer:
        save_tokenizer(path, vocab)
    return path


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int) -> None:
    """Weights for which every tensor matters: unit-variance matrices, norms and biases away from 1 and 0."""
    stream = torch.Generator().manual_seed(seed)
    for _, weight in sorted(model.named_parameters()):
        noise = torch.randn(weight.shape, generator=stream)
        if weight.dim() == 2:
            weight.copy_(noise * weight.shape[1] ** -0.5)
        else:
            weight.add_(0.2 * noise)
    for name, numbers in sorted(model.named_buffers()):
        if name.endswith(("bias", "layer_scalar")):  # of routers, added where experts are chosen; of layers
            numbers.add_(0.2 * torch.randn(numbers.shape, generator=stream))


def save_tokenizer(path: Path, vocab: int) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained(vocab), bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)


@cache
def letters(alphabet: str) -> Any:
    """A byte-level tokenizer whose tokens are these characters, in order; `.` stands for the end of sequence."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {"<eos>" if letter == "." else letter: i for i, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


@cache
def trained(vocab: int) -> Any:
    """A byte-level BPE of at most `vocab` entries, trained on CORPUS; the special tokens come first."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS], trainer)
    assert tokenizer.get_vocab_size() <= vocab, f"vocabulary {vocab} is too small for 256 bytes and specials"
    return tokenizer
