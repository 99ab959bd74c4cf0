"""`docs/models.md` from the tables: `python -m tests.model.models_page > docs/models.md`."""

from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Any

from paceline.model.catalogue import CATALOGUE
from paceline.model.checkpoint import DTYPES
from paceline.model.families import FAMILIES
from paceline.model.family import Family
from paceline.model.gguf.architectures import ARCHITECTURES
from paceline.model.gguf.pretokenizers import PRE_TOKENIZERS
from paceline.model.gguf.types import SERVED
from paceline.model.quantised import QUANTISERS
from paceline.model.read_spec import read_spec
from paceline.model.recognise import WITH_PICTURES
from tests.tiny import FAMILIES as TINY
from tests.tiny import MORE, tiny_config

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
TOP = """\
# Models

What is served, printed from the tables that serve it. `--model` (and `--draft`) take a directory in Hugging Face
layout, a GGUF file, `owner/name` or `owner/name:FILE.gguf` of the hub, or a name of the catalogue below.

## Families

A family is one entry of data in `model/families*.py`; each is tested against transformers. *Native*: the native decoder
computes its layers (bfloat16, `--quantize`); the others are computed by PyTorch in every dtype, and in 8 and 4 bits
(`--quantize`, or as a checkpoint has them) with each matrix's product a native call. Encoders write no
text: `paceline serve` offers their vectors and scores ([server.md](server.md#encoders)), everything else refuses them.

DeepSeek's latent attention (MLA) keeps one vector for each token and layer, which all heads share; what would make keys
and values of it is multiplied into queries and results. Gemma 4 keeps keys and values of two shapes, and its last
layers read those of others, so drafters that leave layers out are refused for it.

In a mixture of experts each expert's weights are read once a pass, for all rows that use it; its router stays in
float32. `ministral3` and `mistral4` are served up to the length of their first training, where their rule for longer
texts changes nothing, and so are rotations that are scaled as a text grows (`dynamic`: InternLM 3). `llama4` is served
up to one chunk of its attention (8191 tokens of the published models), where neither chunks nor its rule for longer
texts change anything. `phimoe` is rotated
by its long factors unless `--max-model-len` is at most the length of its first training, as its authors' code has it
for long texts; transformers takes the short ones at any length, so its results differ there. `kimi_k2` is `deepseek_v3`
under another name. A setting or a tensor that would change the text is used or refused, never left out in silence.
`paceline info --model DIR` with a config.json alone says whether a model is served and what it would take.

Of checkpoints that read pictures or hear, too, the text's model is served, without the tower:{pictures}.

Layers with a *state* read a text through numbers that do not grow with it: short convolutions, Mamba-2, the gated delta
rule. Such a state may take many megabytes (Granite 4, Falcon-H1, Nemotron, Qwen3-Next, Qwen 3.5: 20 to 100). A text has
one or two at a time; candidates of a draft keep what they bring to it, some kilobytes each, and what was accepted is
read again in the next pass. One more lies with each block of the cache, whose size grows with the state until that is
64 KiB a token at most (`--block-size` is the least size). So shared prefixes bring their state along, in whole blocks;
to rewind or fork a text goes back to the end of a block and computes the rest again. The memory budget counts all of
it. `--state-memory 2G` keeps no more states than fit in 2 GB, and leaves blocks as small as they are: behind every n-th
block, behind the last block of a prompt, and where two texts part. When the budget is full, the one that was used
longest ago goes, and one that several texts went on from stays longer. A prefix then ends where a state is kept. Such
an engine keeps no K/V on disk, and reads a parked text again. Every drafter that is not named below drafts for them,
and a tree is verified in one pass: natively path by path, each row once; in PyTorch by the tree's own mask over decays
(Mamba-2, STree) or one triangular solve (the gated delta rule). Drafters that run a part of the model's layers
(`swift`, `early_exit`, `del`), and joins, are refused for such models.

Checkpoints of Qwen3-Next and Qwen 3.5 may bring a layer for further tokens along (`mtp.*`). It becomes the drafter
`mtp`, which `auto` tries by itself; with a draft model it is left out, and that of EXAONE 4.5 always.

| model type | architecture | native | as GGUF | departs from llama by |
|---|---|---|---|---|
"""
PARTS = {
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text"), "qwen2"),
    "glm4v_text": "glm4",
    "gemma4_unified_text": "gemma4_text",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "mistral4": "deepseek_v3",
}
"""Parts of models that read pictures, and the families that their layers are like."""
SHARED_ARCHITECTURES = {
    "mistral": "`llama`, `mistral3`",
    "mixtral": "`llama`",
    "deepseek_v2": "`deepseek2`",
    "glm4_moe_lite": "`deepseek2`",
    "youtu": "`deepseek2`",
}
"""Families whose GGUF files have an architecture that stands for others, too."""
SAFETENSORS = """- **Safetensors** in {dtypes}. Checkpoints that are quantised already, by `quant_method`: {methods}.
Groups of 4 and 8 bits are kept as they are, MXFP4 by its table; act-order (`desc_act`, `actorder`) is
undone exactly, and such weights, like FP8, take the model's dtype; NVFP4 is rounded to 8.5 bits. What cannot be kept is
refused by name."""
GGUF = """- **GGUF** of versions 2 and 3, in one file or split; tensors of the types {types}. Tokenizer, chat template,
special tokens, what ends a text and sampling defaults come from the file. A byte-pair tokenizer names how it cuts
words; known are {cuts}."""
FORMATS = """
## Formats

{formats}
- **What is quantised already keeps its own bits** where there is the native library and the dtype is bfloat16 (where
  *native* says no, PyTorch computes what lies between the products): types of 4 to 8 bits lie in memory in as many
  bits as in the file or up to 3 % more, IQ4 and MXFP4 by their tables; Q3_K takes 4.6 bits, Q2_K is rounded to 8.5,
  the few matrices that are stored as floats to 8.5, and activations are in 8 bits. `paceline info` prints what a pass
  reads and what the file holds.
  `--quantize none` widens all to the dtype, `--quantize int8` quantizes again; `paceline info` says what is done.
- Packed weights of models above 64 MB are kept under `$PACELINE_CACHE/packed` (default `~/.cache/paceline/packed`)
  for a quick start the next time: `--no-weights-cache` leaves that out, `paceline pack` does it beforehand, `paceline
  rm packed` removes them.

## Memory, and how fast a pass can be

A pass at batch 1 reads every weight once, so it takes at least their bytes divided by the memory's bandwidth: plain
decoding makes no more tokens a second than the number given, for each 10 GB/s. Speculation commits several tokens a
pass (tau; `paceline bench`). Weights alone: add K/V cache and scratch (`paceline info`).

| parameters | bfloat16 | tokens/s for 10 GB/s | int8 | tokens/s for 10 GB/s |
|--:|--:|--:|--:|--:|
"""
NAMES = """
## By name

`paceline pull NAME` fetches a model and its draft, `paceline list` shows what is here, `paceline rm NAME` removes it.
`--model NAME` takes the draft along. SmolLM2 also comes out of a package where only a package index can be reached.

| name | model | draft | licence | download | memory (bfloat16) | for |
|---|---|---|---|--:|--:|---|
"""
SIZES = (135, 500, 1500, 3000, 8000, 14000)
"""Millions of parameters."""


