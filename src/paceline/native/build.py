"""Builds decoder.cpp and its headers on first use and loads it: one compiler call, seconds, kept for the next time."""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from enum import IntEnum
from functools import cache
from pathlib import Path
from time import perf_counter
from warnings import warn

from paceline.native.store import home, sealed
from paceline.native.store import seal as seal_file
from paceline.native.structs import declare

SOURCE = Path(__file__).with_name("decoder.cpp")
COMPILER_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC")
WIDE = (
    *("-mfma", "-mprefer-vector-width=512"),
    *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mavx512bf16", "-mf16c"),
    *("-mamx-tile", "-mamx-bf16", "-mamx-int8"),
)
NARROW = ("-DPACELINE_NARROW", "-mavx2", "-mfma", "-mf16c")
NEON = ("-DPACELINE_NARROW", "-march=armv8.2-a+dotprod")
CLANG = ("-mllvm", "-disable-vector-combine")
"""That pass of clang 16 does not come to an end here."""
ASAN = ("-fsanitize=address", "-fno-omit-frame-pointer", "-g", "-O1")
"""With PACELINE_NATIVE=asan: every access to memory is checked (make asan)."""
NEEDED = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "fma"}
LESS = {"avx2", "fma", "f16c"}
ARM = {"asimddp"}
AMX = {"amx_tile", "amx_bf16", "amx_int8"}

log = logging.getLogger("paceline")


class Unit(IntEnum):
    """What the library multiplies bfloat16 with (base.h)."""

    DOT = 0
    """AVX-512 BF16."""
    TILES = 1
    """AMX."""
    FUSED = 2
    """float32, weights taken apart and activations as they are: faster than DOT on Intel's CPUs."""
    SHORT = 3
    """float32 as FUSED, by AVX2 (int8 with AVX-VNNI if available) or NEON, on CPUs without AVX-512 BF16."""


@cache
def cpu() -> dict[str, str]:
    """What /proc/cpuinfo says of the first processor; empty where that cannot be read."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def wishes() -> list[str]:
    """The words of PACELINE_NATIVE, separated by commas: 0, avx2, avxvnni, asan."""
    return os.environ.get("PACELINE_NATIVE", "").split(",")


def abilities() -> frozenset[str]:
    """The instruction sets of this CPU, by their names in /proc/cpuinfo."""
    return frozenset(cpu().get("flags", cpu().get("Features", "")).split())


def machine_flags() -> tuple[str, ...] | None:
    """The compiler's flags for the most that this CPU has, or, where PACELINE_NATIVE is avx2 or avxvnni (AVX2 with
    AVX-VNNI), for no more than that; None where nothing is written for it."""
    if platform.system() != "Linux" or "0" in wishes():
        return None
    if abilities() >= NEEDED and not {"avx2", "avxvnni"} & set(wishes()):
        return WIDE
    if abilities() >= LESS:
        return (*NARROW, *(("-mavxvnni",) if "avx_vnni" in abilities() and "avx2" not in wishes() else ()))
    return NEON if abilities() >= ARM else None


@cache
def library() -> ctypes.CDLL | None:
    """The native decoder, or None where this CPU lacks AVX2, or on ARM the dot product, or no compiler builds it (said
    once)."""
    flags = machine_flags()
    if flags is None:
        return None
    try:
        return declare(loaded(flags))
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)  # of a compiler that took too long it is bytes
        lines = (said.decode("utf-8", "replace") if isinstance(said, bytes) else said).strip().splitlines() or [""]
        detail = next((line for line in lines if "error" in line), lines[-1])
        warn(
            "The native decoder could not be built, so PyTorch serves, several times slower; install a C++ compiler "
            f"(g++ 12 or clang 15, or newer). {detail}",
            stacklevel=2,
        )
        return None


def loaded(machine: tuple[str, ...] = WIDE) -> ctypes.CDLL:
    """The library; one that does not load, cut short by a full disk or made for another machine, is built again."""
    path = built(machine)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        log.warning("%s does not load (%s); it is built again.", path, error)
        path.unlink(missing_ok=True)
        return ctypes.CDLL(str(built(machine)))


@cache
def has_amx() -> bool:
    """Whether tiles can be used: the CPU has them and the system lets this process."""
    it = library()
    return it is not None and machine_flags() == WIDE and abilities() >= AMX and it.paceline_permit_tiles() == 0


@cache
def unit() -> Unit:
    """The quickest here. Intel's CPUs start a product of AVX-512 BF16 every second cycle, and two float32 ones in each
    (AMD's: one a cycle of the former), so there the latter take half the time."""
    if machine_flags() != WIDE:
        return Unit.SHORT
    if has_amx():
        return Unit.TILES
    return Unit.FUSED if cpu().get("vendor_id") == "GenuineIntel" else Unit.DOT


def built(machine: tuple[str, ...] = WIDE, first: Path | None = None) -> Path:
    """The shared library, compiled if these sources, these flags and this runtime were not seen before. `machine`: the
    flags of its instructions; `first`: a header that is read before the sources."""
    runtime = openmp()
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise OSError("There is neither g++ nor clang++.")
    before = [] if first is None else [first]
    sanitize = ASAN if "asan" in wishes() else ()
    flags = (*COMPILER_FLAGS, *machine, *(CLANG if "clang" in Path(compiler).name else ()), *sanitize)
    text = b"".join(path.read_bytes() for path in (*before, SOURCE, *sorted(SOURCE.parent.glob("*.h"))))
    seal = hashlib.sha256(text + repr((compiler, flags, runtime)).encode()).hexdigest()[:16]
    target = home() / f"decoder-{seal}.so"
    if not sealed(target):
        started = perf_counter()
        log.warning("Compiling the decoder, once: it takes up to a minute and is kept in %s.", target.parent)
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            made = Path(work) / target.name
            command = [compiler, *flags, *(f"-include{path}" for path in before), str(SOURCE), "-o", str(made)]
            command += ["-nodefaultlibs", str(runtime), "-lstdc++", "-lm", "-lgcc_s", "-lgcc", "-lc"]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=1800)
            made.chmod(0o755)  # whatever the umask is
            made.replace(target)
            seal_file(target)
        log.info("Built the native decoder in %.1f s: %s", perf_counter() - started, target)
    return target


def openmp() -> Path:
    """The OpenMP runtime that torch has loaded. A second one would be a second team of spinning threads."""
    import torch  # noqa: F401

    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rsplit(maxsplit=1)[-1]
        if "/libgomp" in path or "/libomp" in path or "/libiomp" in path:
            return Path(path)
    raise OSError("This torch has loaded no OpenMP runtime.")
