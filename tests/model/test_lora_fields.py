"""Every field of PEFT's LoraConfig (0.21.2): used as there, refused, or of no effect on what is computed."""

import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from paceline.core.errors import PacelineError
from paceline.model.checkpoint import read_config
from paceline.model.lora import read_lora
from paceline.model.lora_config import MAX_WISH_REPEATS, served
from tests.lora import configure, make_adapter
from tests.tiny import tiny_checkpoint

INERT: dict[str, list[Any]] = {
    "task_type": ["CAUSAL_LM", None],
    "auto_mapping": [{"base_model_class": "X", "parent_library": "y"}],
    "peft_version": ["0.21.2"],
    "base_model_name_or_path": ["x"],
    "revision": ["main"],
    "inference_mode": [True, False],
    "lora_dropout": [0.1],
    "megatron_core": ["megatron.core"],
    "loftq_config": [{"loftq_bits": 4}],
    "eva_config": [{"rho": 2.0}],
    "corda_config": [{"corda_method": "kpm"}],
    "lora_ga_config": [{"direction": "ArB2r"}],
    "velora_config": [{"num_groups": 2}],
    "qalora_group_size": [32],
    "ensure_weight_tying": [True],
}
REFUSED: dict[str, list[Any]] = {
    "fan_in_fan_out": [True],
    "bias": ["all", "lora_only"],
    "modules_to_save": [["lm_head"]],
    "megatron_config": [{"x": 1}],
    "trainable_token_indices": [[0], {"embed_tokens": [0]}],
    "use_dora": [True],
    "alora_invocation_tokens": [[5]],
    "use_qalora": [True],
    "monteclora_config": [{"num_samples": 4}],
    "layer_replication": [[[0, 2]]],
    "runtime_config": [{"ephemeral_gpu_offload": True}],
    "lora_bias": [True],
    "use_bdlora": [{"nblocks": 2}],
    "arrow_config": [{"top_k": 3}],
    "kasa_config": [{"beta": 0.1}],
    "peft_type": ["DORA", "IA3", None],
    "r": [5],
    "target_parameters": [["mlp.experts.down_proj"]],
    "a_later_field": [1],
}
USED: dict[str, list[Any]] = {
    "lora_alpha": [3],
    "use_rslora": [True],
    "alpha_pattern": [{"q_proj": 3}, {r".*layers\.[01]\.mlp\.(up|down)_proj": 3}, {r"^model\.layers\.0\..*": 3}],
}
"""They change the factors; `rank_pattern` and what names modules, below."""
BEGUN: dict[str, list[Any]] = {
    "inert": [True, False, None, "gaussian", "eva", "orthogonal", "mica"],
    "refused": ["pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "novel"],
}
"""Values of `init_lora_weights`."""
MODULES: list[tuple[dict[str, Any], str]] = [
    ({"layers_to_transform": 1}, r"layers\.1\..*"),
    ({"layers_to_transform": [1], "layers_pattern": ["layers"]}, r"layers\.1\..*"),
    ({"layers_to_transform": [1], "layers_pattern": "model.layers"}, r"layers\.1\..*"),
    ({"layers_to_transform": [], "exclude_modules": ["q_proj", "mlp.up_proj"]}, r"(?!.*\.(q|up)_proj).*"),
    ({"exclude_modules": r".*\.(q|up)_proj"}, r"(?!.*\.(q|up)_proj).*"),
    ({"target_modules": ["self_attn.q_proj", "v_proj"]}, r".*\.(q|v)_proj"),
    ({"target_modules": r"model\.layers\.\d+\.self_attn\.(q|v)_proj"}, r".*\.(q|v)_proj"),
    ({"target_modules": r"^(?!.*visual).*(?:q_proj|v_proj).*"}, r".*\.(q|v)_proj"),
    ({"target_modules": "All-Linear"}, r".*"),
    ({"target_modules": ["model.layers.0.mlp.up_proj"], "layers_to_transform": [1]}, r"layers\.0\.mlp\.up_proj"),
]
"""(config, modules of the model without `model.` that PEFT takes for it)"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("base"), "llama")


def test_each_field(base: Path, tmp_path: Path) -> None:
    spec, path = read_config(base), make_adapter(tmp_path / "a", base)
    plain, kept = read_lora(path, spec).digest, (path / "adapter_config.json").read_text()

    def read(**config: Any) -> str:
        (path / "adapter_config.json").write_text(kept)
        configure(path, **config)
        return read_lora(path, spec).digest

    for key, value in [(key, value) for key, values in INERT.items() for value in values]:
        assert read(**{key: value}) == plain, key
    assert all(read(init_lora_weights=value) == plain for value in BEGUN["inert"])
    changed = [read(**{key: value}) for key, values in USED.items() for value in values]
    assert len({plain, *changed}) == 1 + len(changed)
    refused = [*REFUSED.items(), ("init_lora_weights", BEGUN["refused"])]
    for key, value in [(key, value) for key, values in refused for value in values]:
        with pytest.raises(PacelineError):
            read(**{key: value})


@pytest.mark.parametrize("case", range(len(MODULES)))
def test_what_names_modules(base: Path, tmp_path: Path, case: int) -> None:
    """An adapter with just the modules that PEFT takes is read; one with a module fewer, or with all, is refused."""
    config, taken = MODULES[case]
    spec, path = read_config(base), make_adapter(tmp_path / "a", base)
    file = path / "adapter_model.safetensors"
    whole = load_file(file)
    stems = {name: re.split(r"\.lora_", name.removeprefix("base_model.model.model."))[0] for name in whole}
    mine = {name: it for name, it in whole.items() if re.fullmatch(taken, stems[name])}
    configure(path, **config)
    save_file(mine, file)
    assert len(read_lora(path, spec).modules) == len(mine) // 2 > 0
    first = stems[min(mine)]
    fewer = {name: it for name, it in mine.items() if stems[name] != first}
    for wrong in (fewer, *([whole] if len(mine) < len(whole) else [])):
        save_file(wrong, file)
        with pytest.raises(PacelineError):
            read_lora(path, spec)


def test_ranks_by_pattern(base: Path, tmp_path: Path) -> None:
    spec, path = read_config(base), make_adapter(tmp_path / "a", base)
    file = path / "adapter_model.safetensors"
    narrow = {
        name: (it[:2] if "lora_A" in name else it[:, :2]).contiguous() if ".0.mlp.up_proj" in name else it
        for name, it in load_file(file).items()
    }
    save_file(narrow, file)
    for pattern in (r"layers\.0\.mlp\.up_proj", r"model\.layers\.0\.mlp\.(up|xx)_proj", "layers.[0].*up_proj"):
        configure(path, rank_pattern={pattern: 2})
        assert len(read_lora(path, spec).modules["model.layers.0.mlp.up_proj"].down) == 2
    configure(path, rank_pattern={"up_proj": 2})
    with pytest.raises(PacelineError, match="says rank"):
        read_lora(path, spec)


@pytest.mark.parametrize(
    "wish",
    [
        r".*\.layers\.\d+\.(self_attn\.)?(q_proj|v_proj)",
        r"(.*\.)?layers\.\d+\.self_attn\.(q|v)_proj",
        rf"model\.layers\.({'|'.join(map(str, range(32)))})\.(self_attn|mlp)\.(q_proj|k_proj|gate_proj|gate_up_proj)",
    ],
)
def test_expressions_as_people_write_them_are_served(wish: str) -> None:
    assert served(wish, MAX_WISH_REPEATS)
