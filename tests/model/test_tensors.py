"""A model that is cut over two processes says what one process says."""

import os
from pathlib import Path

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.core.errors import InputError, LostError, RefusalError
from paceline.core.rows import RowsBuilder
from paceline.model.decoder import Decoder
from paceline.model.load import load_model, load_whole
from paceline.model.spread.tensors import cut_model
from tests.tiny import tiny_checkpoint

FORM = {"dtype": "float64", "device": "cpu", "max_len": None, "quantize": None}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "qwen2")


def passes(model: Decoder) -> list[torch.Tensor]:
    """A prompt, then a tree, behind a move; and what its slots hold."""
    model.allocate(8, 4)
    builder = RowsBuilder()
    builder.add([3, 4, 5, 6, 7], [0, 1, 2, 3, 4], [0, 1], 0)
    first = model.forward(builder.build()).logits
    model.move([0, 1, 2, 3, 4], [8, 9, 10, 11, 12])
    model.write([20, 21], model.read([8, 9]))
    tree = RowsBuilder()
    tree.add([6, 7, 8], [13, 14, 15], [2, 3], 5, depths=[1, 2], words=[1, 3], want=[0, 1, 2])
    out = model.forward(tree.build(taps=("input:1", "post_norm")))
    held = torch.frombuffer(bytearray(model.read([8, 13, 20])), dtype=torch.uint8)
    return [first, out.logits, *out.taps.values(), held]


def test_two_processes_equal_one(checkpoint: Path) -> None:
    """Logits, hidden states, keys and values."""
    one, two = load_whole(checkpoint, Decoder, **FORM), cut_model(checkpoint, 2, FORM)
    try:
        for mine, theirs in zip(passes(two), passes(one), strict=True):
            if mine.dtype is torch.uint8:
                mine, theirs = mine.view(torch.float64), theirs.view(torch.float64)
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
        assert two.pools[0].slots.shape[2] == one.pools[0].slots.shape[2] // 2
        with pytest.raises(RefusalError, match="Adapters and tensor_parallel"):
            two.adapt()
    finally:
        assert two.spread is not None
        two.spread.close()


def test_an_engine_says_the_same(checkpoint: Path) -> None:
    """Prompts, drafts, a parked request that goes on; the draft model is in this process alone."""
    texts = []
    for ranks in (1, 2):
        llm = LLM(
            checkpoint, checkpoint, dtype="float32", blocks=64, block_size=4, drafter="topk", tensor_parallel=ranks
        )
        params = SamplingParams(temperature=0.7, seed=3, max_tokens=12)
        texts.append([out.token_ids for out in llm.generate(["Tom has 3 apples", "def add(a, b):"], params)])
        llm.close()
    assert texts[0] == texts[1]


def test_a_process_that_dies_is_named(checkpoint: Path) -> None:
    model = cut_model(checkpoint, 2, FORM)
    model.allocate(8, 4)
    assert model.spread is not None
    model.spread.processes[0].kill()
    model.spread.processes[0].wait()
    with pytest.raises(LostError, match=r"Process 1 of 2 of the model has ended \(exit code -9\)"):
        passes(model)
    with pytest.raises(LostError, match="has ended"):
        passes(model)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tensor_parallel": 0}, "must be 1 to 64"),
        ({"tensor_parallel": 3}, "heads"),
        ({"tensor_parallel": 2, "expert_parallel": 2}, "expert_parallel cannot be combined"),
        ({"tensor_parallel": 2, "quantize": "int8", "dtype": "bfloat16"}, "quantize on a CPU cannot be combined"),
        ({"tensor_parallel": 2, "schedule": "layered"}, "schedule layered cannot be combined"),
    ],
)
def test_what_cannot_be_is_refused(checkpoint: Path, given: dict, words: str) -> None:
    with pytest.raises((InputError, RefusalError), match=words):
        LLM(checkpoint, blocks=64, **{"dtype": "float32", **given})


def test_layers_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match="mixtral"):
        LLM(tiny_checkpoint(tmp_path, "mixtral"), blocks=64, dtype="float32", tensor_parallel=2)


def test_kernels_give_the_same_bits(checkpoint: Path) -> None:
    """By Triton's interpreter: an output has the same bits in a part of its matrix."""
    pytest.importorskip("triton", reason="Triton is not installed; it comes with torch for CUDA")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("TRITON_INTERPRET is not 1")
    form = {**FORM, "dtype": "float32", "device": "cuda"}
    one, two = load_model(checkpoint, dtype="float32", device="cuda"), cut_model(checkpoint, 2, form)
    try:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(passes(two), passes(one), strict=True))
    finally:
        assert two.spread is not None
        two.spread.close()
