"""The layer for further tokens that comes with a model: against transformers' own parts, and in an engine."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline import LLM, SamplingParams
from paceline.core.errors import CheckpointError, RefusalError
from paceline.draft.head import METHOD_KEY
from paceline.draft.mtp import Mtp, holds_head
from paceline.model.linear import plain
from paceline.model.load import load_model
from tests.model.gguf.files import write_gguf
from tests.oracle.rows import Chunk, lay_out
from tests.tiny import tiny_checkpoint

MIXED = ["linear_attention", "full_attention"]


def reference(path: Path, family: str) -> Any:
    """Norms, projection and decoder layer of such a head, of transformers' own classes, with weights far from zero."""
    from transformers import AutoConfig
    from transformers.models.qwen3_5 import modeling_qwen3_5 as dense
    from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as fused
    from transformers.models.qwen3_next import modeling_qwen3_next as mixed

    config = AutoConfig.from_pretrained(path)
    config._attn_implementation = "eager"
    layer, norm, rotary = {
        "qwen3_5_text": (dense.Qwen3_5DecoderLayer, dense.Qwen3_5RMSNorm, dense.Qwen3_5TextRotaryEmbedding),
        "qwen3_5_moe_text": (
            fused.Qwen3_5MoeDecoderLayer, fused.Qwen3_5MoeRMSNorm, fused.Qwen3_5MoeTextRotaryEmbedding,
        ),
        "qwen3_next": (mixed.Qwen3NextDecoderLayer, mixed.Qwen3NextRMSNorm, mixed.Qwen3NextRotaryEmbedding),
    }[family]  # fmt: skip
    made = torch.nn.Module()
    made.fc = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        setattr(made, name, norm(config.hidden_size, config.rms_norm_eps))
    made.layers = torch.nn.ModuleList([layer(config, config.layer_types.index("full_attention"))])
    stream = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _, weight in sorted(made.named_parameters()):
            weight.copy_(0.3 * torch.randn(weight.shape, generator=stream))
    made.turn = rotary(config)
    return made.eval()


def with_head(path: Path, family: str) -> tuple[Path, Any]:
    """A tiny checkpoint with such a head."""
    tiny_checkpoint(path, family, seed=2, layers=2)
    made = reference(path, family)
    tensors = {f"mtp.{name}": part for name, part in made.state_dict().items() if not name.startswith("turn")}
    if family == "qwen3_next":  # expert by expert, as checkpoints have them
        for name in ("gate_up_proj", "down_proj"):
            stacked = tensors.pop(f"mtp.layers.0.mlp.experts.{name}")
            for number, part in enumerate(stacked):
                parts = dict(zip(("gate_proj", "up_proj"), part.chunk(2))) if "gate" in name else {name: part}
                tensors |= {f"mtp.layers.0.mlp.experts.{number}.{each}.weight": it for each, it in parts.items()}
    file = path / "model.safetensors"
    save_file({k: v.contiguous() for k, v in (load_file(file) | tensors).items()}, file, {"format": "pt"})
    return path, made


@torch.no_grad()
def theirs(made: Any, embedded: Tensor, states: Tensor) -> Tensor:
    """What the head puts out for rows 1 .. T - 1, each with the target's state of the row before."""
    x = made.fc(torch.cat((made.pre_fc_norm_embedding(embedded[1:]), made.pre_fc_norm_hidden(states[:-1])), -1))[None]
    places = torch.arange(1, len(embedded))[None]
    mask = torch.full((places.shape[1],) * 2, -torch.inf).triu(1)[None, None]
    if places.dim() == 2 and type(made.turn).__name__.startswith("Qwen3_5"):
        places = places.expand(3, 1, -1)
    turned = made.turn(x, places)
    out: Tensor = made.norm(made.layers[0](x, position_embeddings=turned, attention_mask=mask))[0]
    return out


