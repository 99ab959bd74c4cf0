"""The zoo's commands: what is equal is on disk once, damage is refused, reports say what may be left out."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM
from paceline.core.errors import CheckpointError, InputError
from paceline.model import blockzoo, parts
from paceline.model.blockzoo import members, zoo_root
from paceline.model.equivalence import divergence, read_report
from paceline.native.build import library
from tests.engine.test_zoo import GREEDY, SMALL, alone, named, texts
from tests.lora import make_adapter
from tests.test_cli import failure, run
from tests.zoo import LAYERS, tuned

WIDE: dict[str, Any] = {"hidden": 256, "vocab": 400}
"""A matrix of it is large enough for a file of its own."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    library()
    monkeypatch.setattr(parts, "home", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def tunes(tmp_path: Path) -> dict[str, Path]:
    layers: dict[str, tuple[int, ...]] = {"base": (), "a": (3,), "b": (2, 3)}
    return {name: tuned(tmp_path / name, it, len(it), by=0.02, **WIDE) for name, it in layers.items()}


def said(*args: str) -> str:
    result = run("zoo", *args)
    assert result.exit_code == 0, result.output
    return result.output


def test_equal_matrices_are_on_disk_once(tunes: dict[str, Path]) -> None:
    for path in tunes.values():
        assert f"zoo:{path.name}" in said("add", str(path))
    weights = {name: (path / "model.safetensors").stat().st_size for name, path in tunes.items()}
    large = [t for it in members() for t in it.tensors.items()]
    assert len({digest for _, digest in large}) < len(large)
    by_layer = sum(f"layers.{LAYERS - 1}." in name for name in members()[0].tensors)
    assert len({digest for _, digest in large}) == len(members()[2].tensors) + by_layer * (1 + 2)
    listed = said("list").splitlines()
    assert [line.split()[0] for line in listed[1:]] == ["a", "b", "base"]
    assert "3 models" in said("du") and "times less" in said("du")
    assert blockzoo.disk_bytes() < 0.75 * sum(weights.values())
    for name, path in tunes.items():
        assert alone(Path(f"zoo:{name}"), GREEDY) == alone(path, GREEDY)
    with LLM("zoo:base", zoo={"a": "zoo:a"}, dtype="float32", drafter="none", **SMALL) as llm:
        assert texts(llm, named(GREEDY, "a"))[0] == alone(tunes["a"], GREEDY)
    before = blockzoo.disk_bytes()
    said("rm", "b")
    assert blockzoo.disk_bytes() < before and alone(Path("zoo:a"), GREEDY) == alone(tunes["a"], GREEDY)
    said("rm", "base")
    said("rm", "a")
    assert not [*(zoo_root() / "blobs").iterdir()]


def test_an_adapter_has_a_place_too(tunes: dict[str, Path], tmp_path: Path) -> None:
    lora = make_adapter(tmp_path / "lora", tunes["base"], 1)
    assert "zoo:lora" in said("add", str(lora))
    assert "adapter" in said("list")
    with LLM(tunes["base"], lora={"x": "zoo:lora", "y": lora}, dtype="float32", drafter="none", **SMALL) as llm:
        one, other = texts(llm, named(GREEDY, "x", "y"))
        assert one == other
    assert alone(tunes["base"], GREEDY) != one


def test_bad_input_is_one_sentence(tunes: dict[str, Path], tmp_path: Path) -> None:
    said("add", str(tunes["base"]))
    (tmp_path / "empty").mkdir()
    (tmp_path / "short.txt").write_text("a")
    for args, words in (
        (("add", str(tunes["base"])), "remove it first"),
        (("add", str(tunes["a"]), "--name", "../x"), "cannot be a name"),
        (("add", str(tmp_path / "none")), "neither a directory"), (("add", str(tmp_path / "empty")), "config.json"),
        (("rm", "nothing"), "no model 'nothing'"), (("rm", "../base"), "no model"),
        (("compare", "zoo:base", "zoo:nothing", "--text", "x"), "it holds base"),
        (("compare", "zoo:base", "zoo:base", "--text", str(tmp_path / "short.txt")), "at least 16"),
        (("compare", "zoo:base", "zoo:base", "--text", str(tmp_path / "no.txt")), "cannot be read"),
        (("compare", "zoo:base", "zoo:base", "--text", "x", "--bound", "2"), "--bound"),
    ):  # fmt: skip
        assert words in failure(run("zoo", *args)), args
    assert [it.name for it in members()] == ["base"]
    assert [it.name for it in (zoo_root() / "models").iterdir()] == ["base"]


def test_damage_is_found_when_it_is_read(tunes: dict[str, Path]) -> None:
    said("add", str(tunes["base"]))
    [it] = members()
    blob = zoo_root() / "blobs" / it.tensors["model.layers.1.mlp.up_proj.weight"]
    raw = bytearray(blob.read_bytes())
    raw[-3] ^= 1
    blob.write_bytes(raw)
    with pytest.raises(CheckpointError, match="do not match the digest") as caught:
        alone(Path("zoo:base"), GREEDY)
    assert "\n" not in str(caught.value)
    blob.unlink()
    with pytest.raises(CheckpointError, match="lacks"):
        alone(Path("zoo:base"), GREEDY)
    (it.path / "zoo.json").write_text(
        '{"layout": 1, "tensors": {"x": "../../../etc/passwd"}, "files": {}, "adapter": 0}'
    )
    with pytest.raises(CheckpointError, match="add the model again"):
        alone(Path("zoo:base"), GREEDY)


@pytest.mark.skipif(library() is None, reason="this machine has no native decoder")
def test_packed_weights_are_on_disk_once(
    tunes: dict[str, Path], here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Packed matrices that are equal are one file; each model comes back from them, bit for bit; one that nobody names
    any more is swept, and a damaged one is packed again."""
    from paceline.model import store
    from paceline.model.store import kept, parts_of, sweep

    monkeypatch.setattr(store, "MIN_STORED_BYTES", 0)
    monkeypatch.setattr(parts, "MIN_PART_BYTES", 16 << 10)
    want = {name: alone(path, GREEDY, dtype="bfloat16") for name, path in tunes.items()}
    options = {"dtype": "bfloat16", "weights_cache": True}
    for name, path in tunes.items():
        assert alone(path, GREEDY, **options) == want[name]
    named_parts = [part for file in kept() for part in parts_of(file)]
    there = {file.name for file in (here / "parts").iterdir()}
    assert len(named_parts) > len(there) == len({*named_parts})
    for name, path in tunes.items():
        assert alone(path, GREEDY, **options) == want[name]
    victim = here / "parts" / named_parts[0]
    victim.write_bytes(bytes(victim.stat().st_size))
    for _ in range(2):
        for name, path in tunes.items():
            assert alone(path, GREEDY, **options) == want[name]
    [said_once] = [record for record in caplog.records if "packed again" in record.getMessage()]
    assert "\n" not in said_once.getMessage()
    listed = run("list").output
    assert "base-native" in listed
    [base] = [file for file in kept() if file.name.startswith("base-")]
    own = {*parts_of(base)} - {key for file in kept() if file != base for key in parts_of(file)}
    assert own and store.remove(base) > sum(parts_of(base).values())
    there = {file.name for file in (here / "parts").iterdir()}
    assert not own & there
    for file in kept():
        file.unlink()
    sweep()
    assert {file.name for file in (here / "parts").iterdir()} == there
    sweep(at_once=True)
    assert not [*(here / "parts").iterdir()]


def test_a_report_says_which_layers_may_be_left_out(tunes: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("The sun was warm and the sea was blue. " * 12)
    common = (
        "compare",
        str(tunes["base"]),
        str(tunes["b"]),
        "--text",
        str(tmp_path / "text.txt"),
        "--dtype",
        "float32",
    )
    wide, out = tmp_path / "wide.json", tmp_path / "none.json"
    told = said(*common, "--bound", "1", "--out", str(wide))
    assert told.count("equal") >= 2 and "2 layers may be the base's" in told
    said(*common, "--bound", "0", "--out", str(out))
    found, nothing = read_report(wide), read_report(out)
    assert found.substitutes == (2, 3) and nothing.substitutes == () and found.layers == nothing.layers
    assert {*found.pairs()} == {it.own for it in found.layers if it.layer in (2, 3)}
    for it in found.layers:
        assert it.same == (it.layer < 2) and (it.divergence == 0) == it.same and (it.cosine < 1) == (not it.same)
    one = max(it.divergence for it in found.layers if not it.same)
    least = said(*common, "--bound", f"{one / 2}")
    assert "0 layers" in least or "1 layers" in least
    base, b = (alone(tunes[name], GREEDY) for name in ("base", "b"))
    assert base != b
    for report, want in ((wide, base), (out, b)):
        zoo: dict[str, Any] = {"zoo": {"b": tunes["b"]}, "substitute": [report]}
        with LLM(tunes["base"], dtype="float32", drafter="none", **zoo, **SMALL) as llm:
            assert texts(llm, named(GREEDY, "b"))[0] == want
    with pytest.raises(InputError, match="compare these models again"):
        LLM(tunes["base"], zoo={"a": tunes["a"]}, substitute=[wide], dtype="float32", **SMALL)
    with pytest.raises(InputError, match="no zoo"):
        LLM(tunes["base"], substitute=[wide], dtype="float32", **SMALL)
    wide.write_text(json.dumps({"layout": 1}))
    with pytest.raises(InputError, match="no report"):
        LLM(tunes["base"], zoo={"b": tunes["b"]}, substitute=[wide], dtype="float32", **SMALL)


def test_divergence_is_what_it_should_be() -> None:
    """Symmetric, 0 for equal ones, 1 bit for those that share nothing."""
    stream = torch.Generator().manual_seed(0)
    one, other = (torch.randn(5, 9, generator=stream, dtype=torch.float64).log_softmax(-1) for _ in range(2))
    assert torch.allclose(divergence(one, other), divergence(other, one)) and bool((divergence(one, other) > 0).all())
    assert float(divergence(one, one).abs().max()) < 1e-12
    first, last = (torch.full((1, 2), -1e9, dtype=torch.float64).index_fill(1, torch.tensor([i]), 0.0) for i in (0, 1))
    assert float(divergence(first, last)) == pytest.approx(1.0)
