"""Adapters in GGUF files, as llama.cpp's converter writes them: names, scales and the order of heads of each family."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file

from paceline import LLM, SamplingParams
from paceline.core.errors import PacelineError
from paceline.model.checkpoint import read_config
from paceline.model.gguf.architectures import ARCHITECTURES
from paceline.model.gguf.tensors import names_of
from paceline.model.load import load_model
from paceline.model.lora import fused, interleaved, read_lora
from paceline.model.lora_places import lora_places
from tests.lora import make_adapter, merge
from tests.model.gguf.files import KINDS, write_gguf
from tests.oracle.rows import Chunk, lay_out
from tests.tiny import tiny_checkpoint

STORED = ("qwen3_5_text", "mixtral", *(pytest.param(it, marks=pytest.mark.full) for it in ("mistral", "qwen3_next")))
"""Families of which such files have layers in an order of their own, under another architecture, or experts in one."""
FACTS: dict[str, Any] = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 8.0}
FAMILIES = {"qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2", "gemma3": "gemma3", "smollm3": "smollm3",
            "olmo2": "olmo2", "starcoder2": "starcoder2", "mistral": "llama", "glm4": "glm4",
            "phi3": "phi3"}  # fmt: skip
"""Families, and the architectures of their files."""


def write(
    path: Path, facts: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], architecture: str = "llama"
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in facts.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_float32(key, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def converted(adapter: Path, model: Path, architecture: str) -> dict[str, torch.Tensor]:
    """Tensors as convert_lora_to_gguf.py names them; where pairs of a head lie side by side in such files and not in
    the checkpoint, so do those of B."""
    spec, found = read_config(model), dict[str, torch.Tensor]()
    names = names_of(architecture, len(spec.layers))
    swapped = ARCHITECTURES[architecture].interleaved and architecture in ("llama", "smollm3")
    for name, tensor in load_file(adapter / "adapter_model.safetensors").items():
        module, part = name.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".lora_", 1)
        heads = spec.heads if module.endswith("q_proj") else spec.kv_heads if module.endswith("k_proj") else 0
        if part == "B" and heads and swapped:
            pairs = tensor.view(heads, 2, spec.head_dim // 2, -1).transpose(1, 2)
            tensor = pairs.reshape(tensor.shape).contiguous()
        found[f"{names[module]}.weight.lora_{part.lower()}"] = tensor
    return found


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


def test_texts_are_those_of_the_adapter_it_was_made_of(llama: Path, tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "a", llama)
    file = write(tmp_path / "a.gguf", FACTS, converted(adapter, llama, "llama"))
    prompt = [5, 9, 200, 17, 33, 8, 9, 200, 17, 60, 61]
    wishes = [SamplingParams(temperature=t, seed=7, max_tokens=16, ignore_eos=True, adapter=name)
              for name in ("a", "g", "") for t in (0.0, 0.8)]  # fmt: skip
    for dtype in ("float32", "bfloat16"):
        lora = {"a": adapter, "g": file}
        with LLM(llama, dtype=dtype, drafter="none", lora=lora, blocks=64, weights_cache=False) as llm:  # type: ignore[arg-type]
            texts = [out.token_ids for out in llm.generate([prompt] * 6, wishes, progress=False)]
        assert texts[:2] == texts[2:4] != texts[4:]


@pytest.mark.parametrize("family", FAMILIES)
def test_names_and_scales_of_each_family(family: str, tmp_path: Path) -> None:
    """Every factor arrives where PEFT's does; ranks that differ by module have scales of their own."""
    model = tiny_checkpoint(tmp_path / "base", family)
    adapter, spec = make_adapter(tmp_path / "a", model), read_config(model)
    file = tmp_path / "a.gguf"
    tensors = converted(adapter, model, FAMILIES[family])
    narrow = [name for name in tensors if ".1." in name and "ffn_down" in name]
    assert len(narrow) == 2
    for name in narrow:  # rank 2 in place of 4: the scale is twice as large
        tensors[name] = (tensors[name][:2] if name.endswith("_a") else tensors[name][:, :2]).contiguous()
    write(file, FACTS, tensors, FAMILIES[family])
    ours, theirs = read_lora(adapter, spec), read_lora(file, spec)
    assert ours.modules.keys() == theirs.modules.keys()
    for place in lora_places(spec, False, False):
        if not any(("down_proj" in name and ".1." in name) or "c_proj" in name for name in place.modules):
            pairs = [fused(each, it) for it in (ours, theirs)
                     for each in lora_places(spec, False, interleaved(spec, it))
                     if (each.layer, each.matrix) == (place.layer, place.matrix)]  # fmt: skip
            first, second = (pair.up @ pair.down for pair in pairs if pair is not None)
            assert torch.allclose(first, second, atol=1e-6), place.modules
    [short] = [name for name, pair in theirs.modules.items() if len(pair.down) == 2]
    assert torch.equal(theirs.modules[short].up, 2 * ours.modules[short].up[:, :2])


