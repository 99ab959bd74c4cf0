"""Slots that are saved: what they may take of the directory, whose they are, and what never comes to a disk."""

import json
import random
import shutil
import threading
from pathlib import Path

import pytest

from paceline.core.errors import DiskError, InputError
from paceline.core.operations import Branch, Join, Park, Peek, Reserve, Resume, Settle
from paceline.engine import block_files as disk
from paceline.engine import block_format, disk_cache
from paceline.engine.block_files import BlockFiles
from paceline.engine.loop import Engine
from paceline.engine.slots import SLOT_SHARE, TENANT_SHARE, Slots
from tests.engine.test_disk_cache import PROMPT, asks, engine, kept_names, say
from tests.toy import VOCAB


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "DISK_FREE_BYTES", 0)


def slots(made: Engine) -> Slots:
    assert made.operations.slots is not None
    return made.operations.slots


def save(made: Engine, name: str, tenant: str = "", prompt: list[int] = PROMPT) -> int:
    """Save the slot of this prompt; how many of its blocks came from memory."""
    [number] = [at for at, it in enumerate(slots(made).places) if it is not None and it.text[: len(prompt)] == prompt]
    gathered = slots(made).gather(number, "")
    slots(made).save(gathered, name, tenant)
    return len(gathered.blocks)


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def texts(count: int) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(VOCAB) for _ in range(14)] for _ in range(count)]


def test_saved_slots_take_their_shares_and_no_more(tmp_path: Path) -> None:
    limit = 60_000
    made = engine(tmp_path / "kv", limit=limit)
    assert made.disk is not None
    files, saved, used = made.disk.files, dict.fromkeys("abc", 0), dict.fromkeys("abc", 0)
    words = {"a": "yours may take 30,000", "b": "all may take 45,000", "c": "all may take 45,000"}
    for tenant, part in zip("abc", (texts(60)[:20], texts(60)[20:40], texts(60)[40:])):
        with pytest.raises(DiskError, match=words[tenant]):
            for number, text in enumerate(part):
                say(made, text, tenant=tenant)
                save(made, f"s{number}", tenant, text)
                saved[tenant] += 1
        mine = slots(made).path("x", tenant).parent.name
        used[tenant] = files.sizes(slots(made).held(mine)) + files.slot_bytes(mine)
    assert saved["a"] > saved["b"] > saved["c"]
    assert 0.3 * limit < used["a"] <= TENANT_SHARE * limit
    assert 0.6 * limit < sum(used.values()) <= SLOT_SHARE * limit
    for text in texts(90)[60:]:  # what is not saved still comes and goes in what is left
        say(made, text, max_tokens=2)
    assert made.disk.flush() and files.evictions and size(tmp_path / "kv") <= limit
    for number in range(saved["a"]):
        file, blocks, _ = slots(made).load(f"s{number}", "a")
        assert len(blocks) == len(file.names) > 6, "what is saved does not go for others"


def test_the_small_files_count_too(tmp_path: Path) -> None:
    """One text under many names has its blocks once, but a file for each name."""
    made = engine(tmp_path / "kv", limit=20_000)
    say(made)
    with pytest.raises(DiskError, match="has no room"):
        for number in range(100):
            save(made, f"s{number}")
    assert size(tmp_path / "kv") <= 20_000
    assert save(made, "s0") > 0, "a file that takes an older one's place needs no more"


def test_savers_at_once_do_not_count_the_same_room(tmp_path: Path) -> None:
    made = engine(tmp_path / "kv", limit=20_000)
    say(made)
    gathered, refused = slots(made).gather(0, ""), list[str]()

    def work(number: int) -> None:
        for name in ("one", f"s{number}", f"t{number}"):
            try:
                slots(made).save(gathered, name, "")
            except DiskError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused and all("has no room" in words for words in refused)
    assert size(tmp_path / "kv") <= TENANT_SHARE * 20_000
    file, blocks, _ = slots(made).load("one", "")
    assert len(blocks) == len(file.names) and not [*(tmp_path / "kv" / "slots").rglob(".*")]


