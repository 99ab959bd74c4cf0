"""A GGUF file is the model that it was made of: every architecture against transformers, every part of its text."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import dequantize
from gguf.quants import quantize
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from paceline import LLM, SamplingParams
from paceline.core.errors import CheckpointError
from paceline.engine.text import Text
from paceline.model.checkpoint import read_config
from paceline.model.linear import STORED
from paceline.model.load import form, inspect, load_model, measure, packing_of
from paceline.model.native import NativeDecoder
from tests.model.gguf import files
from tests.model.gguf.files import KINDS, PROMPT, write_gguf
from tests.model.gguf.tiny_files import LATENT_YARN, OTHERS, PLAIN
from tests.model.test_footprint import held
from tests.oracle.cases import BLOCK, BLOCKS, CASES, LENGTH, Oracle, text, write
from tests.oracle.rows import feed
from tests.tiny import CORPUS, randomise, tiny_checkpoint, tiny_config

TOLERANCE = 1e-4
NAMES = ["llama", "llama-biases", "llama-linear", "llama-yarn", "qwen2-unwindowed", "qwen3", "phi3", "phi3-partial",
         "gemma2"]  # fmt: skip


def logits(path: Path, tokens: list[int], dtype: str = "float32") -> torch.Tensor:
    decoder = load_model(path, dtype=dtype)
    decoder.allocate(BLOCKS, BLOCK)
    return feed(decoder, tokens, range(LENGTH // BLOCK), BLOCK, [7, 8])


@pytest.mark.parametrize("name", NAMES)
def test_equals_transformers(name: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"query_pre_attn_scalar": 16} if name == "gemma2" else {}
    case = CASES[name]
    path = tiny_checkpoint(
        tmp_path, case.family, vocab=96, layers=3, with_tokenizer=False, **{**case.changes, **changes}
    )
    file = write_gguf(tmp_path / "model.gguf", path)
    torch.testing.assert_close(logits(file, text(1)), Oracle(path).logits(text(1)), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("family", OTHERS)
def test_other_architectures(family: str, tmp_path: Path) -> None:
    changes = {"layers": 3, **OTHERS[family]}
    path = tiny_checkpoint(tmp_path, family, vocab=96, with_tokenizer=False, **changes)
    file = write_gguf(tmp_path / "model.gguf", path)
    torch.testing.assert_close(logits(file, text(1)), Oracle(path).logits(text(1)), rtol=TOLERANCE, atol=TOLERANCE)


def test_numbers_that_lie_in_metadata(tmp_path: Path) -> None:
    """Apertus' activations, one number for each layer; the length that Hunyuan's converter states twice."""
    path = tiny_checkpoint(tmp_path / "a", "apertus", vocab=96, with_tokenizer=False)
    for changes in ({"xielu.alpha_p": None}, {"xielu.beta": [0.5] * 3}, {"xielu.more": 1.0}):
        with pytest.raises(CheckpointError, match="xielu"):
            load_model(write_gguf(tmp_path / "a.gguf", path, **changes), dtype="float32")
    path = tiny_checkpoint(tmp_path / "h", "hunyuan_v1_dense", vocab=96, with_tokenizer=False)
    for length, fits in ((512, True), (100, False)):
        file = write_gguf(
            tmp_path / "h.gguf", path, **{"hunyuan-dense__rope__scaling__original_context_length": length}
        )
        if fits:
            assert load_model(file, dtype="float32").max_len == 512
            continue
        with pytest.raises(CheckpointError, match="original_context_length"):
            load_model(file, dtype="float32")


def test_nemotron_h_without_experts(tmp_path: Path) -> None:
    """Dense parts that are layers of their own; sizes that no layer can have are named."""
    kinds = ["linear_attention", "mlp", "full_attention", "mlp"]
    changes: dict[str, Any] = {"layers_block_type": kinds, "time_step_min": 1e-30, "use_conv_bias": False}
    path = tiny_checkpoint(tmp_path, "nemotron_h", vocab=96, with_tokenizer=False, **changes)
    file = write_gguf(tmp_path / "model.gguf", path)
    torch.testing.assert_close(logits(file, text(1)), Oracle(path).logits(text(1)), rtol=TOLERANCE, atol=TOLERANCE)
    for key, value, named in (
        ("attention.head_count_kv", [0, 2, 2, 0], "layer that attends"),
        ("attention.head_count_kv", [0, 0, 2], "for each of the 4 layers"),
        ("feed_forward_length", [0, 64, 0, 32], "2 numbers above 0"),
        ("rope.scaling.finetuned", True, "rotated"),
    ):
        with pytest.raises(CheckpointError, match=named):
            load_model(write_gguf(tmp_path / "other.gguf", path, **{f"nemotron_h.{key}": value}), dtype="float32")


def test_every_architecture_is_tried() -> None:
    from paceline.model.gguf.architectures import ARCHITECTURES, DENSE_LATENT, MIXTRAL, SOFTMAX_LATENT, STEADY_MISTRAL

    tried = {CASES[name].family for name in NAMES} | {"gemma3_text"} | set(OTHERS)
    pictures = {"mistral4", "qwen2_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"}
    tried = (tried | pictures) - {"glm4_moe_lite"}  # it is read as deepseek_v3
    assert tried == {
        arch.model_type for arch in (*ARCHITECTURES.values(), STEADY_MISTRAL, MIXTRAL, SOFTMAX_LATENT, DENSE_LATENT)
    }


def test_gemma3(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, "gemma3", vocab=96, layers=7, with_tokenizer=False, query_pre_attn_scalar=16,
                           sliding_window_pattern=6)  # fmt: skip
    file = write_gguf(tmp_path / "model.gguf", path)
    torch.testing.assert_close(logits(file, text(1)), Oracle(path).logits(text(1)), rtol=TOLERANCE, atol=TOLERANCE)


def test_llama3_frequencies(tmp_path: Path) -> None:
    """`rope_freqs.weight` holds what the scaling divides each frequency by."""
    from paceline.model.checkpoint import read_config

    case = CASES["llama-llama3"]
    path = write(tmp_path, case)
    plain = write(tmp_path / "plain", CASES["llama"])
    scaled, default = (read_config(it).layers[0].mixer.rope.inverse for it in (path, plain))
    factors = torch.tensor(default) / torch.tensor(scaled)
    assert len(factors.unique()) > 2
    file = with_factors(tmp_path / "model.gguf", path, factors)
    torch.testing.assert_close(logits(file, text(1)), Oracle(path).logits(text(1)), rtol=TOLERANCE, atol=TOLERANCE)


def with_factors(file: Path, checkpoint: Path, factors: torch.Tensor) -> Path:
    class Writer(files.GGUFWriter):  # type: ignore[misc]
        def write_header_to_file(self, *args: Any) -> None:
            self.add_tensor("rope_freqs.weight", factors.float().numpy())
            super().write_header_to_file(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "GGUFWriter", Writer)
        return write_gguf(file, checkpoint)


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q5_1, Kind.Q5_0, Kind.Q4_1, Kind.Q4_0])
@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_kinds_are_the_dequantised_checkpoint(kind: Kind, quantize: str | None, tmp_path: Path) -> None:
    """Bit for bit, in bfloat16 and, where this machine has it, int8."""
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.torch import load_file, save_file

    from paceline.model.gguf.tensors import names_of
    from paceline.native.build import library

    if quantize == "int8" and library() is None:
        pytest.skip("this machine has no AVX-512 BF16 or no compiler")
    path = tiny_checkpoint(tmp_path, "qwen2", vocab=96, hidden=64, with_tokenizer=False, use_sliding_window=False)
    file = write_gguf(tmp_path / "model.gguf", path, kind)
    theirs = {tensor.name: tensor for tensor in GGUFReader(file).tensors}
    weights = load_file(path / "model.safetensors")
    for name in weights:
        stem, _, end = name.rpartition(".")
        tensor = theirs[f"{names_of('qwen2', 2)[stem]}.{end}"]
        weights[name] = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).view(weights[name].shape)
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    outs = []
    for source in (file, path):
        decoder = load_model(source, quantize=quantize)
        decoder.allocate(BLOCKS, BLOCK)
        outs.append(feed(decoder, text(1), range(LENGTH // BLOCK), BLOCK, [7, 8]))
    assert torch.equal(*outs)


OWN: dict[str, tuple[Kind, dict[str, Kind], set[int] | None]] = {
    "Q4_0": (Kind.Q4_0, {}, {4}),
    "Q4_1": (Kind.Q4_1, {}, {4}),
    "Q5_0": (Kind.Q5_0, {}, {5}),
    "Q8_0": (Kind.Q8_0, {}, {8}),
    "values of their own": (Kind.Q4_1, {"attn_v": Kind.Q8_0}, {4, 8}),
    "fused with a wider one": (Kind.Q4_1, {"ffn_up": Kind.Q8_0}, {4, 8}),
    "one matrix in floats": (Kind.Q4_0, {"attn_output": Kind.F16}, {4, 8}),
    "most in floats": (Kind.Q4_0, {"ffn": Kind.F16}, None),
    "BF16": (Kind.BF16, {}, None),
}
"""The kind of a file, those of some tensors, and the bits of its matrices in memory; None: it is served as floats."""


@pytest.mark.parametrize("name", OWN)
def test_a_file_keeps_its_own_bits(name: str, tmp_path: Path) -> None:
    if not form("bfloat16", None, "cpu").native:
        pytest.skip("the native decoder is not available here")
    kind, others, bits = OWN[name]
    path = tiny_checkpoint(tmp_path, "qwen2", vocab=96, hidden=128, with_tokenizer=False, use_sliding_window=False)
    file = write_gguf(tmp_path / "model.gguf", path, kind, others)
    own, wide = load_model(file), load_model(file, quantize="none")
    assert wide.packing.name == "native" and own.packing.name == ("native" if bits is None else STORED)
    outs = []
    for decoder in (own, wide):
        decoder.allocate(BLOCKS, BLOCK)
        outs.append(feed(decoder, text(1), range(LENGTH // BLOCK), BLOCK, [7, 8]).float())
    if bits is None:
        assert torch.equal(*outs)
        return
    assert not torch.equal(*outs)
    assert float((outs[0] - outs[1]).norm() / outs[1].norm()) < 0.03  # activations are in 8 bits
    assert isinstance(own, NativeDecoder)
    assert {layer.c.bits for layers in own.matrices()[:-1] for layer in layers} == bits
    spec = read_config(file)
    foretold = measure(file, spec, packing_of(file, spec, "bfloat16", None, "cpu")).weights
    assert held(own.weights) <= foretold <= 1.15 * held(own.weights)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint and the file of it."""
    path = tiny_checkpoint(tmp_path_factory.mktemp("pair"), "llama", hidden=64, num_key_value_heads=2)
    changes: Any = {"general.sampling.temp": 0.25, "general.sampling.top_k": 7, "tokenizer.ggml.eot_token_id": 4}
    return path, write_gguf(path / "model.gguf", path, **changes)