def told_apart(model: Path, merged: Path) -> dict[str, torch.Tensor]:
    """Factors of what two files differ in, as their numbers lie, which is how the converter leaves an adapter's."""
    before, after = ({it.name: torch.tensor(it.data) for it in gguf.GGUFReader(at).tensors} for at in (model, merged))
    found = dict[str, torch.Tensor]()
    for name, whole in before.items():
        if not torch.equal(whole, after[name]):
            shape = (1, *whole.shape)[-2:]
            change = (after[name].double() - whole.double()).view(-1, *shape)
            left, size, right = torch.linalg.svd(change, full_matrices=False)
            up, down = left[:, :, :8] * size[:, None, :8] * min(8, *shape) / 8, right[:, :8]
            found[f"{name}.lora_a"], found[f"{name}.lora_b"] = (
                (it if whole.dim() == 3 else it[0]).float().contiguous() for it in (down, up)
            )
    return found


@pytest.mark.parametrize("family", STORED)
def test_orders_of_both_layouts(family: str, tmp_path: Path) -> None:
    """PEFT's adapters on GGUF files, and GGUF adapters on both, give what merged weights give."""
    model = tiny_checkpoint(tmp_path / "base", family)
    adapter = make_adapter(tmp_path / "a", model)
    whole = merge(tmp_path / "merged", model, adapter)
    files = [write_gguf(tmp_path / f"{at.name}.gguf", at) for at in (model, whole)]
    tensors = told_apart(*files)
    other = write(tmp_path / "a.gguf", FACTS, tensors, KINDS[family])
    want, plain = (logits(at, None) for at in (whole, model))
    assert (want - plain).abs().max() > 1
    for base in (model, files[0]):
        expected = logits(files[1], None) if base in files else want
        for given in (adapter, other):
            torch.testing.assert_close(logits(base, given), expected, atol=2e-3, rtol=2e-3)


def logits(path: Path, adapter: Path | None) -> torch.Tensor:
    """Logits of a text, with an adapter."""
    decoder = load_model(path, dtype="float32", cache=False)
    decoder.allocate(4, 4)
    if adapter is not None:
        decoder.adapt().install(1, read_lora(adapter, decoder.spec))
    rows = lay_out([Chunk(range(4), 0, [5, 9, 200, 17, 33, 8, 9, 200, 17, 60])], 4)
    segments = [it._replace(adapter=int(adapter is not None)) for it in rows.segments]
    return decoder.forward(replace(rows, segments=segments)).logits


BAD: dict[str, tuple[dict[str, Any], Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], str]] = {
    "a model": ({"general.type": "model"}, lambda t: t, "no adapter"),
    "another kind": ({"adapter.type": "ia3"}, lambda t: t, "no adapter"),
    "activated later": ({"adapter.alora.invocation_tokens": [1, 2]}, lambda t: t, "alora"),
    "alpha 0": ({"adapter.lora.alpha": 0.0}, lambda t: t, "positive number"),
    "infinite alpha": ({"adapter.lora.alpha": float("inf")}, lambda t: t, "positive number"),
    "negative alpha": ({"adapter.lora.alpha": -8.0}, lambda t: t, "positive number"),
    "alpha that is no number": ({"adapter.lora.alpha": float("nan")}, lambda t: t, "positive number"),
    "alpha as a truth value": ({"adapter.lora.alpha": True}, lambda t: t, "positive number"),
    "a terminal's commands": ({}, lambda t: {**t, "\x1b[2J.lora_a": torch.zeros(2, 2)}, r"\\x1b\[2J"),
    "alpha as a text": ({"adapter.lora.alpha": "8"}, lambda t: t, "positive number"),
    "half a pair": ({}, lambda t: dict([*t.items()][1:]), "only one factor"),
    "nan": ({}, lambda t: {name: it * float("nan") for name, it in t.items()}, "not finite"),
    "embedding": ({}, lambda t: {**t, "token_embd.weight.lora_a": torch.zeros(2, 2)}, "no linear layer"),
    "a norm": ({}, lambda t: {**t, "blk.0.attn_norm.weight": torch.zeros(64)}, "no linear layer"),
    "ranks that differ": ({}, lambda t: {n: it[:2] if n.endswith("_a") else it for n, it in t.items()}, "factors"),
    "nothing": ({}, lambda t: {}, "no factors"),
    "another shape": ({}, lambda t: {n: it[:, 2:] if n.endswith("_a") else it for n, it in t.items()}, "another model"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused(llama: Path, tmp_path: Path, case: str) -> None:
    facts, spoil, words = BAD[case]
    tensors = {
        name: it.contiguous()
        for name, it in spoil(converted(make_adapter(tmp_path / "a", llama), llama, "llama")).items()
    }
    file = write(tmp_path / "a.gguf", {**FACTS, **facts}, tensors)
    with pytest.raises(PacelineError, match=words):
        read_lora(file, read_config(llama))


def test_of_another_architecture_or_cut(llama: Path, tmp_path: Path) -> None:
    adapter, spec = make_adapter(tmp_path / "a", llama), read_config(llama)
    tensors = converted(adapter, llama, "llama")
    for architecture, words in (("qwen2", "another model"), ("bert", "not served")):
        with pytest.raises(PacelineError, match=words):
            read_lora(write(tmp_path / f"{architecture}.gguf", FACTS, tensors, architecture), spec)
    file = write(tmp_path / "cut.gguf", FACTS, tensors)
    file.write_bytes(file.read_bytes()[:-64])
    with pytest.raises(PacelineError):
        read_lora(file, spec)
