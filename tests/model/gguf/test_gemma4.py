"""Gemma 4 in GGUF, of every published shape, and its tokenizer; experts whose gates and ups lie in one tensor."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from paceline.core.errors import CheckpointError
from paceline.engine.text import Text
from paceline.model.checkpoint import read_config
from paceline.model.load import load_model
from tests.model.gguf import files
from tests.model.gguf.files import write_gguf
from tests.model.gguf.test_models import TOLERANCE, logits
from tests.model.gguf.tiny_files import OTHERS
from tests.oracle.cases import Oracle, text
from tests.tiny import CORPUS, tiny_checkpoint

EVERY = OTHERS["gemma4_text"]
SHAPES: dict[str, dict[str, Any]] = {
    "E2B": {"enable_moe_block": False, "attention_k_eq_v": False, "num_global_key_value_heads": None},
    "31B": {"enable_moe_block": False, "num_kv_shared_layers": 0, "use_double_wide_mlp": False,
            "hidden_size_per_layer_input": 0},
    "26B": {"num_kv_shared_layers": 0, "use_double_wide_mlp": False, "hidden_size_per_layer_input": 0},
}  # fmt: skip


def checkpoint(path: Path, **changes: Any) -> Path:
    return tiny_checkpoint(path, "gemma4_text", vocab=96, with_tokenizer=False, **{**EVERY, **changes})


@pytest.mark.parametrize("shape", SHAPES)
def test_published_shapes(shape: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path, **SHAPES[shape])
    file = write_gguf(tmp_path / "model.gguf", path)
    torch.testing.assert_close(logits(file, text(1)), Oracle(path).logits(text(1)), rtol=TOLERANCE, atol=TOLERANCE)
    plain = {"eos": (), "token_vocab": 0}
    assert replace(read_config(file), **plain) == replace(read_config(path), **plain)
    with pytest.raises(CheckpointError, match="partial_rotary_factor"):
        read_config(checkpoint(tmp_path / "partial", partial_rotary_factor=0.5))


def test_four_bits_are_the_dequantised_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gguf import dequantize
    from gguf.quants import quantize

    path, kinds = checkpoint(tmp_path, hidden=64, moe_intermediate_size=32), {"exps": Kind.Q4_0, "attn_q.": Kind.Q8_0}
    stored = logits(write_gguf(tmp_path / "stored.gguf", path, others=kinds), text(1))
    monkeypatch.setattr(files, "quantize", lambda data, kind: dequantize(quantize(data, kind), kind))
    add = files.GGUFWriter.add_tensor
    monkeypatch.setattr(files.GGUFWriter, "add_tensor", lambda self, name, data, raw_dtype=None: add(self, name, data))
    assert torch.equal(stored, logits(write_gguf(tmp_path / "wide.gguf", path, others=kinds), text(1)))


def rewritten(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Files get what `change` makes of a name and its numbers: a list of both."""
    add = files.GGUFWriter.add_tensor

    def added(self: Any, name: str, data: Any, raw_dtype: Any = None) -> None:
        for one, numbers in change(name, data):
            add(self, one, numbers, raw_dtype=raw_dtype)

    monkeypatch.setattr(files.GGUFWriter, "add_tensor", added)


