"""Heads in the layouts of their publishers, at small sizes with random weights: drafts of a chain are those of a
forward pass written here in plain PyTorch, every tensor changes them, and what is not computed is refused by name."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.core.rows import RowsBuilder
from paceline.draft.eagle3 import Eagle
from paceline.draft.eagle_shape import INERT_KEYS, SERVED_VALUES, EagleShape
from paceline.draft.head import HeadFiles, load_head, method_of
from paceline.model.linear import plain

FLOAT = plain(torch.float32, torch.device("cpu"))
LAYERS, WIDTH, VOCAB, WORDS = 10, 16, 40, 24
HEADS, KV_HEADS, DIM, FFN = 4, 2, 8, 20
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
DRAFTED = [5, 35]
THETA = 10000.0


class Shared:
    """A target: its embedding and its output matrix."""

    def __init__(self, width: int) -> None:
        stream = torch.Generator().manual_seed(9)
        self.table, self.matrix = (torch.randn(VOCAB, width, generator=stream) for _ in range(2))

    def embed(self, token: Tensor) -> Tensor:
        return self.table[token]

    def head(self, hidden: Tensor) -> Tensor:
        return hidden @ self.matrix.T


def weights_of(layout: dict[str, Any], seed: int = 3) -> dict[str, Tensor]:
    """Random weights by the names of `layout` (its switches are described at LAYOUTS)."""
    stream = torch.Generator().manual_seed(seed)
    taps, theirs = layout.get("taps", 3), layout.get("theirs", WIDTH)
    eagle1, at = layout.get("eagle1", False), layout.get("at", "midlayer.")
    sizes: dict[str, tuple[int, ...]] = {}
    if eagle1 or layout.get("fc", True):
        sizes["fc.weight"] = (WIDTH, 2 * WIDTH if eagle1 else taps * theirs)
    for number in range(layout.get("layers", 1)):
        name = at if not number else f"layers.{number}."
        entry = WIDTH if eagle1 or number else 2 * WIDTH
        sizes |= {
            f"{name}self_attn.q_proj.weight": (HEADS * DIM, entry),
            f"{name}self_attn.k_proj.weight": (KV_HEADS * DIM, entry),
            f"{name}self_attn.v_proj.weight": (KV_HEADS * DIM, entry),
            f"{name}self_attn.o_proj.weight": (WIDTH, HEADS * DIM),
            f"{name}mlp.gate_proj.weight": (FFN, WIDTH), f"{name}mlp.up_proj.weight": (FFN, WIDTH),
            f"{name}mlp.down_proj.weight": (WIDTH, FFN), f"{name}post_attention_layernorm.weight": (WIDTH,),
        }  # fmt: skip
        if not eagle1:
            sizes[f"{name}input_layernorm.weight"] = (WIDTH,)
        for each in layout.get("biases", ()):
            sizes[f"{name}{each}.bias"] = sizes[f"{name}{each}.weight"][:1]
        if layout.get("qk_norm"):
            sizes |= {f"{name}self_attn.{x}_norm.weight": (DIM,) for x in "qk"}
    if not eagle1:
        sizes |= {f"{at}hidden_norm.weight": (WIDTH,), "norm.weight": (WIDTH,), "lm_head.weight": (WORDS, WIDTH)}
    if layout.get("fc_norm"):
        sizes |= {f"fc_norm.{i}.weight": (theirs,) for i in range(taps)}
    if layout.get("norm_before_fc"):
        sizes["input_norm.weight"] = (taps * theirs,)
    if layout.get("embed"):
        sizes["embed_tokens.weight"] = (VOCAB, WIDTH)
    if layout.get("fc_bias"):
        sizes["fc.bias"] = (WIDTH,)
    if "mask" in layout:
        sizes["mask_hidden"] = (1, 1, taps * theirs)
    return {
        name: torch.rand(size, generator=stream) + 0.5 if name.endswith("norm.weight") or "norm." in name
        else torch.randn(size, generator=stream) * (size[-1] ** -0.5 if len(size) > 1 else 0.5)
        for name, size in sizes.items()
    }  # fmt: skip


def layer_config(**more: Any) -> dict[str, Any]:
    return {
        "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": DIM,
        "intermediate_size": FFN, "vocab_size": VOCAB, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "rope_theta": THETA, "num_hidden_layers": 1, "hidden_act": "silu", "model_type": "llama",
        "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16", "use_cache": True, "initializer_range": 0.02,
        "tie_word_embeddings": False, "transformers_version": "4.53.1", "attention_dropout": 0.0, "pretraining_tp": 1,
        **more,
    }  # fmt: skip


def flat(*, words: int = WORDS, **more: Any) -> dict[str, Any]:
    return {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": words, **layer_config(**more)}


def speculators(layer: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "speculators_version": "0.3.0",
        "draft_vocab_size": WORDS, "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "x/y"}},
        "transformer_layer_config": layer_config(**(layer or {})), "auto_map": {}, "embed_requires_grad": False, **more,
    }  # fmt: skip


def aux(*ids: int, **more: Any) -> dict[str, Any]:
    return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids), "use_aux_hidden_state": True, **more}}


LINES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "SafeAILab": (flat(), {"bin": True, "embed": True}, ("input:2", "input:5", "input:7")),
    "SafeAILab, shards": (flat(), {"shards": True}, ("input:2", "input:5", "input:7")),
    "SpecForge": (flat(**aux(1, 4, 6)), {}, ("input:2", "input:5", "input:7")),
    "AQ-MedAI, Qwen3 body": (flat(model_type="qwen3", **aux(1, 4, 6)), {"qk_norm": True},
                             ("input:2", "input:5", "input:7")),
    "Qwen2 body": (flat(attention_bias=True), {"biases": [f"self_attn.{x}_proj" for x in "qkv"]},
                   ("input:2", "input:5", "input:7")),
    "all biases": (flat(attention_bias=True, mlp_bias=True),
                   {"biases": ["self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"],
                    "fc_bias": True}, ("input:2", "input:5", "input:7")),
    "RedHatAI": (speculators(eagle_aux_hidden_state_layer_ids=[2, 5, 7], norm_before_residual=True),
                 {"at": "layers.0.", "residual": True}, ("input:2", "input:5", "input:7")),
    "RedHatAI, index in d2t": (speculators(), {"at": "layers.0.", "index": True}, ("input:2", "input:5", "input:7")),
    "EAGLE-3.1": (speculators(fc_norm=True, norm_output=True), {"at": "layers.0.", "fc_norm": True, "output": True},
                  ("input:2", "input:5", "input:7")),
    "two layers": (speculators({"num_hidden_layers": 2}), {"at": "layers.0.", "layers": 2},
                   ("input:2", "input:5", "input:7")),
    "another width": (speculators(target_hidden_size=24), {"at": "layers.0.", "theirs": 24, "embed": True},
                      ("input:2", "input:5", "input:7")),
    "a window": (flat(use_sliding_window=True, sliding_window=3), {"window": 3}, ("input:2", "input:5", "input:7")),
    "ModelOpt": (flat(**aux(1, 4, 9)), {"at": "layers.0."}, ("input:2", "input:5", "pre_norm")),
    "NVIDIA, gpt-oss": (
        flat(**aux(2, 5, 10), norm_before_fc=True,
             rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
        {"norm_before_fc": True, "yarn": True}, ("input:2", "input:5", "pre_norm")),
    "NVIDIA, gpt-oss short": (flat(eagle_config={"use_aux_hidden_state": False}), {"fc": False, "taps": 1},
                              ("post_norm",)),
    "P-EAGLE": (
        {**speculators({"num_hidden_layers": 2}, mask_token_id=7), "speculators_model_type": "peagle"},
        {"at": "layers.0.", "layers": 2, "embed": True, "mask": 7}, ("input:2", "input:5", "input:7")),
    "P-EAGLE, flat": (flat(parallel_drafting=True, ptd_token_id=9, norm_before_fc=True),
                      {"norm_before_fc": True, "embed": True, "mask": 9}, ("input:2", "input:5", "input:7")),
    "EAGLE-1": ({**layer_config(bias=True), "architectures": ["LlamaForCausalLM"]},
                {"eagle1": True, "at": "layers.0.", "bin": True, "embed": True, "fc_bias": True, "taps": 1},
                ("post_norm",)),
}  # fmt: skip
"""{publisher: (config.json, switches of its weights, the states that are read)}; switches: see `weights_of`."""


def written(path: Path, name: str, weights: dict[str, Tensor] | None = None, **changes: Any) -> Path:
    config, layout, _ = LINES[name]
    weights = dict(weights or weights_of(layout))
    if not layout.get("eagle1"):
        ids = torch.arange(WORDS) + torch.arange(WORDS) // 2
        weights["d2t"] = ids if layout.get("index") else ids - torch.arange(WORDS)
        weights["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**config, **changes}))
    if layout.get("bin"):
        torch.save(weights, path / "pytorch_model.bin")
    elif layout.get("shards"):
        parts, where = [dict[str, Tensor](), dict[str, Tensor]()], dict[str, str]()
        for number, (key, part) in enumerate(weights.items()):
            parts[number % 2][key], where[key] = part, f"part-{number % 2}.safetensors"
        for number, some in enumerate(parts):
            save_file(some, path / f"part-{number}.safetensors")
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    else:
        save_file(weights, path / "model.safetensors")
    return path


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def turned(x: Tensor, positions: Tensor, yarn: bool) -> Tensor:
    """Rotation of x [T, heads, dim]; YaRN by its paper, factor 4 from 16 tokens."""
    inverse = THETA ** (-torch.arange(0, DIM, 2, dtype=torch.float64) / DIM)
    scale = 1.0
    if yarn:

        def bound(rotations: float) -> float:
            return DIM * math.log(16 / (rotations * 2 * math.pi)) / (2 * math.log(THETA))

        low, high = max(int(bound(32) // 1), 0), min(-int(-bound(1) // 1), DIM - 1)
        ramp = ((torch.arange(DIM // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
        inverse, scale = inverse / 4 * ramp + inverse * (1 - ramp), 0.1 * math.log(4) + 1
    angle = positions[:, None].double() * inverse
    cos, sin = (torch.cat([f(angle)] * 2, -1)[:, None].float() * scale for f in (torch.cos, torch.sin))
    half = torch.cat((-x[..., DIM // 2 :], x[..., : DIM // 2]), -1)
    return x * cos + half * sin


def reference(layout: dict[str, Any], w: dict[str, Tensor], target: Shared, taps: list[Tensor]) -> Tensor:
    """Logits [1 + drafted, words] of the last row of the text and of the drafted chain. Row t reads token t and the
    feature of row t - 1; row 0 is seen by nobody."""
    eagle1, at = layout.get("eagle1", False), layout.get("at", "midlayer.")
    table = w.get("embed_tokens.weight", target.table)

    def fused(states: list[Tensor]) -> Tensor:
        if layout.get("fc_norm"):
            states = [rms(state, w[f"fc_norm.{i}.weight"]) for i, state in enumerate(states)]
        feature = torch.cat(states, -1)
        if layout.get("norm_before_fc"):
            feature = rms(feature, w["input_norm.weight"])
        return feature if eagle1 or "fc.weight" not in w else F.linear(feature, w["fc.weight"], w.get("fc.bias"))

    tokens, out = torch.tensor(TOKENS[1:]), list[Tensor]()
    feature = fused(taps)[: len(TOKENS) - 1]
    for drafted in [*DRAFTED, None]:
        e, positions = table[tokens], torch.arange(1, len(tokens) + 1)
        if eagle1:
            entry = x = F.linear(torch.cat((e, feature), -1), w["fc.weight"], w.get("fc.bias"))
        else:
            normed = rms(feature, w[f"{at}hidden_norm.weight"])
            entry = torch.cat((rms(e, w[f"{at}input_layernorm.weight"]), normed), -1)
            x = normed if layout.get("residual") else feature
        for number in range(layout.get("layers", 1)):
            name = at if not number else f"layers.{number}."
            y = entry if not number else rms(x, w[f"{name}input_layernorm.weight"])

            def by(part: str, z: Tensor, name: str = name) -> Tensor:
                return F.linear(z, w[f"{name}{part}.weight"], w.get(f"{name}{part}.bias"))

            q, k, v = (by(f"self_attn.{part}_proj", y).view(len(y), -1, DIM) for part in "qkv")
            if layout.get("qk_norm"):
                q, k = (rms(z, w[f"{name}self_attn.{n}_norm.weight"]) for z, n in ((q, "q"), (k, "k")))
            q, k = (turned(z, positions, layout.get("yarn", False)) for z in (q, k))
            apart = positions[:, None] - positions
            seen = (apart >= 0) & (apart < layout.get("window", 1000))
            k, v = (z.repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1) for z in (k, v))
            mixed = F.scaled_dot_product_attention(q.transpose(0, 1), k, v, seen)
            x = x + by("self_attn.o_proj", mixed.transpose(0, 1).reshape(len(y), -1))
            y = rms(x, w[f"{name}post_attention_layernorm.weight"])
            x = x + by("mlp.down_proj", F.silu(by("mlp.gate_proj", y)) * by("mlp.up_proj", y))
        leave = rms(x, w["norm.weight"]) if layout.get("output") else x
        if eagle1:
            out.append(leave[-1] @ target.matrix.T)
        else:
            out.append((leave if layout.get("output") else rms(leave, w["norm.weight"]))[-1] @ w["lm_head.weight"].T)
        if drafted is not None:
            masked = "mask" in layout  # all depths at once: what was drafted is not read
            entering = fused([*w["mask_hidden"].view(3, 1, -1)]) if masked else leave[-1:]
            tokens = torch.cat((tokens, torch.tensor([layout["mask"] if masked else drafted])))
            feature = torch.cat((feature, entering))
    return torch.stack(out)


def drafts(path: Path, target: Shared) -> tuple[Eagle, Tensor]:
    """The component and its logits [1 + drafted, words or vocab], by the pool and passes of the engine."""
    head: Any = load_head(path, target.table.shape[1], VOCAB, FLOAT, LAYERS)[1]
    assert isinstance(head, Eagle)
    head.allocate(4, 4)
    head.bind(target)
    stream, count = torch.Generator().manual_seed(5), len(TOKENS)
    taps = {tap: torch.randn(count, target.table.shape[1], generator=stream) for tap in head.taps}
    head.keep([*range(count)], taps)
    out, leave = list[Tensor](), torch.empty(0)
    for step in range(len(DRAFTED) + 1):
        builder = RowsBuilder()
        if not step:
            builder.add(TOKENS, [*range(count)], [0, 1, 2, 3], 0, want=[count - 1])
            hidden = head.before([-1, *range(count - 1)])
        else:
            builder.add(DRAFTED[step - 1 : step], [count + step - 1], [0, 1, 2, 3], count + step - 1, want=[0])
            hidden = leave
        rows = builder.build()
        rows.hidden = hidden
        if step:
            rows.token[:], rows.hidden = head.drafted(rows.token, hidden)
        made = head.forward(rows)
        assert made.leave is not None
        out.append(made.logits[-1] if head.ids is None else made.logits[-1][head.ids])
        leave = made.leave[-1:]
    return head, torch.stack(out)


def states(head: Eagle, width: int) -> list[Tensor]:
    stream = torch.Generator().manual_seed(5)
    return [torch.randn(len(TOKENS), width, generator=stream) for _ in head.taps]


@pytest.mark.parametrize("name", LINES)
def test_drafts_are_those_of_plain_pytorch(name: str, tmp_path: Path) -> None:
    layout, taps = LINES[name][1:]
    target = Shared(layout.get("theirs", WIDTH))
    head, logits = drafts(written(tmp_path / "head", name), target)
    assert method_of(tmp_path / "head") == "eagle3" and head.taps == taps
    want = reference(layout, weights_of(layout), target, states(head, target.table.shape[1]))
    torch.testing.assert_close(logits, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", LINES)
def test_each_tensor_changes_the_drafts(name: str, tmp_path: Path) -> None:
    layout = LINES[name][1]
    target, weights = Shared(layout.get("theirs", WIDTH)), weights_of(layout)
    before = drafts(written(tmp_path / "head", name), target)[1]
    for part in weights:
        stream = torch.Generator().manual_seed(1)
        other = {**weights, part: weights[part] * (1 + torch.rand(weights[part].shape, generator=stream))}
        after = drafts(written(tmp_path / "head", name, other), target)[1]
        assert not torch.allclose(after, before, atol=1e-4), part


INERT_HERE = INERT_KEYS | {
    "architectures",
    "max_position_embeddings",
    "speculators_config",
    "tie_word_embeddings",
    "sliding_window",
}
"""Keys that may change nothing: those of `INERT_KEYS`; limits, names, a window that is not used, an output matrix that
the weights have or have not."""


def other(value: Any) -> Any:
    """Another value of the kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value * 8 + 1
    return [*value[1:], *value[:1]] if isinstance(value, list) else "another"


