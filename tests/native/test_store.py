"""The cache directory: what others could have written is not used."""

from pathlib import Path

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
def test_a_library_that_others_may_write_is_not(library: Path, mode: int) -> None:
    library.chmod(mode)
    assert not store.sealed(library)


def test_a_planted_or_damaged_library_is_not(library: Path) -> None:
    library.write_bytes(b"other code")
    assert not store.sealed(library)


def test_a_digest_that_others_may_write_says_nothing(library: Path) -> None:
    Path(f"{library}.sha256").chmod(0o666)
    assert not store.sealed(library)


@pytest.mark.parametrize("mode", [0o770, 0o775, 0o777])
def test_a_directory_that_others_may_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    shared = tmp_path / "cache"
    shared.mkdir()
    shared.chmod(mode)
    monkeypatch.setenv("PACELINE_CACHE", str(shared))
    assert store.home() != shared


def test_a_directory_in_one_that_others_may_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o777)
    monkeypatch.setenv("PACELINE_CACHE", str(above / "cache"))
    assert store.home() != above / "cache"
