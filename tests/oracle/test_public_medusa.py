"""Medusa's and Hydra's heads in the layouts of their authors, at small sizes with random weights: what a depth says is
what is written here in plain PyTorch, every tensor and every key changes it, and what is not computed is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.draft.head import Head, HeadFiles, load_head, method_of
from paceline.draft.layers import DenseTexts, DraftLayer
from paceline.draft.released import INERT_KEYS, SHARED_HEAD_KEYS
from paceline.model.linear import plain
from paceline.model.rotary import Rotary

CPU = torch.device("cpu")
FLOAT = plain(torch.float32, CPU)
WIDTH, VOCAB, DEPTH, ROWS, FFN = 16, 40, 3, 5, 20
HEADS, KV_HEADS, DIM = 4, 2, 8
STREAM = torch.Generator().manual_seed(9)
TABLE, MATRIX = (torch.randn(VOCAB, WIDTH, generator=STREAM) for _ in range(2))
STATES, TOKENS = torch.randn(ROWS, WIDTH, generator=STREAM), [3, 1, 4, 1, 5, 9, 2, 6]


def medusa(layers: int, own: bool) -> dict[str, tuple[int, ...]]:
    out: dict[str, tuple[int, ...]] = {}
    for head in range(DEPTH):
        for layer in range(layers):
            out |= {f"{head}.{layer}.linear.weight": (WIDTH, WIDTH), f"{head}.{layer}.linear.bias": (WIDTH,)}
        if own:
            out[f"{head}.{layers}.weight"] = (VOCAB, WIDTH)
    return out


def hydra(layers: int, prefix: bool) -> dict[str, tuple[int, ...]]:
    out: dict[str, tuple[int, ...]] = {}
    for head in range(DEPTH):
        at = f"hydra_mlp.{head}."
        for name in "linear", "res_connection":
            out |= {f"{at}1.{name}.weight": (WIDTH, (head + 2) * WIDTH), f"{at}1.{name}.bias": (WIDTH,)}
        for layer in range(1, layers):
            out |= {
                f"{at}{2 * layer + 1}.linear.weight": (WIDTH, WIDTH), f"{at}{2 * layer + 1}.linear.bias": (WIDTH,)
            }  # fmt: skip
        out |= {f"hydra_lm_head.{head}.1.weight": (VOCAB, WIDTH), f"hydra_lm_head.{head}.1.bias": (VOCAB,)}
    if prefix:
        at, q, kv = "prefix_embeding_layer.", HEADS * DIM, KV_HEADS * DIM
        inner = {
            "self_attn.q_proj": (q, WIDTH), "self_attn.k_proj": (kv, WIDTH), "self_attn.v_proj": (kv, WIDTH),
            "self_attn.o_proj": (WIDTH, q), "mlp.gate_proj": (FFN, WIDTH), "mlp.up_proj": (FFN, WIDTH),
            "mlp.down_proj": (WIDTH, FFN), "input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,),
        }  # fmt: skip
        out |= {f"{at}layers.0.{name}.weight": size for name, size in inner.items()} | {f"{at}norm.weight": (WIDTH,)}
    return out


NAMED: dict[str, Any] = {"base_model_name_or_path": "x/y", "transformers_version": "4.34.1"}
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "medusa": ({"medusa_num_heads": DEPTH, "medusa_num_layers": 1, **NAMED}, medusa(1, True)),
    "medusa, two layers": ({"medusa_num_heads": DEPTH, "medusa_num_layers": 2, **NAMED}, medusa(2, True)),
    "medusa, the model's head": ({"medusa_num_heads": DEPTH, "medusa_num_layers": 1, "vocab_size": VOCAB, **NAMED},
                                 medusa(1, False)),
    "hydra": ({"hydra_num_heads": DEPTH, "hydra_num_layers": 1, "hydra_head_arch": "mlp", "grounded_heads": True,
               "hidden_state_offset": 0, **NAMED}, hydra(1, False)),
    "hydra++": ({"hydra_num_heads": DEPTH, "hydra_num_layers": 3, "hydra_head_arch": "prefix-mlp", "head_dim": DIM,
                 "grounded_heads": True, "hidden_state_offset": 0, "rms_norm_eps": 1e-3, "rope_theta": 100.0, **NAMED},
                hydra(3, True)),
}  # fmt: skip
"""{layout: (config.json, shapes of its weights)}"""


def weights_of(name: str) -> dict[str, Tensor]:
    stream = torch.Generator().manual_seed(3)
    return {
        part: torch.rand(size, generator=stream) + 0.5 if "norm" in part
        else torch.randn(size, generator=stream) * (size[-1] ** -0.5 if len(size) > 1 else 0.5)
        for part, size in LAYOUTS[name][1].items()
    }  # fmt: skip


def written(path: Path, name: str, weights: dict[str, Tensor], **changes: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**LAYOUTS[name][0], **changes}))
    torch.save(weights, path / f"{name.split('+')[0].split(',')[0]}_lm_head.pt")
    return path


def said(path: Path) -> Tensor:
    """Logits [depth, vocab] below the last row of a text, by the component of the engine."""
    head: Any = load_head(path, WIDTH, VOCAB, FLOAT, 4)[1]
    assert isinstance(head, Head)
    c, embedded = head.config, TABLE[torch.tensor(TOKENS)]
    turn = Rotary(DraftLayer.rope(c.head_dim, c.theta), CPU, torch.float32, 64) if head.kv_layers else None
    context = STATES if turn is None else head.enrich(STATES, embedded[1 : ROWS + 1], DenseTexts(1, ROWS, turn))
    state, out = head.begin(context[-1:], embedded[ROWS : ROWS + 1]), list[Tensor]()
    for depth in range(c.depth):
        out.append(head.logits(head.draft(state, depth), depth, lambda x: x @ MATRIX.T)[0])
        if depth + 1 < c.depth:
            state = head.extend(state, embedded[ROWS + depth + 1 : ROWS + depth + 2], depth)
    return torch.stack(out)


def silu_block(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    return x + F.silu(F.linear(x, w[f"{name}.linear.weight"], w[f"{name}.linear.bias"]))


def prefixed(w: dict[str, Tensor]) -> Tensor:
    """The last row's output of Hydra++'s layer over the text: Llama's, base 100, epsilon 1e-3."""

    def rms(x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3) * w[f"prefix_embeding_layer.{name}.weight"]

    def by(name: str, x: Tensor) -> Tensor:
        return x @ w[f"prefix_embeding_layer.layers.0.{name}.weight"].T

    y = rms(STATES, "layers.0.input_layernorm")
    q, k, v = (by(f"self_attn.{x}_proj", y).view(ROWS, -1, DIM) for x in "qkv")
    angle = torch.arange(ROWS)[:, None] * 100.0 ** (-torch.arange(0, DIM, 2) / DIM)
    cos, sin = (torch.cat([f(angle)] * 2, -1)[:, None] for f in (torch.cos, torch.sin))
    q, k = (z * cos + torch.cat((-z[..., DIM // 2 :], z[..., : DIM // 2]), -1) * sin for z in (q, k))
    k, v = (z.repeat_interleave(HEADS // KV_HEADS, 1) for z in (k, v))
    seen = torch.einsum("qhd,khd->hqk", q, k) * DIM**-0.5
    seen = seen.masked_fill(torch.ones(ROWS, ROWS).triu(1).bool(), -torch.inf).softmax(-1)
    x = STATES + by("self_attn.o_proj", torch.einsum("hqk,khd->qhd", seen, v).reshape(ROWS, -1))
    y = rms(x, "layers.0.post_attention_layernorm")
    return rms(x + by("mlp.down_proj", F.silu(by("mlp.gate_proj", y)) * by("mlp.up_proj", y)), "norm")[-1]


def reference(name: str, w: dict[str, Tensor]) -> Tensor:
    config, out = LAYOUTS[name][0], list[Tensor]()
    context = prefixed(w) if name == "hydra++" else STATES[-1]
    for depth in range(DEPTH):
        if name.startswith("medusa"):
            x, layers = context, config["medusa_num_layers"]
            for layer in range(layers):
                x = silu_block(x, w, f"{depth}.{layer}")
            out.append(x @ w.get(f"{depth}.{layers}.weight", MATRIX).T)
            continue
        z, at = torch.cat([context, *TABLE[torch.tensor(TOKENS[ROWS : ROWS + depth + 1])]]), f"hydra_mlp.{depth}.1"
        straight = F.linear(z, w[f"{at}.res_connection.weight"], w[f"{at}.res_connection.bias"])
        x = straight + F.silu(F.linear(z, w[f"{at}.linear.weight"], w[f"{at}.linear.bias"]))
        for layer in range(1, config["hydra_num_layers"]):
            x = silu_block(x, w, f"hydra_mlp.{depth}.{2 * layer + 1}")
        out.append(F.linear(x, w[f"hydra_lm_head.{depth}.1.weight"], w[f"hydra_lm_head.{depth}.1.bias"]))
    return torch.stack(out)


@pytest.mark.parametrize("name", LAYOUTS)
def test_drafts_are_those_of_plain_pytorch_and_each_tensor_changes_them(name: str, tmp_path: Path) -> None:
    weights = weights_of(name)
    path = written(tmp_path / "head", name, weights)
    assert method_of(path) == name.split("+")[0].split(",")[0]
    before = said(path)
    torch.testing.assert_close(before, reference(name, weights), rtol=1e-4, atol=1e-4)
    for part, weight in weights.items():
        shaken = weight * (1 + torch.rand(weight.shape, generator=torch.Generator().manual_seed(1)))
        assert not torch.allclose(said(written(path, name, {**weights, part: shaken})), before, atol=1e-4), part


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_key_changes_the_drafts_or_is_refused(name: str, tmp_path: Path) -> None:
    weights = weights_of(name)
    before = said(written(tmp_path / "head", name, weights))
    inert = INERT_KEYS | SHARED_HEAD_KEYS - {"vocab_size"} | {"hydra_head_arch"}  # of two that are served, weights tell
    for key, value in LAYOUTS[name][0].items():
        if key in inert:
            continue
        other = not value if isinstance(value, bool) else value * 3 + 1
        path = written(tmp_path / "head", name, weights, **{key: other})
        try:
            after = said(path)
        except CheckpointError:
            continue
        assert not torch.allclose(after, before, atol=1e-4), key


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [("medusa", {"logit_scale": 2.0}, "'logit_scale'"), ("hydra", {"logit_scale": 2.0}, "'logit_scale'"),
     ("hydra", {"hidden_state_offset": 1}, "hidden_state_offset 1"), ("hydra", {"grounded_heads": False}, "grounded"),
     ("hydra", {"hydra_head_arch": "cross-attn"}, "cross-attn"), ("medusa", {"medusa_num_layers": 2}, "blocks.0.0"),
     ("medusa", {"medusa_num_heads": 2}, "blocks.2"), ("medusa, two layers", {"medusa_num_layers": 3}, "blocks.0.2"),
     ("medusa, the model's head", {"vocab_size": 39}, "39 entries")],
)  # fmt: skip
def test_what_is_not_computed_is_refused_by_name(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        said(written(tmp_path / "head", name, weights_of(name), **changes))


def test_a_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    for name in "medusa", "hydra":
        path = written(tmp_path / "head", name, {**weights_of(name), "gate.weight": torch.ones(2)})
        with pytest.raises(CheckpointError, match="gate"):
            HeadFiles(path)
