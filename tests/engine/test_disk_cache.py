"""K/V on disk: found again by another engine, never wrong, never in the way."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import InputError
from paceline.core.params import SamplingParams
from paceline.engine import block_files as disk
from paceline.engine.block_files import BlockFiles
from paceline.engine.build import kv_files
from paceline.engine.config import EngineConfig
from paceline.engine.loop import Engine
from paceline.engine.options import Options
from paceline.simulate.log import Event
from paceline.simulate.record import record
from paceline.simulate.replay import replay
from tests.lossless.cases import EOS, TOKENIZER
from tests.toy import VOCAB, RecurrentToy, Toy, table

PROMPT = [1, 2, 3, 4, 5, 0, 1, 2, 3, 0, 4, 4, 2]


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "DISK_FREE_BYTES", 0)


def engine(
    path: Path | None, *, weights: int = 0, draft: int | None = 1, blocks: int = 40, limit: int = 1 << 20,
    kind: Callable[[Any], Toy] = Toy, **options: Any,
) -> Engine:  # fmt: skip
    config = EngineConfig(
        blocks,
        block_size=2,
        max_requests=4,
        row_budget=8,
        drafter="model" if draft else "none",
        check=True,
        length="fixed",
        **options,
    )
    parts = {} if draft is None else {"draft": Toy(table(0) + 0.7 * table(draft))}
    made = Engine(kind(table(weights)), config, components=parts, tokenizer=TOKENIZER, eos=(EOS,))
    if path is not None:
        made.keep_on_disk(BlockFiles(path, limit))
    return made


def asks(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.8, "seed": 3, "max_tokens": 10, "ignore_eos": True, **changes}).resolve(
        {}
    )


def say(made: Engine, prompt: list[int] = PROMPT, **changes: Any) -> tuple[list[int], int]:
    """(output, tokens that were cached)"""
    [request] = made.submit(prompt, asks(**changes))
    while request.finish is None:
        made.step()
    made.cache.check_integrity()
    return request.output, request.stats.cached


def kept(made: Engine) -> BlockFiles:
    """Written, and closed."""
    assert made.disk is not None
    made.disk.close()
    return made.disk.files


@pytest.mark.parametrize("kind", [Toy, RecurrentToy])
def test_a_restart_finds_it_again(tmp_path: Path, kind: Callable[[Any], Toy]) -> None:
    want, none = say(engine(None, kind=kind))
    one = engine(tmp_path / "kv", kind=kind)
    assert say(one) == (want, none) == (want, 0)
    files = kept(one)
    assert files.total_bytes == sum(file.stat().st_size for file in files.blocks.iterdir()) > 0
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files.blocks.iterdir())
    two = engine(tmp_path / "kv", kind=kind)
    log = list[Event]()
    record(two, log.append)
    assert say(two) == (want, 12)
    assert say(two, PROMPT[:7])[1] == 6 and say(two, PROMPT[1:])[1] == 0
    assert replay(log).difference is None and two.disk is not None and not two.disk.pending
    assert two.disk.recalled == 6


def test_what_was_said_goes_on_too(tmp_path: Path) -> None:
    one = engine(tmp_path / "kv")
    said, _ = say(one)
    kept(one)
    assert say(engine(tmp_path / "kv"), [*PROMPT, *said, 1])[1] >= len(PROMPT) + len(said) - 3


@pytest.mark.parametrize("change", [{"weights": 4}, {"draft": 2}, {"draft": None}])
def test_another_model_finds_nothing_of_it(tmp_path: Path, change: dict[str, Any]) -> None:
    """Another target never; with another draft, or none, the target's part is enough, and the draft's is kept, too."""
    one = engine(tmp_path / "kv")
    say(one)
    kept(one)
    two = engine(tmp_path / "kv", **change)
    assert say(two) == (say(engine(None, **change))[0], 0 if "weights" in change else 12)
    kept(two)
    for again in ({}, change):
        assert say(engine(tmp_path / "kv", **again))[1] == 12


def test_two_engines_share_a_directory(tmp_path: Path) -> None:
    one, two = engine(tmp_path / "kv"), engine(tmp_path / "kv")
    want, _ = say(one)
    assert one.disk is not None and one.disk.flush() and two.disk is not None
    two.disk.files.refresh()
    assert say(two) == (want, 12)
    other, _ = say(two, PROMPT[::-1])
    assert two.disk.flush()
    one.disk.files.refresh()
    assert say(one, PROMPT[::-1]) == (other, 12)


def test_it_is_bounded_and_what_was_used_stays(tmp_path: Path) -> None:
    one = engine(tmp_path / "a")
    say(one)
    each = kept(one).total_bytes // len(kept_names(tmp_path / "a"))
    limit = 24 * each
    rng = random.Random(0)
    texts = [[rng.randrange(VOCAB) for _ in range(12)] for _ in range(8)]
    two = engine(tmp_path / "b", limit=limit)
    for turn in range(16):
        say(two, texts[turn % 8], max_tokens=2)
        say(two, PROMPT, max_tokens=2)
        assert two.disk is not None and two.disk.flush() and two.disk.files.total_bytes <= limit
    kept(two)
    assert sum(f.stat().st_size for f in (tmp_path / "b" / "blocks").iterdir()) <= limit
    assert say(engine(tmp_path / "b", limit=limit))[1] == 12


def kept_names(path: Path) -> list[str]:
    return [file.name for file in (path / "blocks").iterdir()]


def test_a_tenant_finds_what_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.core.request import Request

    def salted(made: Engine, key: str) -> int:
        monkeypatch.setattr(Request, "extra_key", key)
        return say(made)[1]

    monkeypatch.setattr(Request, "__setattr__", lambda s, n, v: n == "extra_key" or object.__setattr__(s, n, v))
    one = engine(tmp_path / "kv")
    assert salted(one, "A") == 0
    kept(one)
    assert salted(engine(tmp_path / "kv"), "B") == 0 and salted(engine(tmp_path / "kv"), "A") == 12


# -- what lies there is input ------------------------------------------------------------------------------------------


def test_damaged_files_change_no_text(tmp_path: Path) -> None:
    one = engine(tmp_path / "kv")
    want, _ = say(one)
    kept(one)
    rng = random.Random(2)
    for number in range(120):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "kv", tmp_path / "copy")
        files = sorted((tmp_path / "copy" / "blocks").iterdir())
        for file in rng.sample(files, 3):
            data = bytearray(file.read_bytes())
            match number % 5:
                case 0:
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                case 1:
                    del data[rng.randrange(len(data)) :]
                case 2:
                    data = bytearray(rng.choice(files).read_bytes())
                case 3:
                    data[rng.randrange(len(data)) :] = rng.randbytes(30)
                case _:
                    data = bytearray()
            file.unlink()
            file.write_bytes(bytes(data))
        made = engine(tmp_path / "copy")
        output, cached = say(made)
        assert output == want and cached <= 12
        kept(made)
    assert say(engine(tmp_path / "copy")) == (want, 12)


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "writable"])
def test_what_is_no_file_of_ours_is_not_read(tmp_path: Path, kind: str) -> None:
    one = engine(tmp_path / "kv")
    want, _ = say(one)
    kept(one)
    for file in sorted((tmp_path / "kv" / "blocks").iterdir()):
        if kind == "writable":
            file.chmod(0o666)
            continue
        aside = tmp_path / file.name
        file.rename(aside)
        if kind == "link":
            file.symlink_to(aside)
        elif kind == "fifo":
            os.mkfifo(file)
        else:
            file.mkdir()
    assert say(engine(tmp_path / "kv")) == (want, 0)


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    path.mkdir()
    path.chmod(0o777)
    with pytest.raises(InputError, match="others can write to it"):
        BlockFiles(path, 1 << 20)
    path.chmod(0o700)
    (path / "blocks").mkdir()
    (path / "blocks").chmod(0o770)
    with pytest.raises(InputError, match="others can write to it"):
        BlockFiles(path, 1 << 20)
    (path / "blocks").chmod(0o700)
    (path / "slots").mkdir()
    (path / "slots").chmod(0o777)
    with pytest.raises(InputError, match="slots, because others can write to it"):
        BlockFiles(path, 1 << 20)
    shutil.rmtree(path / "slots")
    tmp_path.chmod(0o777)
    with pytest.raises(InputError, match="because others can write to it"):
        BlockFiles(path, 1 << 20)
    tmp_path.chmod(0o1777)
    BlockFiles(path, 1 << 20)
    tmp_path.chmod(0o700)
    with pytest.raises(InputError, match="zero byte"):
        BlockFiles(tmp_path / "a\0b", 1 << 20)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(InputError, match="a link"):
        BlockFiles(tmp_path / "link", 1 << 20)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be kept"):
        BlockFiles(tmp_path / "file", 1 << 20)


@pytest.mark.parametrize("text", ["", "/x", ":4G", "/x:", "/x:much", "/x:0", "/x:-4"])
def test_a_bad_setting_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"kv_disk|size"):
        kv_files(Options(kv_disk=text.replace("/x", str(tmp_path / "x"))))


def test_a_disk_that_vanishes_or_refuses_costs_nothing_but_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    want, _ = say(engine(None))
    one = engine(tmp_path / "kv")
    say(one)
    assert one.disk is not None and one.disk.flush()
    shutil.rmtree(tmp_path / "kv")
    one.cache.drop_prefix()
    assert say(one) == (want, 0) and one.disk.flush()
    assert not (tmp_path / "kv").exists(), "a mount point that is gone is not written to"
    two = engine(tmp_path / "full")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert say(two) == (want, 0) and two.disk is not None and two.disk.flush()
    assert not kept_names(tmp_path / "full") and two.disk.files.total_bytes == 0
    assert caplog.text.count("No space left") == 1


def test_a_disk_that_hangs_delays_a_request_and_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from threading import Event as Flag

    from paceline.engine import disk_cache

    one = engine(tmp_path / "kv")
    want, _ = say(one)
    kept(one)
    two, release = engine(tmp_path / "kv"), Flag()
    assert two.disk is not None
    monkeypatch.setattr(disk_cache, "DISK_WAIT_S", 0.3)
    monkeypatch.setattr(two.disk.files, "read", lambda *args: release.wait(20) and None)
    [waits] = two.submit(PROMPT, asks())
    other, _ = say(two, PROMPT[::-1])
    assert other and two.busy
    while waits.finish is None:
        two.step()
    assert waits.output == want and waits.stats.cached == 0
    [left] = two.submit(PROMPT[:9], asks())
    two.abort(left)
    assert not two.busy and not two.session.requests
    release.set()


def test_the_engines_thread_asks_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system call may never return."""
    import threading

    want, _ = say(engine(None))
    one, mine, asked = engine(tmp_path / "kv"), threading.get_ident(), list[str]()
    for name in ("stat", "utime", "open", "scandir", "replace", "lstat"):
        real = getattr(os, name)

        def told(*args: Any, real: Any = real, name: str = name, **options: Any) -> Any:
            if threading.get_ident() == mine:
                asked.append(name)
            return real(*args, **options)

        monkeypatch.setattr(os, name, told)
    assert one.disk is not None
    assert say(one) == (want, 0) and one.disk.flush()
    one.cache.drop_prefix()
    assert say(one) == (want, 12) and one.disk.flush()
    assert not asked


def test_killed_writers_leave_no_damage(tmp_path: Path) -> None:
    """Two hundred writers are killed at work: each block is whole or not there, and nothing is left over."""
    import json
    import subprocess
    import sys

    command = [sys.executable, "-m", "tests.engine.disk_kill", str(tmp_path / "kv"), "200"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(done.stdout)
    assert found["wrong"] == found["damaged"] == found["left"] == 0, found
    assert found["right"] > 10 and found["size"] == found["known"] <= 2_000_000, found