def departures(family: Family) -> str:
    """In a few words, by the fields of its entry."""
    names, plain = family.names, Family("")
    said = {
        "a mixture of experts": family.experts,
        "short convolutions with a state": family.conv,
        "Mamba-2 with a state": family.mamba,
        "the gated delta rule with a state": family.delta,
        "attention next to it": family.multiplied,
        "no feed-forward": family.feedless,
        "feed-forward layers of their own": family.apart,
        "gated attention": family.gated_attention,
        "latent keys and values": family.latent,
        "two sizes of heads, shared keys and values": family.varied,
        "embeddings by layer": family.varied and family.experts,
        "biases": family.qkv_bias or family.out_bias or family.mlp_bias,
        "q/k norms": family.qk_norm,
        "over all heads": family.whole_norm,
        "behind the rotation": family.norm_turned,
        "no pre norms": not names.attention_norm,
        "post norms": names.attention_post_norm,
        "layer norms": family.layer_norm,
        "parallel feed-forward": family.parallel,
        "ungated feed-forward": family.ungated,
        "sliding windows": family.window,
        "sinks": family.sinks,
        "layers without rotation": family.unrotated or family.turned is not None,
        "pairs side by side": family.interleaved,
        "scaled embeddings": family.embedding_scaled or family.embedding_scale,
        "scaled residuals": family.residual_scale,
        "scaled scores": family.attention_scale or family.score_scale,
        "scaled logits": family.logit_scale,
        "soft caps": family.attention_softcap or family.logit_softcap,
        "fused matrices": len(names.qkv) < 3 or (len(names.gate_up) < 2 and not family.ungated and not family.feedless),
        "norms about 1": family.norm_offset != plain.norm_offset,
    }
    return ", ".join(word for word, is_so in said.items() if is_so) or "nothing"


def native(model_type: str) -> str:
    """Does the native decoder compute it, also with the norms that a few of the family's models have?"""
    from transformers import AutoConfig

    tiny: dict[str, dict[str, Any]] = {**TINY, **MORE}
    model_type = PARTS.get(model_type, model_type)
    name = next(name for name, case in tiny.items() if case["model_type"] == model_type)
    spec = read_spec(AutoConfig.for_model(**tiny_config(name)))
    if not spec.common:
        return "no"
    at_times = isinstance(FAMILIES[spec.family].qk_norm, str)
    return "yes, without q/k norms" if at_times and not replace(spec, qk_norm=True).common else "yes"


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f} GB"


def wrapped(item: str) -> str:
    return fill(item, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def page() -> str:
    lines = [TOP.replace("{pictures}", "\n" + fill(", ".join(f"`{it}`" for it in sorted(WITH_PICTURES)), 118))]
    archs: dict[str, list[str]] = {}
    for name, arch in ARCHITECTURES.items():
        archs.setdefault(arch.model_type, []).append(f"`{name}`")
    for kind, family in FAMILIES.items():
        files = ", ".join(archs.get(kind, [])) or SHARED_ARCHITECTURES.get(kind, "")
        lines.append(f"| `{kind}` | {family.architecture} | {native(kind)} | {files} | {departures(family)} |\n")
    safetensors = SAFETENSORS.format(dtypes=", ".join(DTYPES), methods=", ".join(QUANTISERS))
    gguf = GGUF.format(types=", ".join(kind.name for kind in SERVED), cuts=", ".join(PRE_TOKENIZERS))
    lines.append(FORMATS.format(formats=f"{wrapped(safetensors)}\n{wrapped(gguf)}"))
    for size in SIZES:
        half, whole = 2e6 * size, 1e6 * size
        cells = [gigabytes(half), f"{1e10 / half:.1f}", gigabytes(whole), f"{1e10 / whole:.1f}"]
        lines.append(f"| {size / 1000:g} B | {' | '.join(cells)} |\n")
    lines.append(NAMES)
    for name, entry in CATALOGUE.items():
        cells = [name, entry.model, entry.draft or "-", entry.licence, gigabytes(entry.bytes), gigabytes(entry.memory)]
        lines.append(f"| {' | '.join([*cells, entry.about])} |\n")
    return "".join(lines)


if __name__ == "__main__":
    print(page(), end="")
