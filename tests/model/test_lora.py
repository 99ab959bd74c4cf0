"""Files of adapters: PEFT's rules for rank, scale and modules; what is damaged, or not computed, is refused by name."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline import LLM
from paceline.core.errors import MAX_MESSAGE_CHARS, CheckpointError, InputError, PacelineError
from paceline.model import lora
from paceline.model.checkpoint import read_config
from paceline.model.load import load_model
from paceline.model.lora import read_lora
from paceline.model.tensor_names import of_authors
from tests.lora import add, change, configure, make_adapter, merge, shallow
from tests.oracle.rows import Chunk, lay_out
from tests.tiny import tiny_checkpoint

BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda d: (d / "adapter_config.json").unlink(), "no adapter_config.json"),
    "cut": (lambda d: (d / "adapter_model.safetensors").write_bytes(b"x" * 40), "damaged"),
    "no weights": (lambda d: (d / "adapter_model.safetensors").unlink(), "has neither"),
    "dora": (lambda d: configure(d, use_dora=True), "DoRA"),
    "modules_to_save": (lambda d: configure(d, modules_to_save=["lm_head"]), "modules_to_save"),
    "biases": (lambda d: configure(d, bias="all"), "trained biases"),
    "another kind": (lambda d: configure(d, peft_type="IA3"), "IA3"),
    "changed base": (lambda d: configure(d, init_lora_weights="pissa_niter_4"), "pissa"),
    "unknown key": (lambda d: configure(d, novel_thing=3), "novel_thing"),
    "rank": (lambda d: configure(d, r=5), "says rank 5"),
    "no modules": (lambda d: configure(d, target_modules=[]), "names no modules"),
    "modules as an empty text": (lambda d: configure(d, target_modules=""), "names no modules"),
    "nothing about modules": (lambda d: configure(d, target_modules=None), "names no modules"),
    "an expression that is none": (lambda d: configure(d, target_modules="("), "an expression that repeats only"),
    "a slow expression": (lambda d: configure(d, target_modules="(a+)+b"), "an expression that repeats only"),
    "ways": (lambda d: configure(d, target_modules="(?:q|q_|.|..)" * 4), "at most 64 ways"),
    "a slow exclusion": (lambda d: configure(d, exclude_modules="(?:.|..)" * 30 + "!"), "that repeats only single"),
    "an expression and layers": (
        lambda d: configure(d, target_modules=".*_proj", layers_to_transform=[0, 1]), "put the layers into",
    ),
    "roots of layers alone": (lambda d: configure(d, layers_pattern="layers"), "without layers_to_transform"),
    "roots of no type": (lambda d: configure(d, layers_pattern=5, layers_to_transform=[0, 1]), "a name, or a list"),
    "roots as an expression": (
        lambda d: configure(d, layers_pattern="(a+)+", layers_to_transform=[0, 1]), "a name, or a list",
    ),
    "other roots": (
        lambda d: configure(d, layers_pattern=["blocks"], layers_to_transform=[0, 1]), "layers_to_transform of its",
    ),
    "a terminal's commands": (lambda d: add(d, "base_model.model.\x1b[31m\u202e\r"), r"\\x1b\[31m\\u202e\\r"),
    "no rank": (lambda d: configure(d, r="x"), "positive number"),
    "module": (lambda d: configure(d, target_modules=["q_proj", "wq"]), "no linear layer"),
    "left out": (lambda d: configure(d, target_modules=["q_proj"]), "target_modules of its config leaves out"),
    "left out by an expression": (lambda d: configure(d, target_modules=r".*\.q_proj"), "target_modules of its config"),
    "excluded": (lambda d: configure(d, exclude_modules=["q_proj"]), "exclude_modules of its config leaves out"),
    "another layer": (lambda d: configure(d, layers_to_transform=[0]), "layers_to_transform of its config leaves out"),
    "no truth value": (lambda d: configure(d, use_rslora="x"), "true or false"),
    "no number": (lambda d: configure(d, alpha_pattern={"q_proj": True}), "a value is a number"),
    "nan": (lambda d: change(d, lambda t: t.fill_(float("nan"))), "not finite"),
    "shape": (lambda d: change(d, lambda t: t[:, :-1].clone()), "another model"),
    "fewer layers": (lambda d: shallow(d), "for a model of 1 layers, but this one has"),
    "a layer cut out": (lambda d: change(d, lambda t: None, "A", "B"), "lacks the factors"),
    "half a pair": (lambda d: change(d, lambda t: None), "only one factor"),
    "head": (lambda d: add(d, "base_model.model.lm_head.weight"), "lm_head.weight"),
    "rank 0": (
        lambda d: (each(d, lambda t: t[:0], lambda t: t[:, :0]), configure(d, rank_pattern={".*": 0})), "above 0",
    ),
    "alpha 0": (lambda d: configure(d, lora_alpha=0), "positive number"),
    "a number as a text": (lambda d: configure(d, alpha_pattern={"q_proj": "8"}), "a value is a number"),
    "activated later": (lambda d: configure(d, alora_invocation_tokens=[5]), "alora_invocation_tokens"),
    "bias of a factor": (lambda d: configure(d, lora_bias=True), "lora_bias"),
    "repeated layers": (lambda d: configure(d, layer_replication=[[0, 2], [0, 2]]), "layer_replication"),
    "other axes": (lambda d: configure(d, fan_in_fan_out=True), "fan_in_fan_out"),
    "tokens": (lambda d: configure(d, trainable_token_indices=[0]), "trainable_token_indices"),
    "parameters": (lambda d: configure(d, target_parameters=["mlp.experts.down_proj"]), "lacks the factors"),
    "parallel layers": (lambda d: configure(d, megatron_config={"x": 1}), "megatron_config"),
    "base changed by data": (lambda d: configure(d, init_lora_weights="corda", corda_config={}), "corda"),
    "unknown beginning": (lambda d: configure(d, init_lora_weights="novel"), "not known here"),
    "layers of another type": (lambda d: configure(d, layers_to_transform="0"), "whole numbers"),
    "a layer as a truth value": (lambda d: configure(d, layers_to_transform=True), "whole numbers"),
    "modules as a number": (lambda d: configure(d, target_modules=5), "list of names"),
    "excluded as a number": (lambda d: configure(d, exclude_modules=[5]), "list of names"),
    "infinite": (lambda d: change(d, lambda t: t.fill_(float("inf"))), "not finite"),
    "far too large": (lambda d: change(d, lambda t: t.fill_(1e18), "A", "B"), "far too large"),
    "whole numbers": (lambda d: each(d, lambda t: t.int()), "floating-point"),
    "complex numbers": (lambda d: each(d, lambda t: t.to(torch.complex64)), "floating-point"),
    "a factor twice": (lambda d: twice(d), "under two names"),
    "cut, by an expression": (
        lambda d: (change(d, lambda t: None, "A", "B"), configure(d, target_modules=r".*_proj")), "lacks the factors",
    ),
    "cut, but for layers": (
        lambda d: (change(d, lambda t: None, "A", "B"), configure(d, layers_to_transform=[0, 1])), "lacks the factors",
    ),
    "embedding": (lambda d: add(d, "base_model.model.model.embed_tokens.lora_embedding_A"), "embed"),
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("base"), "llama")


def each(path: Path, *how: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change all factors: A as the first says, B as the last."""
    file = path / "adapter_model.safetensors"
    tensors = load_file(file)
    save_file({name: how[0 if "lora_A" in name else -1](it).contiguous() for name, it in tensors.items()}, file)


