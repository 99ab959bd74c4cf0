"""Mixtures of experts natively: a row has the same bits whatever its batch mates' experts are, an expert is read once a
pass, and what is wrong with a mixture is named."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.core.errors import CheckpointError, RefusalError
from paceline.model.blocks import Mixture, routes
from paceline.model.decoder import Decoder
from paceline.model.footprint import footprint
from paceline.model.load import load_model
from paceline.model.lora import LoraPair, LoraWeights
from paceline.model.native import NativeDecoder
from paceline.model.spec import Experts
from paceline.native.build import library
from tests.model.test_footprint import held
from tests.oracle.cases import BLOCK, BLOCKS, text
from tests.oracle.rows import Chunk, feed, lay_out
from tests.tiny import tiny_checkpoint

MIXTURES = ("mixtral", "qwen2_moe", "glm4_moe", "gpt_oss")
"""Softmax over all; a gated shared expert; sigmoid, groups, a correction, shared experts and a dense first layer;
biases, sinks and clamped gates."""
FORMS = {"bfloat16": None, "int8": "int8", "int4": "int4"}
native = pytest.mark.skipif(library() is None, reason="no native library here")


def made(path: Path, family: str, **options: Any) -> Decoder:
    where = tiny_checkpoint(path, family, vocab=96, layers=3, hidden=64, with_tokenizer=False)
    decoder = load_model(where, cache=False, **options)
    decoder.allocate(BLOCKS, BLOCK)
    return decoder


@native
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", MIXTURES)
def test_a_row_has_the_same_bits_in_every_batch(family: str, form: str, tmp_path: Path) -> None:
    """Token by token, in chunks, whole, and beside texts that route elsewhere, one of them a tree."""
    decoder = made(tmp_path, family, quantize=FORMS[form])
    assert isinstance(decoder, NativeDecoder)
    tokens = text(1)
    whole = feed(decoder, tokens, range(10), BLOCK, [])
    for cuts in (list(range(1, 40)), [3, 20, 37]):
        assert torch.equal(feed(decoder, tokens, range(10), BLOCK, cuts), whole)
    feed(decoder, tokens[:36], range(10), BLOCK, [])
    others = [Chunk(range(20 + 10 * i, 30 + 10 * i), 0, text(5 + i, 33)) for i in range(3)]
    tree = Chunk(range(12), 36, tokens[36:37], [5, *tokens[37:40], 7], [-1, -1, 1, 2, 2])
    rows = lay_out([others[0], tree, *others[1:]], BLOCK)
    assert torch.equal(decoder.forward(rows).logits[33:][[0, 2, 3, 4]], whole[36:])


@native
def test_loads_are_those_of_the_routes(tmp_path: Path) -> None:
    """An expert is read once for all of its rows: as many loads as different experts, as many rows as routes."""
    decoder = made(tmp_path, "mixtral")
    assert isinstance(decoder, NativeDecoder)
    twin = load_model(tmp_path, fast=False, cache=False)
    twin.allocate(BLOCKS, BLOCK)
    tokens, seen = text(2), list[torch.Tensor]()
    mixtures = [block.ffn for block in twin.weights.blocks if isinstance(block.ffn, Mixture)]
    for mixture in mixtures:
        router = mixture.router

        def noted(x: torch.Tensor, router: Any = router, form: Experts = mixture.form) -> torch.Tensor:
            scores: torch.Tensor = router(x)
            seen.append(routes(form, scores, None)[1])
            return scores

        mixture.router = noted
    for cuts in ([], [1, 2, 3]):
        decoder.loads.zero_()
        seen.clear()
        feed(decoder, tokens, range(10), BLOCK, cuts)
        feed(twin, tokens, range(10), BLOCK, cuts)
        passes = len(cuts) + 1
        rows = torch.stack(
            [sum(torch.bincount(chosen.flatten(), minlength=4) for chosen in seen[i::3]) for i in range(3)]  # type: ignore[misc]
        )
        loads = torch.tensor([sum(len(chosen.unique()) for chosen in seen[i::3]) for i in range(3)])
        assert decoder.loads[:, :4].sum() == rows.sum() == 3 * 40 * 2
        assert (decoder.loads[:, :4] - rows).abs().sum() <= 6  # rounding may send a row to another expert
        assert (decoder.loads[:, 4] - loads).abs().sum() <= 2 and int(loads.max()) <= 4 * passes


def test_routes() -> None:
    """Groups, a correction that chooses but does not weigh, scale and floor, by hand."""
    scores = torch.tensor([[2.0, -1.0, 0.0, 1.0]])
    shares = scores.sigmoid()[0]
    plain = Experts(4, 2, 8, True, score="sigmoid", scale=3.0)
    weights, chosen = routes(plain, scores, None)
    assert chosen.tolist() == [[0, 3]]
    torch.testing.assert_close(weights[0], 3 * shares[[0, 3]] / shares[[0, 3]].sum())
    grouped = Experts(4, 2, 8, False, score="sigmoid", groups=2, active_groups=1, group_best=1)
    assert sorted(routes(grouped, scores, None)[1][0].tolist()) == [0, 1]  # 3 is outside the best group
    weights, chosen = routes(plain, scores, torch.tensor([0.0, 9.0, 0.0, 0.0]))
    assert sorted(chosen[0].tolist()) == [0, 1]
    torch.testing.assert_close(weights.sum(), torch.tensor(3.0))


@native
def test_memory_is_foretold(tmp_path: Path) -> None:
    for form in FORMS.values():
        decoder = made(tmp_path, "qwen2_moe", quantize=form)
        foretold = footprint(decoder.spec, decoder.packing, 2, 4, 1).weights
        assert held(decoder.weights) <= foretold <= 1.2 * held(decoder.weights)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9"),
        ({"n_group": 3}, "8 experts in 3 groups"),
        ({"topk_group": 1, "num_experts_per_tok": 3}, "do not give 3 experts"),
        ({"n_routed_experts": 16}, "experts.8.gate_proj.weight is missing"),
        ({"n_routed_experts": 4, "n_group": 1, "topk_group": 1}, "no place for"),
        ({"model_type": "glm6_moe"}, "nearest that is served is glm4_moe"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, "glm4_moe", vocab=96, layers=2, with_tokenizer=False)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | changes))
    if "n_routed_experts" in changes:  # the router's matrix would be missed first
        from safetensors.torch import load_file, save_file

        weights, count = load_file(path / "model.safetensors"), changes["n_routed_experts"]
        for name, it in weights.items():
            if "mlp.gate." in name:
                weights[name] = it.repeat(2, *[1] * (it.dim() - 1))[:count].contiguous()
        save_file(weights, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=said):
        load_model(path)


@native
@pytest.mark.parametrize("quantize", [None, "int4"])
def test_speculation_is_invisible(quantize: str | None, tmp_path: Path) -> None:
    """Texts of a native mixture, alone and together, under six drafters: bit for bit those of plain decoding."""
    target = tiny_checkpoint(tmp_path / "target", "qwen2_moe", hidden=64, seed=1)
    draft = tiny_checkpoint(tmp_path / "draft", "llama", seed=2, layers=1)
    llm = LLM(target, draft, memory="200M", block_size=4, check=True, nodes=8, quantize=quantize)
    prompts = ["one two three one two three one", "the cat sat on the mat and the cat", "a"]
    found = {}
    for drafter in ("none", "ngram", "suffix", "model", "topk", "ngram+topk", "dyspec"):
        params = SamplingParams(temperature=0.7, seed=7, max_tokens=20, drafter=drafter, ignore_eos=True)
        found[drafter] = [o.token_ids for o in llm.generate(prompts, params, progress=False)]
        alone = llm.generate(prompts[1], params, progress=False)[0].token_ids
        assert alone == found[drafter][1]
    assert not llm.engine.drafters.errors
    assert all(texts == found["none"] for texts in found.values())


@native
def test_adapters_of_experts_are_refused(tmp_path: Path) -> None:
    """One on the attention is served; the native decoder has no place for one on an expert."""
    decoder = made(tmp_path, "mixtral")
    assert isinstance(decoder, NativeDecoder)
    pair, at = LoraPair(torch.ones(2, 64), torch.ones(64, 2)), "model.layers.0."
    assert decoder.adapt().install(1, LoraWeights({f"{at}self_attn.q_proj": pair}, "0" * 32, 2)) > 0
    wide = LoraPair(torch.ones(2, 64), torch.ones(128, 2))
    with pytest.raises(RefusalError, match=r"experts\.3\.w1, a part of a mixture"):
        decoder.adapt().install(2, LoraWeights({f"{at}block_sparse_moe.experts.3.w1": wide}, "1" * 32, 2))