def test_text(pair: tuple[Path, Path]) -> None:
    ours, theirs = Text(pair[1]), AutoTokenizer.from_pretrained(pair[0])
    for line in [*CORPUS.splitlines(), CORPUS, "  two  spaces\n\n\t<eos> <user>x", ""]:
        assert ours.encode(line) == theirs.encode(line) and ours.decode(ours.encode(line)) == theirs.decode(
            theirs.encode(line)
        )
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours.chat(messages) == theirs.encode(expected)
    assert (ours.tokenizer.bos_token, ours.tokenizer.eos_token, ours.tokenizer.pad_token) == ("<bos>", "<eos>", "<pad>")
    assert ours.vocabulary(10**6) == theirs.get_vocab()
    assert {*ours.eos()} == {1, 4}
    assert (ours.defaults["temperature"], ours.defaults["top_k"]) == (0.25, 7)


def test_the_same_answers(pair: tuple[Path, Path]) -> None:
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    outs = [LLM(it, drafter="ngram", dtype="float32").generate(PROMPT, params, progress=False)[0] for it in pair]
    assert outs[0].token_ids == outs[1].token_ids and outs[0].text == outs[1].text


def test_facts(pair: tuple[Path, Path]) -> None:
    ours, theirs = inspect(pair[1]), inspect(pair[0])
    assert ours.spec == theirs.spec and ours.tensors == theirs.tensors