def twice(path: Path) -> None:
    """Two adapters in one file, as PEFT names them in memory."""
    file = path / "adapter_model.safetensors"
    tensors = load_file(file)
    both = [(name.replace(".weight", f".{it}.weight"), part.clone()) for name, part in tensors.items() for it in "xy"]
    save_file(dict(both), file)


@pytest.mark.parametrize("case", BAD)
def test_bad_adapters_are_refused(base: Path, tmp_path: Path, case: str) -> None:
    spoil, words = BAD[case]
    path = make_adapter(tmp_path / "x", base)
    spoil(path)
    with pytest.raises(PacelineError, match=words):
        read_lora(path, read_config(base))


def test_of_a_model_under_its_authors_names(tmp_path: Path) -> None:
    """Modules and patterns of EXAONE's own code."""
    model = tiny_checkpoint(tmp_path / "m", "exaone", vocab=96, with_tokenizer=False)
    spec, path = read_config(model), make_adapter(tmp_path / "x", model)
    expected, tensors = read_lora(path, spec), load_file(path / "adapter_model.safetensors")

    def theirs(name: str) -> str:
        stem, _, part = name.removeprefix(lora.PEFT_PREFIX).partition(".lora_")
        return f"{lora.PEFT_PREFIX}{of_authors(stem, 'exaone')}.lora_{part}"

    save_file({theirs(name): it for name, it in tensors.items()}, path / "adapter_model.safetensors")
    targets = ["q_proj", "k_proj", "v_proj", "out_proj", "c_fc_0", "c_fc_1", "c_proj"]
    configure(path, target_modules=targets, layers_to_transform=[0, 1])
    found = read_lora(path, spec)
    assert found.digest == expected.digest and {*found.modules} == {*expected.modules}
    configure(path, alpha_pattern={r"h\.0\.mlp\.c_proj": 100})
    assert read_lora(path, spec).digest != expected.digest
    configure(path, alpha_pattern={}, layers_to_transform=[1])
    with pytest.raises(CheckpointError, match="layers_to_transform of its config leaves out"):
        read_lora(path, spec)


