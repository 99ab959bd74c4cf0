"""Cleaning, against values worked out by hand."""

import numpy as np
import pytest

from paceline.apps.tsci.clean import DETECT, FILL, HANDLE, clean

NAN = np.nan
GAPS = np.array([NAN, 1.0, NAN, NAN, 4.0, 7.0, NAN])


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("interpolate", [1, 1, 2, 3, 4, 7, 7]),
        ("forward_fill", [1, 1, 1, 1, 4, 7, 7]),
        ("backward_fill", [1, 1, 4, 4, 4, 7, 7]),
        ("mean", [4, 1, 4, 4, 4, 7, 4]),
        ("median", [4, 1, 4, 4, 4, 7, 4]),
        ("zero", [0, 1, 0, 0, 4, 7, 0]),
    ],
)
def test_gaps(name: str, wanted: list[float]) -> None:
    before = GAPS.copy()
    assert FILL[name](GAPS).tolist() == wanted
    np.testing.assert_array_equal(GAPS, before)
    assert set(FILL) >= {name}


@pytest.mark.parametrize("name", FILL)
def test_nothing_to_fill_from(name: str) -> None:
    if name == "zero":
        return
    with pytest.raises(ValueError, match="no value at all"):
        FILL[name](np.full(3, NAN))


LEVEL = np.concatenate([np.sin(np.arange(40.0)), [30.0], np.sin(np.arange(41.0, 80.0))])


@pytest.mark.parametrize("name", ["iqr", "zscore", "percentile"])
def test_an_outlier_is_found(name: str) -> None:
    assert DETECT[name](LEVEL)[40]


def test_none_finds_none_and_a_constant_has_none() -> None:
    assert not DETECT["none"](LEVEL).any()
    assert not any(rule(np.ones(50)).any() for rule in DETECT.values())


def test_a_moving_level_is_no_outlier_to_iqr() -> None:
    steps = np.repeat([0.0, 100.0], 60) + np.tile([0.0, 1.0, 2.0], 40)
    assert not DETECT["iqr"](steps)[:40].any()
    assert not DETECT["iqr"](steps)[80:].any()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("clip", 4.0),
        ("interpolate", 3.0),
        ("forward_fill", 2.0),
        ("backward_fill", 4.0),
        ("mean", 2.5),
        ("median", 2.5),
    ],
)
def test_handling(name: str, wanted: float) -> None:
    values = np.array([1.0, 2.0, 90.0, 4.0, 3.0])
    bad = np.array([False, False, True, False, False])
    assert HANDLE[name](values, bad)[2] == wanted
    assert values[2] == 90.0


def test_smoothing_looks_at_good_neighbours_only() -> None:
    values = np.array([1.0, 2.0, 90.0, 80.0, 3.0])
    assert HANDLE["smooth"](values, values > 50)[2] == 2.0


def test_all_together() -> None:
    gappy = LEVEL.copy()
    gappy[5] = NAN
    made, count = clean(gappy, "interpolate", "zscore", "interpolate")
    assert count == 1
    assert np.isfinite(made).all()
    assert abs(made).max() <= 1
    assert clean(LEVEL, "interpolate", "none", "clip")[1] == 0