def test_a_directory_with_one_file(pair: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "only.gguf").symlink_to(pair[1])
    assert inspect(tmp_path).path == tmp_path / "only.gguf"


def test_layers_for_further_tokens_are_left_out(tmp_path: Path) -> None:
    """`nextn_predict_layers` counts blocks behind the last, which a pass does not read."""
    path = tiny_checkpoint(tmp_path, "glm4_moe", vocab=96, layers=3, with_tokenizer=False)
    expected = Oracle(path).logits(text(1))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    weights = load_file(path / "model.safetensors")
    weights |= {
        name.replace("layers.2.", "layers.3."): it.clone() for name, it in weights.items() if "layers.2." in name
    }
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    file = write_gguf(tmp_path / "model.gguf", path, glm4moe__nextn_predict_layers=1)
    assert len(read_config(file).layers) == 3
    torch.testing.assert_close(logits(file, text(1)), expected, rtol=TOLERANCE, atol=TOLERANCE)
    file = write_gguf(tmp_path / "none.gguf", path, glm4moe__nextn_predict_layers=4)
    with pytest.raises(CheckpointError, match=r"nextn_predict_layers .* which leaves no layer"):
        read_config(file)


def test_which_layers_slide(tmp_path: Path) -> None:
    """`attention.sliding_window_pattern`: a flag for each layer, or all but each n-th."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    path = tiny_checkpoint(tmp_path, "exaone4", vocab=96, layers=5, with_tokenizer=False, layer_types=kinds)
    key, flags = "exaone4__attention__sliding_window_pattern", [kind[0] == "s" for kind in kinds]
    file = write_gguf(tmp_path / "model.gguf", path, **{key: flags})
    torch.testing.assert_close(logits(file, text(1)), Oracle(path).logits(text(1)), rtol=TOLERANCE, atol=TOLERANCE)
    third = write_gguf(tmp_path / "third.gguf", path, **{key: 3})
    assert [it.attention.window is None for it in read_config(third).layers] == [False, False, True, False, False]
    for value in ([True] * 4, [2] * 5, 0):
        with pytest.raises(CheckpointError, match="sliding_window_pattern"):
            read_config(write_gguf(tmp_path / "bad.gguf", path, **{key: value}))


def test_sizes_of_a_recurrence_must_fit(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, "qwen3_5_text", vocab=96, layers=2, with_tokenizer=False)
    for key, value, told in (
        ("inner_size", 45, r"no multiple of the 4 of ssm\.time_step_rank"),
        ("group_count", None, r"ssm\.group_count .* is missing"),
    ):
        file = write_gguf(tmp_path / "bad.gguf", path, **{f"qwen35.ssm.{key}": value})
        with pytest.raises(CheckpointError, match=told):
            read_config(file)


def test_stablelm_12b(tmp_path: Path) -> None:
    """Norms of heads in one tensor, and no second norm."""
    changes = {"qk_layernorm": True, "use_parallel_residual": True}
    path = tiny_checkpoint(tmp_path, "stablelm", vocab=96, layers=3, with_tokenizer=False, **changes)
    file = write_gguf(tmp_path / "model.gguf", path, stablelm__use_parallel_residual=True)
    torch.testing.assert_close(logits(file, text(1)), Oracle(path).logits(text(1)), rtol=TOLERANCE, atol=TOLERANCE)
    with pytest.raises(CheckpointError, match="use_parallel_residual"):
        read_config(write_gguf(tmp_path / "other.gguf", path, stablelm__use_parallel_residual=False))


def test_stablelm_with_a_second_norm(tmp_path: Path) -> None:
    """Files say `use_parallel_residual` where the config did not: which it is, their norms say."""
    path = tiny_checkpoint(tmp_path, "stablelm", vocab=96, layers=2, with_tokenizer=False)
    expected = read_config(path)
    assert not expected.parallel
    for said in (True, False, None):
        file = write_gguf(tmp_path / "model.gguf", path, stablelm__use_parallel_residual=said)
        assert replace(read_config(file), eos=expected.eos) == expected
        file.unlink()


def test_norms_of_many_heads_stay_in_order() -> None:
    names = [f"model.layers.0.self_attn.q_layernorm.norms.{n}.weight" for n in range(12)]
    rows = files.of_heads({name: torch.full((2,), float(n)) for n, name in enumerate(names)})
    assert rows["model.layers.0.self_attn.q_layernorm.weight"][:, 0].tolist() == [*map(float, range(12))]


@pytest.mark.parametrize("arch", ["qwen2vl", "qwen3vl", "qwen3vlmoe"])
def test_the_text_of_models_that_read_pictures(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their text's part is laid out as that of the family without pictures."""
    family = {"qwen2vl": "qwen2", "qwen3vl": "qwen3", "qwen3vlmoe": "qwen3_moe"}[arch]
    changes: dict[str, Any] = {
        "qwen2vl": {"use_sliding_window": False, "tie_word_embeddings": False},
        "qwen3vl": {"attention_bias": False},
        "qwen3vlmoe": {"norm_topk_prob": True, "decoder_sparse_step": 1},
    }[arch]
    path = tiny_checkpoint(tmp_path, family, vocab=96, layers=3, with_tokenizer=False, **changes)
    monkeypatch.setitem(KINDS, family, arch)
    file = write_gguf(tmp_path / "model.gguf", path, **{f"{arch}__rope__dimension_sections": [24, 20, 20, 0]})
    torch.testing.assert_close(logits(file, text(1)), Oracle(path).logits(text(1)), rtol=TOLERANCE, atol=TOLERANCE)