def test_a_slot_that_lies_only_on_disk_is_saved(tmp_path: Path) -> None:
    made = engine(tmp_path / "kv")
    want, _ = say(made)
    assert made.disk is not None and made.disk.flush()
    made.cache.drop_prefix()
    assert save(made, "a") == 0
    file, blocks, _ = slots(made).load("a", "")
    assert len(blocks) == len(file.names) >= 10
    again = engine(tmp_path / "kv")
    assert slots(again).put(2, *slots(again).load("a", "")[:2], "") == len(file.tokens)
    gathered = slots(made).gather(0, "")
    for path in (tmp_path / "kv" / "blocks").iterdir():
        path.unlink()
    with pytest.raises(DiskError, match="are gone"):
        slots(made).save(gathered, "b", "")
    assert say(again) == (want, 12)
    assert not (slots(made).path("b", "")).exists() and slots(made).path("a", "").exists()


def test_a_slot_keeps_its_tenant_and_salt(tmp_path: Path) -> None:
    made = engine(tmp_path / "kv")
    say(made, tenant="anna/salt")
    save(made, "a", "anna")
    for other in ("", "berta", "anna/salt", "ann"):
        with pytest.raises(InputError, match="no saved slot"):
            slots(made).load("a", other)
    mine = slots(made).path("a", "anna").read_bytes()
    for other in ("ann", "berta"):
        there = slots(made).path("a", other)
        there.parent.mkdir(mode=0o700)
        there.write_bytes(mine)
        there.chmod(0o600)
        with pytest.raises(DiskError, match="another tenant"):
            slots(made).load("a", other)
    two = engine(tmp_path / "kv")
    assert slots(two).put(0, *slots(two).load("a", "anna")[:2], "") >= 12
    shutil.rmtree(tmp_path / "kv" / "blocks")
    assert [say(two, tenant=salt)[1] for salt in ("anna", "berta/salt", "anna/salt")] == [0, 0, 12]


def test_what_came_from_elsewhere_never_comes_to_a_disk(tmp_path: Path) -> None:
    """Nobody can tell whether it is the K/V of its text."""
    one, two = engine(None), engine(tmp_path / "kv")
    made = [one.submit(PROMPT, asks(max_tokens=20))[0] for _ in range(2)]
    for _ in range(3):
        one.step()
    [resumed] = two.apply(Resume(one.apply(Park(made[0].id))))
    number = two.apply(Reserve(20))
    copied = two.apply(Settle(number, one.apply(Peek(made[1].id))))
    [settled] = two.apply(Settle(number, one.apply(Park(made[1].id, copied))))
    while two.busy:
        two.step()
    assert copied > 0 and resumed.stats.cached > 0 and settled.stats.cached > 0
    assert two.disk is not None and two.disk.flush() and not kept_names(tmp_path / "kv")
    for place in range(2):
        with pytest.raises(InputError, match="has no K/V"):
            slots(two).gather(place, "")
    own, cached = say(two, max_tokens=20)
    assert (own, cached) == (resumed.output, 0) and two.disk.flush() and kept_names(tmp_path / "kv")


def test_joined_branches_are_saved_up_to_where_they_begin(tmp_path: Path) -> None:
    made = engine(tmp_path / "kv", draft=None)
    [request] = made.submit(PROMPT, asks(max_tokens=40))
    for _ in range(4):
        made.step()
    branches = made.apply(Branch(request.id, 2, asks(max_tokens=4)))
    for _ in range(8):
        made.step()
    made.apply(Join(request.id, [each.id for each in branches], [1, 2]))
    while made.busy:
        made.step()
    assert request.layout and save(made, "a", prompt=request.tokens) > 0
    file, blocks, _ = slots(made).load("a", "")
    assert len(PROMPT) < len(file.tokens) <= request.layout[0].start and len(blocks) == len(file.names)


def test_what_a_killed_saver_left_is_taken_away(tmp_path: Path) -> None:
    made = engine(tmp_path / "kv")
    say(made)
    save(made, "a")
    left = slots(made).path("a", "").with_name(".0123456789abcdef")
    left.write_bytes(b"x" * 5000)
    assert BlockFiles(tmp_path / "kv", 1 << 20).slot_bytes() == slots(made).path("a", "").stat().st_size
    assert not left.exists()


