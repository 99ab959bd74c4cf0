"""What a config says of its text: in `text_config`, next to it, or under another name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.core.errors import CheckpointError
from paceline.model.checkpoint import read_config
from paceline.model.families import FAMILIES
from paceline.model.load import load_model
from paceline.model.recognise import NEAREST, WITH_PICTURES, text_config
from tests.tiny import tiny_checkpoint, tiny_config


def rewrite(path: Path, config: dict[str, Any]) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("outer", WITH_PICTURES)
def test_tied_as_in_transformers(outer: str) -> None:
    """Whatever the outer config says, and the inner one, or not."""
    from transformers import CONFIG_MAPPING

    for said in (False, True):
        for inner in ({}, {"tie_word_embeddings": False}, {"tie_word_embeddings": True}):
            named = {"text_config": {"model_type": WITH_PICTURES[outer]} | inner}
            config = {"model_type": outer, "tie_word_embeddings": said} | named
            theirs = CONFIG_MAPPING[outer].from_dict(json.loads(json.dumps(config)))
            ours = CONFIG_MAPPING[WITH_PICTURES[outer]].from_dict(dict(text_config(config)))
            assert bool(getattr(ours, "tie_word_embeddings", False)) == theirs.tie_word_embeddings, (said, inner)


def test_an_older_name_of_the_key() -> None:
    config = {"model_type": "lfm2_vl", "text_config": {"model_type": "lfm2", "tie_embedding": True}}
    assert text_config(config | {"tie_embedding": False})["tie_embedding"] is False
    assert text_config(config | {"tie_word_embeddings": False})["tie_embedding"] is False
    assert "tie_word_embeddings" not in text_config(config)


def test_tied_inside_alone_has_no_head(tmp_path: Path) -> None:
    """As llava-onevision-qwen2-0.5b-ov is published; where the outer config decides, a head is missed."""
    path = tiny_checkpoint(tmp_path, "qwen2", vocab=96, with_tokenizer=False, tie_word_embeddings=True)
    inner = json.loads((path / "config.json").read_text())
    assert "lm_head.weight" not in load_file(path / "model.safetensors")
    whole = {"model_type": "llava_onevision", "text_config": inner, "tie_word_embeddings": False}
    assert read_config(rewrite(path, whole)).tied
    load_model(path, dtype="float32", cache=False)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        load_model(rewrite(path, whole | {"model_type": "llava_next"}), dtype="float32", cache=False)


@pytest.mark.parametrize("outer", ["qwen2_vl", "qwen2_5_vl", "glm4v", "qwen3_vl"])
def test_nothing_says_tied(outer: str, tmp_path: Path) -> None:
    """The text's own class has no such key: the default of its whole is false."""
    inner = tiny_config("qwen3" if outer == "qwen3_vl" else "qwen2") | {"model_type": WITH_PICTURES[outer]}
    inner.pop("tie_word_embeddings", None)
    assert not read_config(rewrite(tmp_path, {"model_type": outer, "text_config": inner})).tied


def test_exaone_as_it_is_released(tmp_path: Path) -> None:
    """The text under a name of its own, and a layer for further tokens."""
    kinds = ["sliding_attention", "full_attention"]
    path = tiny_checkpoint(tmp_path, "exaone4", vocab=96, with_tokenizer=False, layer_types=kinds)
    plain = json.loads((path / "config.json").read_text())
    expected = read_config(path)
    inner = plain | {"model_type": "exaone4_5_text", "layer_types": [*kinds, "full_attention"]}
    released = {"model_type": "exaone4_5", "text_config": inner, "tie_word_embeddings": False}
    weights = load_file(path / "model.safetensors")
    more = {"mtp.fc.weight": torch.ones(32, 64), "mtp.layers.0.self_attn.q_proj.weight": torch.ones(32, 32)}
    save_file(weights | more, path / "model.safetensors", {"format": "pt"})
    for config in (released, inner, released | {"num_nextn_predict_layers": 1}):
        assert read_config(rewrite(path, config)) == expected
        load_model(path, dtype="float32", cache=False)
    further = inner | {"layer_types": kinds * 2}
    refused = (
        released | {"num_nextn_predict_layers": 0},
        {"model_type": "exaone4_5", "text_config": further},
        inner | {"model_type": "exaone4"},
        {"model_type": "llava", "text_config": inner | {"model_type": "exaone4"}},
    )
    for config in refused:
        with pytest.raises(CheckpointError, match="layer_types"):
            read_config(rewrite(path, config))
    two = released | {"text_config": further, "num_nextn_predict_layers": 2}
    assert read_config(rewrite(path, two)) == expected
    with pytest.raises(CheckpointError, match=r"mtp\."):
        load_model(rewrite(path, plain), dtype="float32", cache=False)


def test_the_nearest_are_of_types_that_are_not_served() -> None:
    assert not {*NEAREST} & {*FAMILIES, *WITH_PICTURES} and {*NEAREST.values()} <= {*FAMILIES}
