import math
from xml.etree import ElementTree

import pytest

from paceline.bench.load.plot import Axis, PlotPanel, around, svg

SVG = "{http://www.w3.org/2000/svg}"


def test_axes() -> None:
    plain = Axis(0.0, 10.0, 100.0, 200.0)
    assert (plain.at(0.0), plain.at(5.0), plain.at(10.0)) == (100.0, 150.0, 200.0)
    assert plain.ticks()[0] == 0 and plain.ticks()[-1] == 10 and 4 <= len(plain.ticks()) <= 11
    log = Axis(1.0, 100.0, 300.0, 100.0, log=True)
    assert log.at(10.0) == pytest.approx(200.0) and log.ticks() == [1, 2, 5, 10, 20, 50, 100]
    assert Axis(1.0, 1e6, 0.0, 1.0, log=True).ticks() == [10.0**d for d in range(7)]


def test_a_logarithmic_axis_has_two_ticks_at_least() -> None:
    assert [around(v) for v in (1.0, 3.0, 499.0, 500.0, 0.07)] == [(1, 2), (2, 5), (200, 500), (500, 1000), (0.05, 0.1)]
    drawn = svg("t", "x", [1.0], [PlotPanel("a", {"b": [500.0]}, log=True)])
    assert ">200</text>" in drawn and ">1000</text>" in drawn


def test_every_finite_value_is_a_point() -> None:
    xs = [1.0, 2.0, math.inf, 4.0]
    panels = [PlotPanel("TTFT, ms", {"p50": [1.0, None, 3.0, 10.0], "p99": [5.0, 0.0, 9.0, 100.0]}, log=True),
              PlotPanel("a < b", {"completed": [1.0, 2.0, 3.0, 0.0]})]  # fmt: skip
    root = ElementTree.fromstring(svg("m & n", "requests/s", xs, panels))
    told = [title.text for title in root.iter(f"{SVG}title")]
    assert told == [
        "m & n", "p50 at 1: 1", "p50 at 4: 10", "p99 at 1: 5", "p99 at 4: 100",
        "completed at 1: 1", "completed at 2: 2", "completed at 4: 0",
    ]  # fmt: skip
    for circle in root.iter(f"{SVG}circle"):
        assert 0 <= float(circle.get("cx", "-1")) <= 860 and 0 <= float(circle.get("cy", "-1")) <= 600
    lines = [line.get("points", "").split() for line in root.iter(f"{SVG}polyline")]
    (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in lines[0])
    assert x1 < x2 and y1 > y2, "more load to the right, more milliseconds above"


def test_nothing_to_draw_is_drawn() -> None:
    ElementTree.fromstring(
        svg("t", "x", [math.inf], [PlotPanel("a", {"b": [None]}, log=True), PlotPanel("c", {"d": [0.0]})])
    )
