"""A draft of the same tokenizer whose logits are padded differently, and the tokenizer's own end of a turn."""

import json
from pathlib import Path

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.engine.text import Text
from paceline.model.load import load_model
from tests.oracle.rows import feed
from tests.tiny import save_tokenizer, tiny_checkpoint

TOKENS, TARGET = 300, 320
PROMPT = "Tom has 3 apples"


def padded(path: Path, vocab: int, seed: int, **changes: bool) -> Path:
    """Model with `vocab` logits, of which the tokenizer knows TOKENS."""
    checkpoint = tiny_checkpoint(path, "qwen3", vocab=vocab, seed=seed, with_tokenizer=False, **changes)
    save_tokenizer(checkpoint, TOKENS)
    return checkpoint


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return padded(tmp_path_factory.mktemp("target"), TARGET, 1)


@pytest.mark.parametrize("vocab", [TOKENS, 310, 352])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_fitted_draft(vocab: int, tied: bool, dtype: str, tmp_path: Path) -> None:
    """What the tokenizer knows has the logits of before, to the bit; the rest cannot be drawn."""
    path = padded(tmp_path, vocab, 2, tie_word_embeddings=tied)
    known = Text(path).size
    assert known <= TOKENS
    logits = []
    for vocabulary in (None, (TARGET, known)):
        decoder = load_model(path, dtype=dtype, vocabulary=vocabulary)
        decoder.allocate(4, 16)
        logits.append(feed(decoder, [5, 6, 7, 250, 9], [0], 16, [2]))
    plain, fitted = logits
    assert fitted.shape[1] == TARGET and torch.equal(fitted[:, :known], plain[:, :known])
    assert float(fitted[:, known:].max()) < -1e29
    assert feed(decoder, [TARGET - 1, 5], [1], 16, []).isfinite().all()


@pytest.mark.parametrize(("vocab", "drafter"), [(310, "model"), (352, "model"), (352, "topk"), (310, "rsd_c")])
def test_the_text_is_the_targets(target: Path, vocab: int, drafter: str, tmp_path: Path) -> None:
    draft = padded(tmp_path, vocab, 1)
    llm = LLM(target, draft, drafter=drafter, dtype="float32", memory="100M", check=True)
    for temperature in 0.0, 1.0:
        plain, drafted = (
            SamplingParams(temperature=temperature, max_tokens=24, seed=3, ignore_eos=True, drafter=name)
            for name in ("none", drafter)
        )
        outs = [llm.generate(PROMPT, params, progress=False)[0] for params in (plain, drafted)]
        assert outs[0].token_ids == outs[1].token_ids and outs[1].stats.drafted > 0


def test_another_tokenizer_is_refused(target: Path, tmp_path: Path) -> None:
    from paceline.core.errors import RefusalError

    draft = tiny_checkpoint(tmp_path, "qwen3", vocab=TARGET, with_tokenizer=False)
    save_tokenizer(draft, 280)
    with pytest.raises(RefusalError, match="another vocabulary"):
        LLM(target, draft, "model", dtype="float32", memory="100M")


@pytest.mark.parametrize("listed", [2, [2], None])
def test_the_tokenizers_own_end_ends_a_turn(listed: object, tmp_path: Path) -> None:
    """generation_config.json lists another token alone, and the chat template ends turns with the tokenizer's."""
    path = tiny_checkpoint(tmp_path, "llama")
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": listed}))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"eos_token_id": 2}))
    text = Text(path)
    assert {*text.eos()} == {1, 2} and text.tokenizer.eos_token_id == 1
    llm = LLM(path, dtype="float32", memory="100M", drafter="none")
    params = SamplingParams(temperature=0, max_tokens=8, logit_bias={1: 100.0})
    assert llm.generate(PROMPT, params, progress=False)[0].outputs[0].finish_reason == "stop"