def test_of_another_model_or_too_large(base: Path, tmp_path: Path) -> None:
    other = tiny_checkpoint(tmp_path / "other", "llama", hidden=64)
    with pytest.raises(PacelineError, match="another model"):
        read_lora(make_adapter(tmp_path / "a", base), read_config(other))
    with pytest.raises(InputError, match="at most 3"):
        read_lora(make_adapter(tmp_path / "a", base), read_config(base), max_rank=3)
    for bad in (["a"], ["a=x", "a=y"], ["=x"]):
        with pytest.raises(InputError, match="NAME=DIR"):
            LLM(base, lora=bad, blocks=64, weights_cache=False)


def test_patterns_and_scales_are_pefts(base: Path, tmp_path: Path) -> None:
    """Rank and alpha of a module by the first pattern that ends its name; rsLoRA divides by the root of the rank."""
    spec = read_config(base)
    path = make_adapter(tmp_path / "x", base)

    def up(**config: Any) -> dict[str, torch.Tensor]:
        configure(path, **config)
        return {name: pair.up for name, pair in read_lora(path, spec).modules.items()}

    plain = up()
    by_root = up(use_rslora=True)
    assert all(torch.allclose(by_root[name], 2 * plain[name]) for name in plain)
    some = up(use_rslora=False, alpha_pattern={r"layers\.0\..*q_proj": 24, "down_proj": 2})
    factors = {name: float((some[name] / plain[name]).mean()) for name in plain}
    for name, factor in factors.items():
        want = 3.0 if "layers.0." in name and "q_proj" in name else 0.25 if "down_proj" in name else 1.0
        assert factor == pytest.approx(want), name


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b",
        "(.*)*x",
        "(a|a)*b",
        "(a|aa)+$",
        r"(\w+)\1*",
        "(?:.|..)" * 30,
        ".*" * 9,
        "(",
        "x" * 9999,
        "(?:a{1,9}){9}",
    ],
)
def test_a_pattern_that_may_take_long_is_refused(base: Path, tmp_path: Path, pattern: str) -> None:
    """Patterns come with the adapter, and adapters may come over HTTP."""
    path = make_adapter(tmp_path / "x", base)
    for key in ("rank_pattern", "alpha_pattern"):
        configure(path, rank_pattern={}, alpha_pattern={})
        configure(path, **{key: {pattern: 4}})
        with pytest.raises(PacelineError, match="none that is served"):
            read_lora(path, read_config(base))
    configure(path, rank_pattern=["q_proj"])
    with pytest.raises(PacelineError, match="an object is expected"):
        read_lora(path, read_config(base))


