"""The native library for each unit on any machine: what a CPU lacks runs in software, or in a narrower build."""

from ctypes import CDLL
from functools import cache
from pathlib import Path

import pytest

from paceline.native.build import NARROW, WIDE, Unit, built, has_amx, library, machine_flags
from paceline.native.structs import declare

SOFTWARE = Path(__file__).parents[1] / "native" / "tiles.h"


QUICKLY = ("-O1", "-fexpensive-optimizations")
"""Instead of -O3 for what only tests run: it compiles sooner, with products and sums joined in the same places."""


@cache
def in_software() -> CDLL:
    """Tiles in AVX-512."""
    return declare(CDLL(str(built((*WIDE, *QUICKLY), SOFTWARE))))


@cache
def narrow(*more: str) -> CDLL:
    """AVX2's, whatever this CPU has beyond it."""
    return declare(CDLL(str(built((*NARROW, *more, *(QUICKLY if more else ()))))))


def units_here() -> list[Unit]:
    """Units that can be tested on this machine."""
    return [Unit.SHORT] if machine_flags() not in (None, WIDE) else list(Unit)


def compiled(unit: Unit) -> CDLL:
    """Skips where this CPU cannot run it."""
    if unit == Unit.SHORT and machine_flags() == WIDE:
        return narrow()
    if unit != Unit.SHORT and machine_flags() != WIDE:
        pytest.skip("this machine has no AVX-512 BF16")
    found = in_software() if unit == Unit.TILES and not has_amx() else library()
    assert found is not None
    return found
