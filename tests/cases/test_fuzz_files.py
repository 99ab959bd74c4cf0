"""Files of hostile shape through `LLM`: valid tiny files, changed by a seed. Each loads, or one sentence refuses it."""

import json
import pickle
import random
import resource
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM
from paceline.core.errors import CheckpointError, PacelineError
from paceline.draft.medusa import Medusa, MedusaConfig
from tests.draft.test_head import KINDS, SIZES, as_medusa, shaken
from tests.lora import make_adapter
from tests.tiny import tiny_checkpoint

VALUES: tuple[Any, ...] = (
    0, -1, 3, 2**31, 2**64, 10**9, 0.5, 1e308, float("nan"), float("inf"), True, None, "", "x", "\ud800", "a" * 10**5,
    [], {}, [[]], [1] * 999, [None], {"a": {}}, json.loads("[" * 400 + "]" * 400),
)  # fmt: skip
FILES = (
    "model/config.json", "model/tokenizer_config.json", "model/generation_config.json", "model/tokenizer.json",
    "model/model.safetensors", "lora/adapter_config.json", "lora/adapter_model.safetensors", "hydra/config.json",
    "clover/config.json", "clover/model.safetensors", "released/config.json",
)  # fmt: skip
MOST_GROWTH_BYTES = 300 << 20


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files")
    make_adapter(path / "lora", tiny_checkpoint(path / "model", seed=1))
    for kind in ("hydra", "clover"):
        shaken(KINDS[kind]).save(path / kind)
    config, weights = as_medusa(shaken(Medusa(MedusaConfig(**SIZES, depth=2, own_head=True))))
    (path / "released").mkdir()
    (path / "released/config.json").write_text(json.dumps(config))
    torch.save(weights, path / "released/medusa_lm_head.pt")
    return path


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of a JSON value with each of its keys."""
    keys = value if isinstance(value, dict) else range(min(len(value), 8)) if isinstance(value, list) else ()
    return [it for key in keys for it in ((value, key), *places(value[key]))]


def changed(value: Any, rng: random.Random) -> Any:
    made = deepcopy(value)
    within, key = rng.choice(places(made))
    if rng.random() < 0.15:
        del within[key]
    else:
        within[key] = rng.choice(VALUES)
    return made


def mutate(raw: bytes, rng: random.Random, is_json: bool) -> bytes:
    if rng.random() < 0.1:
        return rng.choice((b"", raw[: rng.randrange(len(raw))], b"[" * 10**5, raw[:50] + raw))
    if is_json:
        return json.dumps(changed(json.loads(raw), rng)).encode()
    size = int.from_bytes(raw[:8], "little")
    if rng.random() < 0.1:
        return rng.choice((0, size + 1, 2**31, 2**63)).to_bytes(8, "little") + raw[8:]
    head = json.dumps(changed(json.loads(raw[8 : 8 + size]), rng)).encode()
    return len(head).to_bytes(8, "little") + head + raw[8 + size :]


def served(root: Path, part: str) -> None:
    lora = {"a": str(root / "lora")} if part == "lora" else {}
    head = None if part in ("model", "lora") else root / part
    with LLM(root / "model", head, memory="60M", lora=lora) as llm:
        llm.text.encode("Tom")


def refused(root: Path, part: str) -> bool:
    try:
        served(root, part)
    except PacelineError as error:
        assert "\n" not in str(error)
        return True
    return False


def run(base: Path, root: Path, count: int) -> None:
    shutil.copytree(base, root)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in FILES:
        raw, rng, refusals = (base / name).read_bytes(), random.Random(name), int(count < 20)
        for _ in range(count):
            (root / name).unlink()  # another file, not another content of one that is mapped
            (root / name).write_bytes(mutate(raw, rng, name.endswith(".json")))
            refusals += refused(root, name.partition("/")[0])
        assert refusals, name
        (root / name).unlink()
        (root / name).write_bytes(raw)
    served(root, "released")
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < MOST_GROWTH_BYTES


def test_some_changed_files(base: Path, tmp_path: Path) -> None:
    run(base, tmp_path / "files", 1)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_many_changed_files(base: Path, tmp_path: Path) -> None:
    run(base, tmp_path / "files", 200)


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("hydra", "depth", 10**9), ("clover", "layers", 10**9), ("hydra", "hidden_size", 10**9),
        ("hydra", "accuracy", 3), ("released", "medusa_num_heads", 10**9), ("released", "medusa_num_layers", 10**9),
        ("model", "model_type", {}), ("model", "x", json.loads("[" * 400 + "]" * 400)),
    ],
)  # fmt: skip
def test_numbers_that_would_take_for_ever(file: str, key: str, value: Any, base: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(base, tmp_path / "files"))
    at = root / file / "config.json"
    at.write_text(json.dumps({**json.loads(at.read_text()), key: value}))
    with pytest.raises(CheckpointError):
        served(root, file)


def test_a_pickle_is_not_executed_and_not_advised(base: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(base, tmp_path / "files"))
    trap = tmp_path / "trap"

    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (trap,)

    for data in (pickle.dumps(Trap()), pickle.dumps([1])):
        (root / "released/medusa_lm_head.pt").write_bytes(data)
        with pytest.raises(CheckpointError) as said:
            served(root, "released")
        assert "weights_only" not in str(said.value) and not trap.exists()
    torch.save([1], root / "released/medusa_lm_head.pt")
    with pytest.raises(CheckpointError, match="no weights by name"):
        served(root, "released")