SLOW_ENTRY = "[a-z.]*[a-z.]*{}!"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rank_pattern": {f"q_proj{i}": 4 for i in range(20_000)}}, "at most 1,024"),
        ({"alpha_pattern": {SLOW_ENTRY.format(i): 4 for i in range(33)}}, "at most 32 entries"),
        ({"rank_pattern": {"[a.]*[a.]*[a.]*!": 4}}, "2 times at most"),
        ({"modules_to_save": ["x" * 900_000]}, "replaces whole modules"),
        ({"x" * 900_000: 1}, "which is not served"),
        ({"target_modules": ["q_proj", *map(str, range(60_000))]}, "for modules '0'"),
    ],
    ids=["patterns", "repeating", "repeats", "text", "key", "targets"],
)
def test_a_config_of_any_size_is_refused_soon_and_briefly(
    base: Path, tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    path = make_adapter(tmp_path / "x", base)
    configure(path, **config)
    with pytest.raises(PacelineError, match=words) as caught:
        read_lora(path, read_config(base))
    assert len(str(caught.value)) <= MAX_MESSAGE_CHARS


def test_patterns_are_tried_on_the_models_own_names_alone(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of a file are as long as it likes; a list of names and of layers is looked up, not walked."""
    spec, path = read_config(base), make_adapter(tmp_path / "x", base)
    many = ["q_proj", "v_proj", *(f"other{i}" for i in range(1000))]
    configure(path, exclude_modules=many[2:], alpha_pattern={SLOW_ENTRY.format("q_proj"): 4})
    assert read_lora(path, spec).digest
    asked: list[str] = []
    monkeypatch.setattr(lora, "by_pattern", lambda config, key, module, default: asked.append(module) or default)
    whole = path / "adapter_model.safetensors"
    tensors = {name.replace("q_proj", "a." * 90): it for name, it in load_file(whole).items()}
    save_file(tensors, whole)
    with pytest.raises(PacelineError, match="which no linear layer"):
        read_lora(path, spec)
    assert asked and not any("a.a." in name for name in asked)


def test_pickled_factors_are_the_same_adapter_and_nothing_runs(base: Path, tmp_path: Path) -> None:
    spec = read_config(base)
    path = make_adapter(tmp_path / "x", base)
    whole = path / "adapter_model.safetensors"
    tensors, digest = load_file(whole), read_lora(path, spec).digest
    whole.unlink()
    torch.save(tensors, path / "adapter_model.bin")
    assert read_lora(path, spec).digest == digest
    torch.save({**tensors, "x": Path("a")}, path / "adapter_model.bin")
    with pytest.raises(PacelineError, match="damaged"):
        read_lora(path, spec)
    (path / "adapter_model.bin").write_bytes((path / "adapter_model.bin").read_bytes()[:-500])
    with pytest.raises(PacelineError, match="damaged"):
        read_lora(path, spec)
    torch.save([1], path / "adapter_model.bin")
    with pytest.raises(PacelineError):
        read_lora(path, spec)


@pytest.mark.parametrize("family", ["qwen2_moe", "mixtral"])
def test_routed_experts_may_be_left_out(tmp_path: Path, family: str) -> None:
    """transformers holds routers and experts in no linear layers, so PEFT's targets mean none of them."""
    model = tiny_checkpoint(tmp_path / "base", family)
    path, spec = make_adapter(tmp_path / "a", model), read_config(model)
    file = path / "adapter_model.safetensors"
    routed = (".experts.", ".mlp.gate.", "block_sparse_moe.gate.")
    rest = {name: it for name, it in load_file(file).items() if not any(part in name for part in routed)}
    save_file(rest, file)
    assert len(read_lora(path, spec).modules) == len(rest) // 2
    save_file({name: it for name, it in rest.items() if ".layers.0.self_attn.q_proj" not in name}, file)
    with pytest.raises(PacelineError, match="lacks the factors"):
        read_lora(path, spec)


def test_a_file_that_ends_like_an_archive_is_what_it_begins_with(base: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + bytes(500) + b"PK\5\6" + b"\xff" * 18)
    with pytest.raises(CheckpointError):
        read_lora(path, read_config(base))


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_names_of_models_that_read_pictures(base: Path, tmp_path: Path, prefix: str) -> None:
    """Their text is served, and so is an adapter of it; patterns are of the names that it was trained with."""
    patterns = {rf"{prefix}layers.0.self_attn.q_proj": 3}
    adapter, spec = make_adapter(tmp_path / "a", base), read_config(base)
    configure(adapter, alpha_pattern={"model.layers.0.self_attn.q_proj": 3})
    whole = shutil.copytree(adapter, tmp_path / "whole")
    configure(whole, alpha_pattern=patterns, target_modules=rf"{re.escape(prefix)}.*_proj")
    file = whole / "adapter_model.safetensors"
    tensors = {
        name.replace("base_model.model.model.", f"base_model.model.{prefix}"): it
        for name, it in load_file(file).items()
    }
    save_file(tensors, file)
    assert read_lora(whole, spec).digest == read_lora(adapter, spec).digest
    change(whole, lambda t: None, "A", "B")
    with pytest.raises(CheckpointError, match="lacks the factors"):
        read_lora(whole, spec)
    add(whole, "base_model.model.model.visual.blocks.0.attn.qkv.lora_A.weight")
    with pytest.raises(PacelineError, match="reads pictures"):
        read_lora(whole, spec)


@pytest.mark.parametrize("family", ["deepseek_v3", "falcon_h1"])
def test_parts_that_lie_in_others(family: str, tmp_path: Path) -> None:
    """What makes keys and values of latent vectors is multiplied into others, and Falcon-H1's factors into weights: the
    logits are those of merged weights, in passes that have rows without an adapter, too."""
    model = tiny_checkpoint(tmp_path / "base", family)
    adapter = make_adapter(tmp_path / "a", model)
    merged, plain = (
        load_model(at, dtype="float32", cache=False) for at in (merge(tmp_path / "m", model, adapter), model)
    )
    plain.adapt().install(1, read_lora(adapter, plain.spec))
    tokens, table = [5, 9, 200, 17, 33, 8, 9, 200], [range(2), range(2, 4)]
    for each in (merged, plain):
        each.allocate(4, 4)
    rows = lay_out([Chunk(at, 0, tokens) for at in table], 4)
    want, base = merged.forward(rows).logits[:8], plain.forward(rows).logits[8:]
    first, other = rows.segments
    both = plain.forward(replace(rows, segments=[first._replace(adapter=1), other])).logits
    assert (want - base).abs().max() > 1
    torch.testing.assert_close(both[:8], want, atol=1e-4, rtol=1e-4)
    assert torch.equal(both[8:], base)
    plain.adapt().remove(1)
    assert torch.equal(plain.forward(replace(rows, segments=[first._replace(adapter=1), other])).logits[:8], base)
