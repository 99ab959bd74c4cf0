"""Building the native library: it must succeed where it can, and be missed gracefully where it cannot."""

import shutil
import subprocess
import sys
from array import array
from ctypes import CDLL
from pathlib import Path

import pytest

from paceline.native import build, store
from paceline.native.build import Unit
from paceline.native.structs import declare


def test_it_builds_wherever_the_machine_allows_it() -> None:
    if build.machine_flags() is None or shutil.which("g++") is None:
        pytest.skip("this machine has no AVX2 or no g++")
    assert build.library() is not None


@pytest.mark.full
@pytest.mark.parametrize("compiler", ["clang++", "clang++-15", "clang++-16", "clang++-19"])
def test_clang_builds_it_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiler: str) -> None:
    """For the runtime of torch, whatever clang's own is."""
    flags = build.machine_flags()
    if flags is None or shutil.which(compiler) is None:
        pytest.skip(f"this machine has no AVX2 or no {compiler}")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", compiler)
    won, scores = array("q", [0, 0]), array("f", [0, 2, 1, 5, 4, 3])
    declare(CDLL(str(build.built(flags)))).paceline_winners(scores.buffer_info()[0], 2, 3, 2, won.buffer_info()[0])
    assert won.tolist() == [1, 0]


def test_without_a_compiler_pytorch_serves_with_one_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if build.machine_flags() is None:
        pytest.skip("this machine has no AVX2")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    build.library.cache_clear()
    try:
        with pytest.warns(UserWarning, match="PyTorch serves") as told:
            assert build.library() is None and build.library() is None
        assert len(told) == 1
    finally:
        build.library.cache_clear()


@pytest.mark.parametrize("said", [None, b"cc1plus: error: \xff", b" \n"])
def test_a_compiler_that_takes_too_long_is_missed_likewise(monkeypatch: pytest.MonkeyPatch, said: bytes | None) -> None:
    """What it has said by then is bytes, whatever was asked for."""

    def loaded(machine: tuple[str, ...]) -> CDLL:
        raise subprocess.TimeoutExpired(["g++"], 1800, stderr=said)

    monkeypatch.setattr(build, "machine_flags", lambda: build.NARROW)
    monkeypatch.setattr(build, "loaded", loaded)
    build.library.cache_clear()
    try:
        with pytest.warns(UserWarning, match="PyTorch serves"):
            assert build.library() is None
    finally:
        build.library.cache_clear()


def test_a_planted_library_does_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One of the right name, whose constructor would run as soon as it is loaded: without a digest, with that of
    another, and in a directory where others may write."""
    compiler, flags = shutil.which("g++"), build.machine_flags()
    if compiler is None or flags is None:
        pytest.skip("this machine has no AVX2 or no g++")
    cache, ran, source = tmp_path / "cache", tmp_path / "ran", tmp_path / "planted.cpp"
    cache.mkdir(mode=0o700)
    code = f'#include <cstdio>\n__attribute__((constructor)) static void run() {{ fopen("{ran}", "w"); }}'
    source.write_text(code, encoding="utf-8")
    made = tmp_path / "planted.so"
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(made)], check=True, timeout=60)
    monkeypatch.setenv("PACELINE_CACHE", str(cache))
    monkeypatch.setenv("CXX", "/bin/false")
    names = list[Path]()
    monkeypatch.setattr(build, "sealed", lambda path: names.append(path))
    with pytest.raises(subprocess.CalledProcessError):
        build.built(flags)
    monkeypatch.undo()
    monkeypatch.setenv("PACELINE_CACHE", str(cache))
    monkeypatch.setenv("CXX", "/bin/false")
    for plant in (lambda: None, lambda: names[0].with_name(f"{names[0].name}.sha256").write_text("0" * 64)):
        shutil.copy(made, names[0])
        plant()
        with pytest.raises(subprocess.CalledProcessError):
            build.loaded(flags)
        assert not ran.exists()
    store.seal(names[0])  # the digest is right, but others could have written both
    cache.chmod(0o777)
    store.usable.cache_clear()
    with pytest.raises(subprocess.CalledProcessError):
        build.loaded(flags)
    assert not ran.exists()
    store.usable.cache_clear()
    subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(names[0])!r})"], check=True, timeout=60)
    assert ran.exists(), "it would have run"


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_NATIVE", "0")
    build.library.cache_clear()
    try:
        assert build.library() is None
    finally:
        build.library.cache_clear()


@pytest.mark.parametrize(
    ("vendor", "tiles", "expected"),
    [
        ("GenuineIntel", True, Unit.TILES),
        ("GenuineIntel", False, Unit.FUSED),
        ("AuthenticAMD", False, Unit.DOT),
    ],
)
def test_what_bfloat16_is_multiplied_with(
    monkeypatch: pytest.MonkeyPatch, vendor: str, tiles: bool, expected: Unit
) -> None:
    monkeypatch.setattr(build, "cpu", lambda: {"vendor_id": vendor})
    monkeypatch.setattr(build, "has_amx", lambda: tiles)
    monkeypatch.setattr(build, "machine_flags", lambda: build.WIDE)
    assert build.unit.__wrapped__() == expected
    monkeypatch.setattr(build, "machine_flags", lambda: build.NARROW)
    assert build.unit.__wrapped__() == Unit.SHORT


@pytest.mark.parametrize(
    ("abilities", "wish", "expected"),
    [
        (build.NEEDED | build.LESS, "", build.WIDE),
        (build.NEEDED | build.LESS, "avx2", build.NARROW),
        (build.NEEDED | build.LESS, "0", None),
        (build.LESS, "", build.NARROW),
        (build.LESS | {"avx_vnni"}, "", (*build.NARROW, "-mavxvnni")),
        (build.NEEDED | build.LESS | {"avx_vnni"}, "avx2", build.NARROW),
        (build.NEEDED | build.LESS | {"avx_vnni"}, "avxvnni", (*build.NARROW, "-mavxvnni")),
        (build.NEEDED | build.LESS, "avxvnni", build.NARROW),
        (build.ARM, "", build.NEON),
        ({"sse2", "avx"}, "", None),
    ],
)
def test_what_is_compiled_for_a_cpu(
    monkeypatch: pytest.MonkeyPatch, abilities: set[str], wish: str, expected: tuple[str, ...] | None
) -> None:
    monkeypatch.setattr(build, "abilities", lambda: frozenset(abilities))
    monkeypatch.setenv("PACELINE_NATIVE", wish)
    assert build.machine_flags() == expected


def test_its_openmp_is_that_of_torch() -> None:
    """A second runtime would be a second team of threads, each waiting for the cores of the other."""
    code = "from paceline.native import build; build.library(); print(open('/proc/self/maps').read())"
    maps = subprocess.run(  # in a process of its own: libraries of other tests bring runtimes of their own
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=900
    ).stdout
    assert len({line.split()[-1] for line in maps.splitlines() if "libgomp" in line or "libomp" in line}) == 1