@pytest.mark.parametrize("family", ["qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"])
def test_rows_equal_transformers(family: str, tmp_path: Path) -> None:
    path, made = with_head(tmp_path, family)
    target, tokens = load_model(path, dtype="float32"), [int(t) for t in torch.arange(3, 33) ** 2 % 300]
    target.allocate(8, 8)
    states = target.forward(lay_out([Chunk(range(8), 0, tokens)], 8, taps=("post_norm",))).taps["post_norm"]
    expected = theirs(made, target.embed(torch.tensor(tokens)), states)
    head = Mtp.of(path, plain(torch.float32, torch.device("cpu")))
    head.allocate(8, 8)
    head.bind(target)
    head.keep(list(range(30)), {"post_norm": states})
    for cuts in ([0, 30], [0, 7, 8, 21, 30]):
        outs, logits = [], []
        for start, stop in pairwise(cuts):
            rows = lay_out([Chunk(range(8), start, tokens[start:stop])], 8)
            rows.hidden = head.before([-1] * (start == 0) + list(range(max(0, start - 1), stop - 1)))
            out = head.forward(rows)
            outs.append(out.leave)
            logits.append(out.logits)
        torch.testing.assert_close(torch.cat(outs)[1:], expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(torch.cat(logits)[1:], target.head(expected), rtol=1e-4, atol=1e-4)


def test_it_is_found_and_keeps_the_text(tmp_path: Path) -> None:
    """An engine has it without being given anything; its drafts change no token, with lookups in the same tree."""
    path, _ = with_head(tmp_path, "qwen3_5_text")
    llm = LLM(path, dtype="float32", memory="100M", block_size=4, check=True, drafter="mtp", nodes=8)
    assert "mtp" in llm.engine.components
    prompts = ["one two three one two three one", "the cat sat on the mat and the cat sat", "a"]
    texts = {}
    for drafter in ("none", "mtp", "ngram+mtp"):
        each = [
            SamplingParams(temperature=t, seed=3, max_tokens=20, drafter=drafter, ignore_eos=True)
            for t in (0.0, 1.0, 0.7)
        ]
        texts[drafter] = [o.token_ids for o in llm.generate(prompts, each, progress=False)]
    assert llm.engine.drafters.errors == []
    assert texts["mtp"] == texts["none"] == texts["ngram+mtp"]
    assert llm.engine.desk.totals.drafters["mtp"].drafted > 0


def test_in_a_gguf_file(tmp_path: Path) -> None:
    """There it is one more block; it drafts the same tokens."""
    path, _ = with_head(tmp_path / "whole", "qwen3_5_text")
    file = write_gguf(tmp_path / "model.gguf", path)
    assert holds_head(file)
    found = {}
    for model in (path, file):
        llm = LLM(model, dtype="float32", memory="100M", block_size=4, check=True, drafter="mtp", nodes=8)
        params = [SamplingParams(temperature=t, seed=3, max_tokens=20, ignore_eos=True) for t in (0.0, 1.0)]
        out = llm.generate([[5, 9, 31, 7], [40, 3, 99]], params, progress=False)
        totals = llm.engine.desk.totals.drafters["mtp"]
        found[model] = [o.token_ids for o in out], totals.drafted, totals.accepted
        assert llm.engine.drafters.errors == []
    assert found[path] == found[file] and found[file][1] > 0


def test_bad_heads(tmp_path: Path) -> None:
    plain_at = tiny_checkpoint(tmp_path / "plain", "qwen3_5_text", layers=2)
    assert not holds_head(plain_at)
    with pytest.raises(RefusalError, match="mtp"):
        LLM(plain_at, dtype="float32", memory="100M", drafter="mtp")
    path, _ = with_head(tmp_path / "whole", "qwen3_5_text")
    assert holds_head(path)
    tensors = load_file(path / "model.safetensors")
    mine = {name: part for name, part in tensors.items() if name.startswith("mtp.")}
    alone = tmp_path / "alone"
    alone.mkdir()
    config = json.loads((path / "config.json").read_text())
    (alone / "config.json").write_text(json.dumps(config | {METHOD_KEY: "mtp"}))
    save_file(mine, alone / "model.safetensors", {"format": "pt"})
    other = tiny_checkpoint(tmp_path / "other", "qwen3_5_text", layers=2, hidden=48)
    with pytest.raises(CheckpointError, match="reads hidden states of 32 numbers, but the model has 48"):
        LLM(other, alone, dtype="float32", memory="100M")
    assert "mtp" in LLM(plain_at, alone, dtype="float32", memory="100M", drafter="mtp").engine.components
    for change in ({"mtp.layers.1.mlp.up_proj.weight": torch.zeros(2, 2)}, None):
        less = mine | change if change else {name: part for name, part in mine.items() if name != "mtp.fc.weight"}
        save_file(tensors | less if change else {k: v for k, v in tensors.items() if k not in mine} | less,
                  path / "model.safetensors", {"format": "pt"})  # fmt: skip
        with pytest.raises(CheckpointError, match=r"layers\.1\.mlp" if change else r"mtp\.fc"):
            LLM(path, dtype="float32", memory="100M")
