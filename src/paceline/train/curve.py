"""`draw`: a training's curve as a picture (SVG), one panel for each figure, without a library."""

import csv
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

CURVE_WIDTH, CURVE_HEIGHT, CURVE_MARGIN = 640, 150, 50
"""Pixels."""
MOST_POINTS = 1000
"""CurvePoints of a line; of a longer one every n-th is drawn, and the last."""
CurvePoints = Sequence[tuple[float, float]]


def draw(path: Path, title: str, across: str, panels: Mapping[str, CurvePoints]) -> None:
    """Write the picture. `panels`: {name: (x, y) in the order of x}; `across`: what x is. Raises OSError."""
    shown = {name: points for name, points in panels.items() if len(points) > 1}
    height = CURVE_HEIGHT * len(shown) + CURVE_MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{CURVE_WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{CURVE_MARGIN}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for number, (name, points) in enumerate(shown.items()):
        parts += panel(name, points, CURVE_MARGIN / 2 + 10 + CURVE_HEIGHT * number)
    parts.append(f'<text x="{CURVE_WIDTH / 2}" y="{height - 5}" text-anchor="middle">{escape(across)}</text></svg>')
    path.write_text("\n".join(parts), encoding="utf-8")


def panel(name: str, points: CurvePoints, top: float) -> list[str]:
    """One line in its frame, with the ends of both axes and the last value."""
    thin = [*points[:: len(points) // MOST_POINTS + 1], points[-1]]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    wide, tall = CURVE_WIDTH - 2 * CURVE_MARGIN, CURVE_HEIGHT - 45

    def at(x: float, y: float) -> str:
        across, up = (x - left) / ((right - left) or 1), (y - low) / ((high - low) or 1)
        return f"{CURVE_MARGIN + wide * across:.1f},{top + 18 + tall * (1 - up):.1f}"

    frame = f'x="{CURVE_MARGIN}" y="{top + 18:.1f}" width="{wide}" height="{tall}" fill="none" stroke="#bbb"'
    words = [
        (CURVE_MARGIN, top + 13, "start", f"{name}: {ys[-1]:.4g} at the end"),
        (CURVE_MARGIN - 4, top + 28, "end", f"{high:.3g}"),
        (CURVE_MARGIN - 4, top + 18 + tall, "end", f"{low:.3g}"),
        (CURVE_MARGIN, top + 32 + tall, "middle", f"{left:g}"),
        (CURVE_MARGIN + wide, top + 32 + tall, "middle", f"{right:g}"),
    ]
    line = " ".join(at(x, y) for x, y in thin)
    return [
        f"<rect {frame}/>",
        f'<polyline points="{line}" fill="none" stroke="#1f77b4" stroke-width="1.5"/>',
        *(f'<text x="{x}" y="{y:.1f}" text-anchor="{to}">{escape(text)}</text>' for x, y, to, text in words),
    ]


def of_log(log: Path, across: str = "step") -> dict[str, list[tuple[float, float]]]:
    """{column: its points} of a log in CSV with a head, over the column `across`. Lines of other forms are left out."""
    found: dict[str, list[tuple[float, float]]] = {}
    with log.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            try:
                values = {name: float(value) for name, value in row.items() if value}
            except (TypeError, ValueError):
                continue
            for name, value in values.items():
                if name not in (across, "tokens", "seconds") and across in values:
                    found.setdefault(name, []).append((values[across], value))
    return found
