"""The native library for each unit on any machine: what a CPU lacks runs in software, or in a narrower build."""

from ctypes import CDLL
from functools import cache
from pathlib import Path

from paceline.native.build import Unit, built, has_amx, library
from paceline.native.structs import declare

SOFTWARE = Path(__file__).parents[1] / "native" / "tiles.h"


@cache
def in_software() -> CDLL:
    """Tiles in AVX-512."""
    return declare(CDLL(str(built(SOFTWARE))))


def compiled(unit: Unit) -> CDLL:
    found = in_software() if unit == Unit.TILES and not has_amx() else library()
    assert found is not None
    return found