def places(config: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where the values of a config are."""
    out = list[tuple[str, ...]]()
    for key, value in config.items():
        inside = isinstance(value, dict) and key not in INERT_HERE
        out += places(value, (*above, key)) if inside else [(*above, key)]
    return out


@pytest.mark.parametrize("name", LINES)
def test_each_key_changes_the_drafts_is_refused_or_is_known_to_be_inert(name: str, tmp_path: Path) -> None:
    config, layout, _ = LINES[name]
    target = Shared(layout.get("theirs", WIDTH))
    head, before = drafts(written(tmp_path / "head", name), target)
    for place in places(config):
        changed = copy.deepcopy(config)
        at = changed
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = other(at[place[-1]])
        (tmp_path / "head" / "config.json").write_text(json.dumps(changed))
        if place[-1] in INERT_HERE or place == ("model_type",):  # the architecture names a flat config's layers
            continue
        try:
            again, after = drafts(tmp_path / "head", target)
        except (CheckpointError, AssertionError):  # refused, or no head of this method any more
            continue
        same = again.taps == head.taps and after.shape == before.shape and torch.allclose(after, before, atol=1e-4)
        assert not same, place


@pytest.mark.parametrize("key", SERVED_VALUES)
def test_a_key_with_one_served_value_is_refused_with_another(key: str) -> None:
    for config in flat(**{key: "another"}), speculators({key: "another"}), flat(eagle_config={key: "another"}):
        with pytest.raises(CheckpointError, match=key):
            EagleShape.read(config, LAYERS)


SAID = {
    "fc_norm": "fc_norm.0", "norm_before_fc": "input_norm", "num_hidden_layers": "layers.1",
    "draft_vocab_size": "lm_head", "num_key_value_heads": "k_proj", "rope_scaling": "dynamic",
    "target_hidden_size": "numbers", "parallel_drafting": "mask_token_id", "mask_token_id": "embed_tokens",
    "ptd_token_id": "masked", "eagle_config": "num_aux_hidden_states 3",
}  # fmt: skip
"""What the message says where it is not the key."""


@pytest.mark.parametrize(
    ("key", "value"),
    [("parallel_drafting", True), ("mask_token_id", 7), ("ptd_token_id", VOCAB), ("a_key_of_tomorrow", 1),
     ("attention_bias", True), ("eagle_config", aux(1, 4, num_aux_hidden_states=3)["eagle_config"]),
     ("mlp_bias", True), ("fc_norm", True), ("norm_before_fc", True), ("num_hidden_layers", 2),
     ("draft_vocab_size", 20), ("num_key_value_heads", 4), ("rope_scaling", {"rope_type": "dynamic", "factor": 2.0}),
     ("target_hidden_size", 24)],
)  # fmt: skip
def test_what_is_not_computed_is_refused_by_name(key: str, value: Any, tmp_path: Path) -> None:
    path = written(tmp_path / "head", "SpecForge", **{key: value})
    said = SAID.get(key, key)
    with pytest.raises(CheckpointError, match=said):
        load_head(path, WIDTH, VOCAB, FLOAT, LAYERS)


def test_a_vocabulary_that_is_none_a_missing_part_and_an_unknown_tensor_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "head", "SafeAILab, shards")
    (path / "part-1.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks part-1.safetensors of 2 parts"):
        Eagle.load(HeadFiles(path, LAYERS), FLOAT)
    weights = weights_of({})
    for wrong in (torch.arange(WORDS) * 0 + VOCAB, torch.arange(WORDS).flip(0), torch.zeros(3, dtype=torch.int64)):
        save_file({**weights, "d2t": wrong}, written(tmp_path / "other", "SpecForge") / "model.safetensors")
        with pytest.raises(CheckpointError, match="d2t"):
            Eagle.load(HeadFiles(tmp_path / "other", LAYERS), FLOAT)
    for name in "midlayer.self_attn.sinks", "mask_hidden":
        more = {**weights, "d2t": torch.arange(WORDS) // 2, name: torch.ones(4)}
        save_file(more, tmp_path / "other" / "model.safetensors")
        with pytest.raises(CheckpointError, match=name.rpartition(".")[2]):
            Eagle.load(HeadFiles(tmp_path / "other", LAYERS), FLOAT)