def test_blocks_that_another_process_takes_meanwhile_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the writing of a slot's blocks and that of its file, another server needs the room."""
    want = say(engine(None))[0]
    made, other = engine(tmp_path / "kv", limit=60_000), BlockFiles(tmp_path / "kv", 2_000)
    say(made)
    replace, stolen = Slots._replace, list[int]()

    def steal(self: Slots, path: Path, data: bytes, names: set[bytes]) -> bool:
        if len(stolen) < most:
            other.fit()
            stolen.append(sum(not self.files.file(name).exists() for name in names))
        return replace(self, path, data, names)

    monkeypatch.setattr(Slots, "_replace", steal)
    most = 1
    save(made, "a")
    file, blocks, _ = slots(made).load("a", "")
    assert stolen[0] > 0 and len(blocks) == len(file.names)
    stolen.clear()
    most = 99
    slots(made).path("a", "").unlink()  # nothing holds the blocks
    with pytest.raises(DiskError, match="other processes take its blocks"):
        save(made, "b")
    assert len(stolen) == 3 and not slots(made).path("b", "").exists()
    assert say(made)[0] == want


def test_a_smaller_size_holds_from_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = engine(tmp_path / "kv", limit=60_000)
    say(made)
    save(made, "a")
    for text in texts(12):
        say(made, text, max_tokens=2)
    assert made.disk is not None and made.disk.flush()
    whole = size(tmp_path / "kv")
    smaller = engine(tmp_path / "kv", limit=whole // 2)
    assert size(tmp_path / "kv") <= whole // 2 and not caplog.text
    file, blocks, _ = slots(smaller).load("a", "")
    assert len(blocks) == len(file.names), "what is saved stays"
    engine(tmp_path / "kv", limit=3_000)
    assert "more than its limit" in caplog.text and len(slots(smaller).load("a", "")[1]) == len(file.names)


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    made = engine(tmp_path / "kv")
    say(made)
    gathered = slots(made).gather(0, "")
    assert made.disk is not None and made.disk.flush()
    shutil.rmtree(tmp_path / "kv")
    for _ in range(2):
        with pytest.raises(DiskError, match="No such file or directory"):
            slots(made).save(gathered, "a", "")
    assert not (tmp_path / "kv").exists()


def test_the_disk_stays_as_free_for_small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine(tmp_path / "kv")
    say(made)
    assert made.disk is not None and made.disk.flush()
    gathered = slots(made).gather(0, "")
    monkeypatch.setattr(disk, "DISK_FREE_BYTES", 1 << 60)
    with pytest.raises(DiskError, match="would be left free"):
        slots(made).save(gathered, "a", "")


def test_books_do_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither with texts whose files went for others, nor behind a disk that hangs."""
    monkeypatch.setattr(disk_cache, "MOST_KEPT_NAMES", 20)
    made = engine(tmp_path / "kv", limit=8_000)
    assert made.disk is not None
    for text in texts(30):
        say(made, text, max_tokens=2)
        assert made.disk.flush() and len(made.disk._kept) <= 2 * len(made.disk.files) + 21
    assert made.disk.files.evictions > 20
    release = threading.Event()
    monkeypatch.setattr(made.disk.files, "write", lambda batch: int(release.wait(60)))
    monkeypatch.setattr(disk_cache, "DISK_QUEUE_BYTES", 100)
    for text in texts(30):
        say(made, text, max_tokens=2)
    assert 0 < len(made.disk._idle) <= made.cache.num_blocks
    release.set()


def test_a_block_file_whose_header_has_no_number_is_damaged() -> None:
    for count in ("1e999", "NaN", "-1", "4.5e300", "9" * 5000):
        header = f'{{"name": "a", "groups": [["target", "form", {count}]]}}'.encode()
        data = block_format.BLOCK_FILE_MAGIC + len(header).to_bytes(8, "little") + header + b"12345678"
        with pytest.raises(block_format.DamagedBlockFile):
            block_format.parsed(data, len(data))
    assert json.loads("1e999") == float("inf")
