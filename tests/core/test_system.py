"""The start of a process."""

import gc
import subprocess
import sys

import pytest

from paceline.core.system import map_ahead, starting


def test_no_search_for_garbage_begins_at_the_start() -> None:
    frozen = gc.get_freeze_count()
    try:
        with starting():
            assert not gc.isenabled()
            kept: list[list[int]] = [[] for _ in range(1000)]
        assert gc.isenabled() and gc.get_freeze_count() >= frozen + len(kept)
        with pytest.raises(ValueError), starting():
            raise ValueError
        assert gc.isenabled()
    finally:
        gc.unfreeze()


def test_libraries_that_are_not_there_are_left_out() -> None:
    map_ahead("no_such_package", "lib/a.so").join(10)
    map_ahead("paceline", "lib/no_such_library.so").join(10)
    map_ahead("json", "__init__.py").join(10)  # no library at all


@pytest.mark.skipif(sys.platform != "linux", reason="reads the process's maps")
def test_libraries_are_mapped_ahead_of_the_import() -> None:
    code = (
        "import sys; from paceline.__main__ import COMPUTES; from paceline.core.system import map_ahead\n"
        "map_ahead('torch', 'lib/libtorch_global_deps.so', 'lib/libtorch_cpu.so').join()\n"
        "assert 'torch' not in sys.modules and 'libtorch_cpu.so' in open('/proc/self/maps').read()\n"
        "import torch; print(float(torch.ones(3).sum()), *COMPUTES)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "3.0 chat demo generate serve\n", done.stderr
