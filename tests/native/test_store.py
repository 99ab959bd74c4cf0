"""The cache directory: what others could have written is not used."""

import grp
import pwd
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.native import store


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "decoder.so"
    path.write_bytes(b"code")
    path.chmod(0o755)
    store.seal(path)
    return path


def test_a_sealed_library_is_used(library: Path) -> None:
    assert store.sealed(library)


def test_a_library_without_a_digest_is_not(library: Path) -> None:
    Path(f"{library}.sha256").unlink()
    assert not store.sealed(library)


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_library_that_others_may_write_is_not(library: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    monkeypatch.setattr(store, "alone", lambda group: False)
    library.chmod(mode)
    assert not store.sealed(library)


def test_a_planted_or_damaged_library_is_not(library: Path) -> None:
    library.write_bytes(b"other code")
    assert not store.sealed(library)


def test_a_digest_that_others_may_write_says_nothing(library: Path) -> None:
    Path(f"{library}.sha256").chmod(0o666)
    assert not store.sealed(library)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("mode", [0o770, 0o775, 0o777])
def test_a_directory_that_others_may_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, alone: bool
) -> None:
    """`alone`: its group has nobody else, as that of a volume of Kubernetes."""
    shared = tmp_path / "cache"
    shared.mkdir()
    shared.chmod(mode)
    monkeypatch.setenv("PACELINE_CACHE", str(shared))
    monkeypatch.setattr(store, "alone", lambda group: alone)
    assert (store.home() == shared) == (alone and not mode & stat.S_IWOTH)


def test_a_directory_in_one_that_others_may_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o777)
    monkeypatch.setenv("PACELINE_CACHE", str(above / "cache"))
    assert store.home() != above / "cache"


def test_a_directory_in_one_that_a_group_may_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the user's own group, which has no other members."""
    above, groups = tmp_path / "above", [False, True]
    above.mkdir()
    above.chmod(0o770)
    for number, alone in enumerate(groups):
        monkeypatch.setattr(store, "alone", lambda group, alone=alone: alone)
        monkeypatch.setenv("PACELINE_CACHE", str(above / f"cache{number}"))
        assert (store.home() == above / f"cache{number}") is alone


def test_whose_group_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    user = SimpleNamespace(pw_name="ann", pw_gid=1000)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: user)
    for group, name, members, alone in (
        (1000, "ann", [], True), (1000, "ann", ["ann"], True), (1000, "ann", ["bob"], False),
        (1000, "users", [], False), (100, "ann", [], False), (0, "root", [], True), (0, "root", ["bob"], False),
    ):  # fmt: skip
        monkeypatch.setattr(
            grp,
            "getgrgid",
            lambda _, it=(group, name, members): SimpleNamespace(gr_gid=it[0], gr_name=it[1], gr_mem=it[2]),
        )
        assert store.alone(group) is alone, (group, name, members)


def test_a_link_is_followed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, link = tmp_path / "own", tmp_path / "link"
    own.mkdir(mode=0o700)
    link.symlink_to(own)
    monkeypatch.setenv("PACELINE_CACHE", str(link))
    assert store.home() == own.resolve()


@pytest.mark.parametrize("kind", ["file", "circle", "nowhere", "long", "device"])
def test_what_is_no_directory_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path = tmp_path / "cache"
    if kind == "file":
        path.write_text("x")
    elif kind in ("circle", "nowhere"):
        path.symlink_to(path if kind == "circle" else tmp_path / "absent" / "absent")
    path = {"long": tmp_path / ("x" * 300), "device": Path("/dev/null/x")}.get(kind, path)
    monkeypatch.setenv("PACELINE_CACHE", str(path))
    assert store.home().is_dir() and store.home() != path