def test_experts_in_two_tensors_and_keys_that_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gates and ups apart; keys and values also in layers that read those of others."""
    path = checkpoint(tmp_path)
    expected = logits(write_gguf(tmp_path / "one.gguf", path), text(1))

    def change(name: str, data: Any) -> list[tuple[str, Any]]:
        if "gate_up_exps" in name:
            gate, up = np.split(data, 2, 1)
            return [(name.replace("gate_up", "gate"), gate.copy()), (name.replace("gate_up", "up"), up.copy())]
        more = [(name.replace("attn_q", "attn_k"), data)] if name == "blk.4.attn_q.weight" else []
        return [(name, data), *more]

    rewritten(monkeypatch, change)
    assert torch.equal(logits(write_gguf(tmp_path / "two.gguf", path), text(1)), expected)


def test_gates_and_ups_of_any_mixture_in_one_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_checkpoint(tmp_path, "qwen3_moe", vocab=96, with_tokenizer=False, layers=2, hidden=64,
                           moe_intermediate_size=32, **OTHERS["qwen3_moe"])  # fmt: skip
    kept = dict[str, Any]()
    expected = [logits(write_gguf(tmp_path / f"{it}.gguf", path, it), text(1)) for it in (Kind.F32, Kind.Q4_0)]

    def change(name: str, data: Any) -> list[tuple[str, Any]]:
        if "_gate_exps" in name:
            kept[name] = data
            return [(name.replace("gate", "gate_up"), np.concatenate((data, kept.pop(name.replace("gate", "up"))), 1))]
        if "_up_exps" in name:
            kept[name] = data
            return []
        return [(name, data)]

    order = files.laid_out

    def ups_first(config: dict[str, Any], weights: Any) -> Any:
        return dict(sorted(order(config, weights).items(), key=lambda it: "gate_proj" in it[0]))

    monkeypatch.setattr(files, "laid_out", ups_first)
    rewritten(monkeypatch, change)
    for kind, wanted in zip((Kind.F32, Kind.Q4_0), expected):
        assert torch.equal(logits(write_gguf(tmp_path / "one.gguf", path, kind), text(1)), wanted)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"attention.sliding_window_pattern": None}, "sliding_window_pattern"),
        ({"attention.sliding_window_pattern": [True] * 5}, "last layer slide"),
        ({"attention.shared_kv_layers": 5}, "leaves no layer"),
        ({"attention.shared_kv_layers": 4, "feed_forward_length": 64}, "leaves no layer"),
        ({"attention.value_length": 8}, "value_length"),
        ({"rope.dimension_count_swa": 4}, "dimension_count_swa"),
        ({"attention.head_count_kv": [2, 1, 2, 1]}, "each of the 5 layers"),
        ({"attention.head_count_kv": [2, 1, 1, 1, 1]}, "layers of one kind"),
        ({"feed_forward_length": [64, 64, 64, 64, 128]}, "feed_forward_length"),
        ({"expert_count": None}, "no experts"),
        ({"attention.scale": 0.5}, "not known here"),
        ({"embedding_length_per_layer_input": 5}, "shape"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path)
    file = write_gguf(tmp_path / "bad.gguf", path, **{f"gemma4.{key}": it for key, it in changes.items()})
    with pytest.raises(CheckpointError, match=told):
        load_model(file, dtype="float32", cache=False)


def test_its_tokenizer(tmp_path: Path) -> None:
    """Against transformers' own, with byte tokens for what the vocabulary lacks."""
    from tokenizers import Tokenizer, models, normalizers, trainers
    from transformers import GemmaTokenizer

    special = [
        "<pad>",
        "<eos>",
        "<bos>",
        "<unk>",
        "<turn|>",
        "<|tool_response>",
        *(f"<0x{it:02X}>" for it in range(256)),
    ]
    trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False, special_tokens=special)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.train_from_iterator([CORPUS.replace("東", "")], trainer)
    content = json.loads(tokenizer.to_str())["model"]
    words = sorted(content["vocab"], key=content["vocab"].__getitem__)
    theirs = GemmaTokenizer(vocab=content["vocab"], merges=[tuple(it) for it in content["merges"]])
    changes = {**EVERY, "vocab_size_per_layer_input": 512}
    path = tiny_checkpoint(tmp_path, "gemma4_text", vocab=512, with_tokenizer=False, **changes)
    kinds = [3 if at < 5 else 4 if at == 5 else 6 if at < 262 else 1 for at in range(len(words))]
    file = write_gguf(tmp_path / "model.gguf", path, **{
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": [-1000.0] * len(words),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in content["merges"]],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": True,
    })  # fmt: skip
    ours = Text(file)
    for line in [*CORPUS.splitlines(), CORPUS, " two  spaces\n\n\n\ttab", "東京 ☃", ""]:
        expected = theirs.encode(line, add_special_tokens=False)
        assert ours.encode(line) == [2, *expected]
        assert ours.decode(expected) == theirs.decode(expected) == line
    assert {*ours.eos()} == {1, 4, 5}
