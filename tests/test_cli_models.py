"""`paceline pull`, `list`, `rm` and `pack`, and the demo without a network."""

import logging
from pathlib import Path

import pytest

from paceline.model import parts, store
from paceline.model import pull as pulling
from paceline.model.catalogue import CATALOGUE
from paceline.native.build import library
from tests.model.gguf.files import write_gguf
from tests.test_cli import failure, run
from tests.tiny import tiny_checkpoint


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, no hub and no package index."""
    library()
    for module in (pulling, parts):
        monkeypatch.setattr(module, "home", lambda: tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    (tmp_path / "hub").mkdir()
    return tmp_path / "cache"


@pytest.fixture
def pulled(here: Path, tmp_path: Path) -> Path:
    """A tiny model where `smollm2` would be."""
    checkpoint = tiny_checkpoint(tmp_path / "model", "llama", hidden=64)
    (here / "models").mkdir(parents=True)
    return write_gguf(here / "models" / "smollm2.gguf", checkpoint)


def test_list_shows_the_catalogue_and_what_is_here(pulled: Path) -> None:
    shown = run("list").stdout
    assert "smollm2" in shown and "On this machine" in shown and "qwen3" in shown
    pulled.unlink()
    assert "On this machine" not in run("list").stdout


def test_pull_and_remove(pulled: Path) -> None:
    assert run("pull", "smollm2").stdout.split() == [str(pulled)]
    said = run("rm", "smollm2").stdout
    assert "Removed smollm2" in said and not pulled.exists()
    assert "no model smollm2 to remove" in failure(run("rm", "smollm2"))


def test_what_cannot_be_pulled_says_why() -> None:
    said = failure(run("pull", "smollm2"))
    assert "hub" in said and "package index" in said
    assert "neither a directory nor a hub id" in failure(run("pull", "no such name"))
    with_draft = next(name for name, entry in CATALOGUE.items() if entry.draft)
    assert "hub" in failure(run("pull", with_draft))


def test_a_name_serves_as_a_model(pulled: Path) -> None:
    result = run(
        "generate", "Tom has", "--model", "smollm2", "--dtype", "float32", "--memory", "100M", "--max-tokens", "4",
        "--drafter", "none", "--seed", "1",
    )  # fmt: skip
    assert result.exit_code == 0 and "4 tokens" in result.stderr


def test_pack(pulled: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "only the native decoder's" in failure(run("pack", "--model", str(pulled), "--dtype", "float32"))
    if library() is None:
        pytest.skip("this machine has no AVX-512 BF16 or no compiler")
    for _ in range(2):
        said = run("pack", "--model", "smollm2").stdout
        [file] = (here / "packed").iterdir()
        assert str(file) in said and "peak memory" in said
    monkeypatch.setattr(store, "FREE_DISK_BYTES", 1 << 62)
    assert "make room" in failure(run("pack", "--model", "smollm2", "--quantize", "int8"))
    assert list((here / "packed").iterdir()) == [file]
    assert "Removed packed" in run("rm", "packed").stdout and pulled.exists()
    assert not list((here / "packed").iterdir())


@pytest.mark.parametrize("present", [True, False])
def test_demo(present: bool, here: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the model of the catalogue, plainly, with lookup and by the planner; else by the bundled pair, saying why."""
    if present:
        checkpoint = tiny_checkpoint(tmp_path / "model", "llama", hidden=64)
        (here / "models").mkdir(parents=True)
        write_gguf(here / "models" / "smollm2.gguf", checkpoint)
    with caplog.at_level(logging.ERROR):
        result = run("demo", "--max-tokens", "16", "--dtype", "float32", "--memory", "400M")
    assert result.exit_code == 0, result.output
    modes = ["none", "ngram", "auto"] if present else ["none", "ngram", "model"]
    assert all(f"{mode:>6}  " in result.stdout for mode in modes)
    assert ("SmolLM2" in result.stdout.splitlines()[0]) and (("bundled pair" in result.stdout) != present)


def test_the_bundled_head_is_the_draft_of_its_model_alone(here: Path, tmp_path: Path) -> None:
    from paceline.draft.head import HeadFiles, facts_of
    from paceline.draft.hydra import Hydra
    from paceline.engine.options import Options
    from paceline.engine.pair import DEMO, boxed, paths

    head = DEMO / "smollm2-head"
    facts = facts_of(head)
    assert (facts.method, facts.width, facts.vocab, facts.depth) == ("hydra", 576, 49152, 3)
    assert (head / "model.safetensors").stat().st_size <= 12_000_000
    words = Hydra.restored(HeadFiles(head)).words
    assert words is not None and len(words) == 4096 and bool((words.diff() > 0).all()) and int(words[-1]) < 49152
    assert paths(Options("smollm2")) == ("smollm2", head) and boxed("smollm2", "cpu") == head
    assert paths(Options("smollm2", "other"))[1] == "other" and boxed("smollm2", "cuda") is None
    checkpoint = tiny_checkpoint(tmp_path / "model", "llama", hidden=64)
    (here / "models").mkdir(parents=True)
    write_gguf(here / "models" / "smollm2.gguf", checkpoint)
    assert boxed("smollm2", "cpu") is None