def mistral4(path: Path) -> tuple[Path, torch.Tensor]:
    """A tiny checkpoint, which transformers has no automatic class for, and the logits of its own class."""
    from transformers import AutoConfig
    from transformers.models.mistral4.modeling_mistral4 import Mistral4ForCausalLM

    turned = {**LATENT_YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
    own = {"model_type": "mistral4", "n_group": 1, "topk_group": 1, "rope_parameters": turned}
    model = Mistral4ForCausalLM(AutoConfig.for_model(**tiny_config("deepseek_v3", vocab=96, layers=3) | own)).eval()
    randomise(model, 0)
    model.save_pretrained(path)
    return path, model(torch.tensor([text(1)])).logits[0].detach()


def test_mistral4(tmp_path: Path) -> None:
    """It says neither how queries grow nor from where on; served is what comes before."""
    path, expected = mistral4(tmp_path)
    file = write_gguf(tmp_path / "model.gguf", path)
    torch.testing.assert_close(logits(file, text(1)), expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert replace(read_config(path), eos=()) == read_config(file) and read_config(file).max_len == 128
    length = "mistral4__attention__temperature_length"
    read_config(write_gguf(tmp_path / "same.gguf", path, **{length: 128}))
    with pytest.raises(CheckpointError, match=r"temperature_length .* is 256, not the 128"):
        read_config(write_gguf(tmp_path / "other.gguf", path, **{length: 256}))
    keys = ("type", "factor", "original_context_length", "yarn_log_multiplier")
    yarn: Any = [f"mistral4.rope.scaling.{key}" for key in keys]
    with pytest.raises(CheckpointError, match=r"scaling\.type .* is missing"):
        read_config(write_gguf(tmp_path / "plain.gguf", path, **dict.fromkeys(yarn)))


def test_latent_files_of_two_ages(tmp_path: Path) -> None:
    """Older files have keys and values of a latent vector in one matrix; a width that fits neither age is named."""
    path = tiny_checkpoint(tmp_path, "youtu", vocab=96, layers=2, with_tokenizer=False)
    expected, file = Oracle(path).logits(text(1)), tmp_path / "model.gguf"
    older = {
        "deepseek2.attention.key_length_mla": None,
        "deepseek2.attention.value_length_mla": None,
        "deepseek2.attention.key_length": 20,
        "deepseek2.attention.value_length": 10,
        "deepseek2.attention.head_count_kv": 4,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.model.gguf.files.apart", lambda config, weights: weights)
        write_gguf(file, path, **older)
    torch.testing.assert_close(logits(file, text(1)), expected, rtol=TOLERANCE, atol=TOLERANCE)
    for key, value, told in (
        ("attention.key_length", 25, "is not 24, as latent keys"),
        ("attention.kv_lora_rank", 12, "rank of 16"),
        ("expert_shared_count", 1, "the model has no experts"),
        ("leading_dense_block_count", 1, "not the number of layers"),
        ("rope.scaling.yarn_log_multiplier", 0.1, "no YaRN"),
    ):
        write_gguf(tmp_path / f"{key}.gguf", path, **{f"deepseek2.{key}": value})
        with pytest.raises(CheckpointError, match=told):
            read_config(tmp_path / f"{key}.gguf")


RECURRENT_Q8 = {
    "qwen3_5_text": ({"linear_value_head_dim": 16, "full_attention_interval": 2}, ("attn_qkv", "attn_gate", "ssm_")),
    "granitemoehybrid": (
        {"layer_types": ["linear_attention", "full_attention"], "mamba_expand": 1},
        ("ssm_in", "ssm_out", "ffn_gate_exps"),
    ),
    "deepseek_v3": ({"kv_lora_rank": 32, "qk_nope_head_dim": 32}, ("attn_k_b", "attn_v_b", "attn_kv_a_mqa")),
}


@pytest.mark.parametrize("family", RECURRENT_Q8)
def test_quantised_parts_are_the_dequantised_ones(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of layers with a state, and of latent keys and values, whose rows and columns have an order of their own."""
    changes, parts = RECURRENT_Q8[family]
    path = tiny_checkpoint(
        tmp_path, family, vocab=96, layers=2, hidden=64, with_tokenizer=False, **{"rope_parameters": PLAIN, **changes}
    )
    kinds = {"conv1d": Kind.F32, **dict.fromkeys(parts, Kind.Q8_0)}
    stored = logits(write_gguf(tmp_path / "stored.gguf", path, others=kinds), text(1))
    monkeypatch.setattr(files, "quantize", lambda data, kind: dequantize(quantize(data, kind), kind))
    add = files.GGUFWriter.add_tensor
    monkeypatch.setattr(files.GGUFWriter, "add_tensor", lambda self, name, data, raw_dtype=None: add(self, name, data))
    assert torch.equal(stored, logits(write_gguf(tmp_path / "wide.gguf", path, others=kinds), text(1)))


RECURRENT_OWN: dict[str, dict[str, Any]] = {
    "lfm2": {"block_multiple_of": 32},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "granitemoehybrid": {**RECURRENT_Q8["granitemoehybrid"][0], "shared_intermediate_size": 64},
    "qwen3_5_text": RECURRENT_Q8["qwen3_5_text"][0],
    "qwen3_next": {
        **RECURRENT_Q8["qwen3_5_text"][0], "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    },
}  # fmt: skip
"""What differs from a family's tiny checkpoint, so that all matrices can be in groups."""


@pytest.mark.parametrize("family", RECURRENT_OWN)
def test_a_file_with_recurrences_keeps_its_own_bits(family: str, tmp_path: Path) -> None:
    if not form("bfloat16", None, "cpu").native:
        pytest.skip("the native decoder is not available here")
    sizes: dict[str, Any] = {"rope_parameters": PLAIN, **RECURRENT_OWN[family]}
    path = tiny_checkpoint(tmp_path, family, vocab=96, layers=2, hidden=64, with_tokenizer=False, **sizes)
    file = write_gguf(tmp_path / "model.gguf", path, Kind.Q4_0, dict.fromkeys(("conv1d", "shortconv.conv"), Kind.F32))
    own, wide = load_model(file), load_model(file, quantize="none")
    assert wide.packing.name == "native" and own.packing.name == STORED
    outs = []
    for decoder in (own, wide):
        decoder.allocate(BLOCKS, BLOCK)
        outs.append(feed(decoder, text(1), range(LENGTH // BLOCK), BLOCK, [7, 8]).float())
    assert not torch.equal(*outs)
    apart = float((outs[0] - outs[1]).norm() / outs[1].norm())
    assert apart < 0.15, "activations are in 8 bits, and a state adds up what they are off"
    assert isinstance(own, NativeDecoder)
    assert {layer.c.bits for layers in own.matrices()[:-1] for layer in layers} == {4}
    spec = read_config(file)
    foretold = measure(file, spec, packing_of(file, spec, "bfloat16", None, "cpu")).weights
    assert held(own.weights) <= foretold <= 1.3 * held(own.weights)


LATENT_SIZES = {"kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32}
LOOSE: dict[str, dict[str, Any]] = {
    "gemma4_text": {"hidden_size_per_layer_input": 32, "moe_intermediate_size": 32},
    "deepseek_v3": {**LATENT_SIZES, "moe_intermediate_size": 32},
    "falcon_h1": {},
    "nemotron_h": {"moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 64},
    "apertus": {},
    "hunyuan_v1_moe": {},
}
"""As `RECURRENT_OWN`, of families that PyTorch computes."""


@pytest.mark.parametrize(
    "family", [pytest.param(it, marks=[] if it in ("gemma4_text", "deepseek_v3") else pytest.mark.full) for it in LOOSE]
)
def test_a_file_of_other_layers_keeps_its_own_bits(family: str, tmp_path: Path) -> None:
    """Each product is a native call; what lies between them is PyTorch's."""
    if not form("bfloat16", None, "cpu").native:
        pytest.skip("the native decoder is not available here")
    sizes = {"layers": 3, **OTHERS[family], **LOOSE[family]}
    path = tiny_checkpoint(tmp_path, family, vocab=96, hidden=64, with_tokenizer=False, **sizes)
    floats = dict.fromkeys(("conv1d", "ffn_gate_inp", "ssm_norm"), Kind.F32)
    file = write_gguf(tmp_path / "model.gguf", path, Kind.Q4_0, floats)
    own, wide, exact = load_model(file), load_model(file, quantize="none"), logits(file, text(1))
    assert own.packing.name == f"{STORED} products" and not wide.packing.native
    own.allocate(BLOCKS, BLOCK)
    found = feed(own, text(1), range(LENGTH // BLOCK), BLOCK, [7, 8]).float()
    assert float(torch.nn.functional.cosine_similarity(found, exact, dim=1).median()) > 0.995
    assert own.weight_bytes < 0.6 * wide.weight_bytes
    spec = read_config(file)
    foretold = measure(file, spec, packing_of(file, spec, "bfloat16", None, "cpu")).weights
    assert held(own.weights) <= foretold <= 1.5 * held(own.weights)
    assert packing_of(write_gguf(tmp_path / "wide.gguf", path, Kind.F16), spec, "bfloat16", None, "cpu").name != STORED


def test_projections_of_qwen3_next_in_older_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There they lie head by head, as in the checkpoint."""
    path = tiny_checkpoint(tmp_path, "qwen3_next", vocab=96, layers=2, with_tokenizer=False, full_attention_interval=2)
    take_apart = files.unfused

    def as_they_were(config: dict[str, Any], weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        whole = {name: it for name, it in weights.items() if "qkvz" in name}
        out = take_apart(config, weights) | whole
        return {name: it for name, it in out.items() if "in_proj_qkv." not in name and "in_proj_z." not in name}

    monkeypatch.setattr(files, "unfused", as_they_were)
    file = write_gguf(tmp_path / "model.gguf", path)
    torch.testing.assert_close(logits(file, text(1)), Oracle(path).logits(text(1)), rtol=TOLERANCE, atol=TOLERANCE)
