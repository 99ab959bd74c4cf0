"""Tiny random checkpoints in Hugging Face layout, one per family, for every test that needs a real model."""

from functools import cache
from pathlib import Path
from typing import Any

import torch

from tests.tiny_more import MORE

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
