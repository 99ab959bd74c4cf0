"""Passes of each form in turns: that they run, and what is told of them."""

from pathlib import Path

import pytest

from paceline.bench.steps import PassTimes, load, measure, rows_of, table
from paceline.native.build import library
from tests.tiny import tiny_checkpoint


@pytest.mark.skipif(library() is None, reason="this machine has no native library")
def test_each_form_is_timed(tmp_path: Path) -> None:
    path = str(tiny_checkpoint(tmp_path, hidden=64))
    decoders = {form: load(path, form, 20, None) for form in ("bfloat16", "int8", "int4")}
    found = measure(decoders, [1, 3], 20, 0)
    assert [(it.form, it.rows) for it in found] == [(form, n) for form in decoders for n in (1, 3)]
    assert all(len(it.taken) == 2 and min(it.taken) > 0 for it in found)
    assert found[0].bytes > found[2].bytes and len(table(found).splitlines()) == 7


def test_rows_follow_the_context() -> None:
    rows = rows_of(3, 20)
    assert rows.count == rows.wanted == 3 and rows.segments[0].base == 20 and rows.position.tolist() == [20, 21, 22]


def test_the_table() -> None:
    found = [
        PassTimes("int8", 1, 10**6, [0.002, 0.004, 0.003]),
        PassTimes("int4", 1, 10**6, [0.001]),
        PassTimes("int4", 8, 10**6, [0.004]),
    ]
    _, whole, one, eight = table(found).splitlines()
    assert whole.split() == ["int8", "1", "1.0", "2.000", "3.000", "0.5", "1.00", "500.0", "1.00"]
    assert one.split()[-1] == "2.00" and eight.split()[6:] == ["4.00", "2000.0", "-"]
