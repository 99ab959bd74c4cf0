"""One tiny checkpoint per special feature of a family, and transformers' own model of each as the oracle."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.model.decoder import Decoder
from paceline.model.load import load_model
from tests.tiny import tiny_checkpoint

VOCAB = 96
BLOCK = 4
LENGTH = 40
BLOCKS = 64


@dataclass(frozen=True)
class Case:
    family: str
    changes: dict[str, Any] = field(default_factory=dict)
    max_len: int | None = None


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONG = {
    "original_max_position_embeddings": 8,
    "rope_parameters": {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.1 * i for i in range(4)],
        "long_factor": [2.0 + 1.5 * i for i in range(4)],
    },
}
WIDE = {"original_max_position_embeddings": 48, "rope_parameters": LONG["rope_parameters"]}

CASES = {
    "llama": Case("llama"),
    "llama-biases": Case(
        "llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 6, "tie_word_embeddings": True}
    ),
    "llama-linear": Case("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    "llama-llama3": Case("llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": Case("llama", {"rope_parameters": YARN}),
    "llama-yarn-mscale": Case("llama", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}}),
    "llama-wide-heads": Case("llama", {"num_key_value_heads": 4}),
    "mistral": Case("mistral"),
    "mistral-full": Case("mistral", {"sliding_window": None}),
    "qwen2": Case("qwen2"),
    "qwen2-unwindowed": Case("qwen2", {"use_sliding_window": False, "tie_word_embeddings": False}),
    "qwen3": Case("qwen3"),
    "qwen3-yarn": Case("qwen3", {"rope_parameters": YARN | {"attention_factor": 1.3, "truncate": False}}),
    "phi3": Case("phi3"),
    "phi3-partial": Case("phi3", {"partial_rotary_factor": 0.5, "sliding_window": None}),
    # transformers decides by the text's length: all texts here lie beyond 8, and within 48
    "phi3-longrope-long": Case("phi3", LONG),
    "phi3-longrope-short": Case("phi3", WIDE, max_len=48),
    "gemma2": Case("gemma2"),
    "gemma2-uncapped": Case("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3": Case("gemma3"),
    "gemma3-linear": Case(
        "gemma3",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        },
    ),
}


def write(path: Path, case: Case, **options: Any) -> Path:
    return tiny_checkpoint(
        path, case.family, vocab=VOCAB, with_tokenizer=False, **{"layers": 3, **case.changes}, **options
    )


def load(path: Path, case: Case, dtype: str = "float32", fast: bool = True) -> Decoder:
    decoder = load_model(path, dtype=dtype, max_len=case.max_len, fast=fast)
    decoder.allocate(BLOCKS, BLOCK)
    return decoder


class Oracle:
    """Transformers' model of a checkpoint, eager attention, float32."""

    def __init__(self, path: Path, dtype: torch.dtype = torch.float32) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").eval()

    @torch.no_grad()
    def logits(self, tokens: list[int]) -> Tensor:
        logits: Tensor = self.model(torch.tensor([tokens])).logits[0]
        return logits.float()

    @torch.no_grad()
    def hidden(self, tokens: list[int]) -> list[Tensor]:
        """Inputs of the layers, then the final hidden states after the last norm."""
        return [h[0] for h in self.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states]


def text(seed: int, length: int = LENGTH) -> list[int]:
    stream = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (length,), generator=stream).tolist()
