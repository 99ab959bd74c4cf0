"""A number that is not finite reaches those rows alone that see it: PyTorch's layers, and an engine's requests."""

from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline import LLM, SamplingParams
from paceline.model.decoder import Decoder
from paceline.model.load import load_model
from tests.oracle.rows import Chunk, lay_out
from tests.tiny import tiny_checkpoint

VOCAB, BAD = 320, 0
FAMILIES = ("llama", "gpt_oss", "deepseek_v3", "qwen3_next", "bamba")
MORE = ("gemma3", "gemma4_text", "mixtral", "lfm2", "qwen3_5_text", "nemotron_h", "falcon_h1", "llama4_text")
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def spoilt(path: Path, family: str) -> Path:
    """A checkpoint whose token BAD has an embedding of NaN."""
    tiny_checkpoint(path, family, vocab=VOCAB, tie_word_embeddings=False)
    weights = load_file(path / "model.safetensors")
    name = next(name for name in weights if name.endswith(("embed_tokens.weight", "embeddings.weight")))
    weights.setdefault("lm_head.weight", weights[name].clone())
    weights[name][BAD] = float("nan")
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.mark.parametrize("family", [*FAMILIES, *(pytest.param(it, marks=pytest.mark.full) for it in MORE)])
def test_rows_that_see_none_are_unchanged(tmp_path: Path, family: str) -> None:
    """What an earlier text left in the blocks, a text of the same pass, a candidate, and a prompt's later tokens."""
    path, tokens = spoilt(tmp_path, family), [1 + 7 * n % (VOCAB - 1) for n in range(40)]
    for fast in (True, False):
        clean, spoiled = (passes(load_model(path, dtype="float64", fast=fast), tokens, it) for it in (1, BAD))
        for ours, theirs in zip(spoiled, clean, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def passes(decoder: Decoder, tokens: list[int], other: int) -> list[Tensor]:
    """Logits of rows that do not see the token `other`, which is around them everywhere."""
    decoder.allocate(32, 4)
    left = decoder.forward(lay_out([Chunk(range(16), 0, [other] * 60)], 4)).logits[:, 1:]
    assert left.isfinite().any() == (other != BAD)
    own = [Chunk(range(16), 0, tokens[:5]), Chunk(range(16), 5, tokens[5:11], tokens[20:24], [-1, 0, -1, 2])]
    own += [Chunk(range(16), 11, tokens[11:12], [other, tokens[20], tokens[21]], [-1, -1, 1])]
    own += [Chunk(range(16), 12, [*tokens[12:30], *[other] * 9])]
    found, base = list[Tensor](), 0
    for chunk in own:
        rows = len(chunk.given) + len(chunk.tree)
        mate = Chunk(range(16, 32), base, [other] * 3)
        made = decoder.forward(lay_out([chunk, mate], 4)).logits[:, 1:]
        assert made[rows:].isfinite().any() == (other != BAD)
        found.append(made[:rows])
        base += 3
    assert found[2][1].isfinite().any() == found[3][-9:].isfinite().any() == (other != BAD)
    return [found[0], found[1], found[2][[0, 2, 3]], found[3][:-9]]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_an_engine_serves_a_text_next_to_it(tmp_path: Path, dtype: Literal["bfloat16", "float32"]) -> None:
    """The draft model proposes nothing but such a token, and another request's prompt is one."""
    model, draft = spoilt(tmp_path / "model", "llama"), tiny_checkpoint(tmp_path / "draft")
    weights = load_file(draft / "model.safetensors")
    weights["model.norm.weight"].zero_()  # the first of equal logits is the token's
    save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
    prompts = [[5, 9, 200, 17, 33, 8, 9], [5, 9, BAD, 17], [60, 61, 62, 63, 64]]
    texts = []
    for drafter in (None, "model"):
        llm = LLM(model, draft, drafter=drafter, dtype=dtype, blocks=64, check=True, weights_cache=False)
        alone = [llm.generate([prompt], GREEDY, progress=False)[0].token_ids for prompt in (prompts[0], prompts[2])]
        together = llm.generate(prompts, GREEDY, progress=False)
        assert [together[0].token_ids, together[2].token_ids] == alone and together[1].finish_reason == "error"
        texts.append(alone)
    assert texts[0] == texts[1] and all(len(text) == 12 for text in texts[0])
