"""Models by a short name: a target and perhaps a draft of the same tokenizer, with what they take."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """`model` and `draft` are hub ids. Millions of parameters: `size`, `draft_size`; `bytes` is what is downloaded."""

    model: str
    licence: str
    size: int
    bytes: int
    draft: str | None = None
    draft_size: int = 0
    about: str = ""
    head: str = ""
    """Directory next to the bundled pair with a head for this model, its draft by default."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """The authors' advice on sampling, by the names of generation_config.json; the checkpoint's own goes first."""

    @property
    def memory(self) -> int:
        """Bytes of both in bfloat16, with half a gigabyte for K/V cache and scratch."""
        return 2_000_000 * (self.size + self.draft_size) + (1 << 29)


GB = 10**9
QWEN25 = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}
QWEN3 = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
SMOLLM2 = {"temperature": 0.2, "top_p": 0.9}
CATALOGUE: dict[str, CatalogueEntry] = {
    "smollm2": CatalogueEntry(
        "HuggingFaceTB/SmolLM2-135M-Instruct", "Apache-2.0", 135, 269_000_000, head="smollm2-head",
        about="short answers, on any machine", sampling=SMOLLM2,
    ),
    "smollm2-1.7b": CatalogueEntry(
        "HuggingFaceTB/SmolLM2-1.7B-Instruct", "Apache-2.0", 1711, 37 * GB // 10,
        "HuggingFaceTB/SmolLM2-135M-Instruct", 135, "small chat model", sampling=SMOLLM2,
    ),
    "qwen2.5-coder-1.5b": CatalogueEntry(
        "Qwen/Qwen2.5-Coder-1.5B-Instruct", "Apache-2.0", 1544, 41 * GB // 10,
        "Qwen/Qwen2.5-Coder-0.5B-Instruct", 494, "code",
        sampling={**QWEN25, "repetition_penalty": 1.1},
    ),
    "qwen2.5-7b": CatalogueEntry(
        "Qwen/Qwen2.5-7B-Instruct", "Apache-2.0", 7616, 162 * GB // 10,
        "Qwen/Qwen2.5-0.5B-Instruct", 494, "chat, many languages", sampling=QWEN25,
    ),
    "qwen3-1.7b": CatalogueEntry(
        "Qwen/Qwen3-1.7B", "Apache-2.0", 2032, 56 * GB // 10, "Qwen/Qwen3-0.6B", 752, "reasoning, tools",
        sampling=QWEN3,
    ),
    "qwen3-4b": CatalogueEntry(
        "Qwen/Qwen3-4B", "Apache-2.0", 4022, 96 * GB // 10, "Qwen/Qwen3-0.6B", 752, "reasoning, tools",
        sampling=QWEN3,
    ),
    "llama-3.2-3b": CatalogueEntry(
        "meta-llama/Llama-3.2-3B-Instruct", "Llama 3.2 (ask on the hub)", 3213, 89 * GB // 10,
        "meta-llama/Llama-3.2-1B-Instruct", 1236, "chat",
        sampling={"temperature": 0.6, "top_p": 0.9},
    ),
    "gemma-3-1b": CatalogueEntry(
        "google/gemma-3-1b-it", "Gemma (ask on the hub)", 1000, 26 * GB // 10, "google/gemma-3-270m-it", 268, "chat",
        sampling={"temperature": 1.0, "top_k": 64, "top_p": 0.95},
    ),
}  # fmt: skip
"""`paceline pull NAME`; as --model NAME the draft comes along."""


def recommended(model: object) -> dict[str, float]:
    """The sampling that the authors of a model of the catalogue advise, by its short name or hub id."""
    entry = CATALOGUE.get(str(model)) or next((e for e in CATALOGUE.values() if e.model == str(model)), None)
    return {} if entry is None else dict(entry.sampling)
