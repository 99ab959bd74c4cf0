"""The picture of a training's log."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from paceline.train.curve import MOST_POINTS, draw, of_log


def texts(path: Path) -> list[str]:
    return [node.text or "" for node in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def test_a_panel_for_each_figure_of_the_log(tmp_path: Path) -> None:
    log, picture = tmp_path / "log.csv", tmp_path / "curve.svg"
    rows = ("10,99,1.0,4.0,1.1", "spoilt", "20,198,2.0,3.0,1.5", "30,297,3.0,1.0,2")
    log.write_text("\n".join(("step,tokens,seconds,loss,simulated_tau", *rows)))
    found = of_log(log)
    assert found == {"loss": [(10, 4.0), (20, 3.0), (30, 1.0)], "simulated_tau": [(10, 1.1), (20, 1.5), (30, 2.0)]}
    draw(picture, "medusa for <model> & co", "step", found)
    said = texts(picture)
    assert "medusa for <model> & co" in said and "loss: 1 at the end" in said and "simulated_tau: 2 at the end" in said
    lines = re.findall(r'polyline points="([^"]+)"', picture.read_text())
    first, second = ([[float(x) for x in at.split(",")] for at in line.split()] for line in lines)
    assert [y for _, y in first[:3]] == sorted(y for _, y in first[:3]), "a falling loss falls: y grows downward"
    assert [x for x, _ in first] == [x for x, _ in second] == sorted(x for x, _ in first)


def test_long_and_flat_and_empty_lines(tmp_path: Path) -> None:
    picture = tmp_path / "curve.svg"
    draw(
        picture, "a", "b", {"long": [(x, x % 7) for x in range(50_000)], "flat": [(0, 1.0), (1, 1.0)], "one": [(0, 1)]}
    )
    assert len(picture.read_text()) < 40 * MOST_POINTS and picture.read_text().count("polyline") == 2
    draw(picture, "nothing", "b", {})
    assert texts(picture)[0] == "nothing"
