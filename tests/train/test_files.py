"""What a full disk, a kill or a power cut leaves of a training: what it had, and the same command goes on to the same
bytes."""

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from paceline.core.errors import InputError
from paceline.train import data, loop
from paceline.train.data import Sample, kept
from paceline.train.features import FeatureSource, FeatureStore
from paceline.train.files import put, whole_lines, writing
from paceline.train.loop import PACKING, TrainingPlan, TrainingRun, opened, pack, train
from paceline.train.target import TrainingTarget
from tests.tiny import tiny_checkpoint

LINES = [{"prompt": f"Tom has {n} apples and"} for n in range(12)]


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files")
    tiny_checkpoint(path / "target", seed=1)
    (path / "data.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    return path


@pytest.fixture(scope="module")
def target(place: Path) -> TrainingTarget:
    return TrainingTarget(place / "target", "float32")


def plan(place: Path, out: str, **changes: Any) -> TrainingPlan:
    base: dict[str, Any] = {
        "method": "medusa", "minutes": None, "steps": 6, "dtype": "float32", "answer": 8, "tokens": 128, "warmup": 2,
        "held": 2, "settings": {"depth": 2}, "save_seconds": 0.0, "cache": place / f"{out}-cache",
    }  # fmt: skip
    files = {"target": place / "target", "data": (place / "data.jsonl",), "out": place / out}
    return TrainingPlan(**{**files, **base, **changes})


def dies(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int) -> None:
    """Let a function end the process at one of its calls, before it does anything."""
    real, calls = getattr(owner, name), []

    def once(*args: Any, **more: Any) -> Any:
        calls.append(0)
        if len(calls) == call:
            raise Killed
        return real(*args, **more)

    monkeypatch.setattr(owner, name, once)


STAGES: dict[str, tuple[Any, str, int]] = {
    "answers": (data, "writing", 2), "states": (FeatureStore, "write", 4), "training": (TrainingRun, "advance", 4),
    "checkpoint": (loop, "writing", 3), "packing": (Path, "replace", 10),
}  # fmt: skip
"""Stage: what ends the process there, at which call. The tenth file that is put in its place is the config, behind the
cache's index, seven checkpoints and the weights."""


@pytest.mark.parametrize("stage", STAGES)
def test_a_run_that_died_at_a_stage_goes_on_to_the_same_bytes(
    stage: str, place: Path, target: TrainingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "GENERATION_BATCH", 4)
    whole = train(plan(place, f"{stage}-whole"), target=target)
    broken = plan(place, f"{stage}-broken")
    with monkeypatch.context() as patch:
        dies(patch, *STAGES[stage])
        with pytest.raises(Killed):
            train(broken, target=target)
    if stage == "packing":
        assert (broken.out / PACKING).is_dir() and not (broken.out / "config.json").exists(), (
            "not taken for a whole one"
        )
    again = train(broken, target=target)
    one, other = (load_file(it.out / "model.safetensors") for it in (whole, again))
    assert all(one[name].equal(other[name]) for name in one) and not (broken.out / PACKING).exists()
    caches = [{file.name: file.read_bytes() for file in (place / f"{stage}-{it}-cache").iterdir()}
              for it in ("whole", "broken")]  # fmt: skip
    assert caches[0] == caches[1] and {"cache.json", "post_norm.bin", "post_norm.done"} < caches[0].keys()
    assert (whole.out / "config.json").read_text() == (again.out / "config.json").read_text()


def test_answers_go_on_with_whole_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that follow are answered next to the same others as without a stop. What a power cut left goes, too."""
    monkeypatch.setattr(data, "GENERATION_BATCH", 2)
    file = tmp_path / "answers.jsonl"
    lines = [json.dumps([[n, n + 1], 1]) for n in range(5)]
    for left, count, want in [
        ("\n".join(lines[:3]) + "\n" + lines[3][:4], 5, 2), ("\n".join(lines) + "\n", 5, 5),
        (lines[0] + "\n\0\0\0\n", 5, 0), ("\n".join([*lines[:2], "[7]", *lines[3:]]) + "\n", 5, 2), ("", 5, 0),
    ]:  # fmt: skip
        file.write_text(left)
        assert kept(file, count) == [Sample((n, n + 1), 1) for n in range(want)]
        assert file.read_text() == "".join(f"{line}\n" for line in lines[:want])


@contextmanager
def room(size: int) -> Iterator[None]:
    """Files of at most so many bytes, as on a disk that is full then."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


POSIX = pytest.mark.skipif(sys.platform == "win32", reason="limits of files are those of POSIX")


@POSIX
def test_a_file_is_written_whole_or_stays(tmp_path: Path) -> None:
    put(tmp_path / "one", "old")
    with room(50), pytest.raises(InputError, match=r"cannot be written \(.*bytes are free\. Make room"):
        put(tmp_path / "one", "x" * 100)
    assert (tmp_path / "one").read_text() == "old" and [*tmp_path.iterdir()] == [tmp_path / "one"]
    (tmp_path / "two").write_text("a\nb\nhalf")
    assert whole_lines(tmp_path / "two") == ["a", "b"] and (tmp_path / "two").read_text() == "a\nb\n"
    assert whole_lines(tmp_path / "none") == []
    with pytest.raises(InputError, match="bytes are free"), writing(tmp_path / "not" / "there"):
        raise OSError(errno.ENOSPC, "No space left on device")


@POSIX
def test_what_was_packed_before_stays(place: Path, target: TrainingTarget) -> None:
    made = train(plan(place, "packed"), target=target)
    before = {file.name: file.read_bytes() for file in made.out.iterdir()}
    run, _ = opened(plan(place, "packed", steps=8), target)
    with room(5_000), pytest.raises(InputError, match="Make room and give the same command again"):
        pack(run.method, made.out, {})
    with room(5_000), pytest.raises(InputError, match="the run goes on from what it has"):
        train(plan(place, "packed", steps=8), target=target)
    after = {file.name: file.read_bytes() for file in made.out.iterdir()}
    assert after.keys() == before.keys()
    assert all(after[name] == before[name] for name in ("config.json", "model.safetensors", "state.pt"))
    (made.out / "log.csv").write_bytes(after["log.csv"] + b"6,1")
    assert train(plan(place, "packed", steps=8), target=target).steps == 8, "a line of the log that was cut off"


def test_a_cache_without_room_leaves_nothing_of_itself(
    target: TrainingTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, calls = [Sample(tuple(range(5, 25)), 1)] * 3, list[int]()

    def full(file: int, start: int, size: int) -> None:
        calls.append(size)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full, raising=False)
        with pytest.raises(InputError, match=r"has no room for [\d,]+ bytes .*--cache-size"):
            FeatureSource(target, samples, ("input:1", "post_norm"), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["cache.json"] and len(calls) == 3


def test_states_that_were_deleted_are_computed_again(target: TrainingTarget, tmp_path: Path) -> None:
    samples = [Sample(tuple(range(5, 25)), 1), Sample(tuple(range(7, 30)), 1)]
    want = FeatureSource(target, samples, ("post_norm",), tmp_path).states(1)["post_norm"].clone()
    (tmp_path / "post_norm.bin").unlink()
    found = FeatureSource(target, samples, ("post_norm",), tmp_path).states(1)["post_norm"]
    assert found.equal(want) and found.any()
