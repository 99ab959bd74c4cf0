"""Lines against load as a small SVG file: panels above one another, one x axis."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from paceline.bench.svg import COLOURS, SVG_STYLE, stroke, text, tick

WIDTH, PANEL_HEIGHT = 860, 190
LEFT, RIGHT, TOP, GAP, BOTTOM = 64, 130, 56, 36, 56
LINE_STYLE = ".line{fill:none;stroke-width:2}"


@dataclass(frozen=True, slots=True)
class PlotPanel:
    """Lines {name: one value for each load; None: none}; a logarithmic scale has no room for 0."""

    title: str
    lines: Mapping[str, Sequence[float | None]]
    log: bool = False

    def values(self) -> list[float]:
        return [v for line in self.lines.values() for v in line if v is not None and (v > 0 or not self.log)]


@dataclass(frozen=True, slots=True)
class Axis:
    """Values to places from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round values on the axis."""
        if not self.log:
            step = tick(self.high - self.low)
            return [step * i for i in range(math.ceil(self.low / step), math.floor(self.high / step + 1e-9) + 1)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        marks = (1, 2, 5) if self.high <= 1e3 * self.low else (1,)
        return [m * 10.0**d for d in decades for m in marks if self.low <= m * 10.0**d <= self.high]


def svg(title: str, x_label: str, xs: Sequence[float], panels: Sequence[PlotPanel]) -> str:
    """One panel after another, from top to bottom; an infinite load is left out."""
    keep = [i for i, x in enumerate(xs) if math.isfinite(x)]
    height = TOP + len(panels) * (PANEL_HEIGHT + GAP) - GAP + BOTTOM
    most = max((xs[i] for i in keep), default=1.0)
    x_axis = Axis(0.0, most * 1.05, LEFT, WIDTH - RIGHT)
    body = [f'<rect class="ground" width="{WIDTH}" height="{height}"/>', text(LEFT, 20, title, "title")]
    for place, panel in enumerate(panels):
        top = TOP + place * (PANEL_HEIGHT + GAP)
        body += _panel(panel, x_axis, [xs[i] for i in keep], keep, top)
    bottom = height - BOTTOM
    body += [text(x_axis.at(v), bottom + 18, f"{v:g}", anchor="middle") for v in x_axis.ticks()]
    body.append(text((LEFT + WIDTH - RIGHT) / 2, height - 14, x_label, anchor="middle"))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    style = f"<title>{escape(title)}</title><style>{SVG_STYLE}{LINE_STYLE}</style>"
    return "\n".join([head, style, *body, "</svg>", ""])


def around(value: float) -> tuple[float, float]:
    """The neighbours of a value among ..., 1, 2, 5, 10, ..."""
    decade = 10.0 ** math.floor(math.log10(value))
    marks = [mark * decade for mark in (1, 2, 5, 10)]
    return max(mark for mark in marks if mark <= value), min(mark for mark in marks if mark > value)


def _panel(panel: PlotPanel, x_axis: Axis, xs: Sequence[float], keep: Sequence[int], top: float) -> list[str]:
    values = panel.values() or [1.0]
    if panel.log:
        y_axis = Axis(around(min(values) / 1.05)[0], around(max(values) * 1.05)[1], top + PANEL_HEIGHT, top, log=True)
    else:
        y_axis = Axis(0.0, max(max(values) * 1.05, 1e-9), top + PANEL_HEIGHT, top)
    out = [text(LEFT, top - 6, panel.title)]
    for value in y_axis.ticks():
        y = y_axis.at(value)
        out += [stroke("grid", LEFT, y, WIDTH - RIGHT, y), text(LEFT - 8, y + 4, f"{value:g}", anchor="end")]
    out.append(stroke("axis", LEFT, top + PANEL_HEIGHT, WIDTH - RIGHT, top + PANEL_HEIGHT))
    for place, (name, line) in enumerate(panel.lines.items()):
        own = [(x, v) for x, i in zip(xs, keep) if (v := line[i]) is not None and (v > 0 or not panel.log)]
        points = [(x_axis.at(x), y_axis.at(v)) for x, v in own]
        colour = COLOURS[place + 1]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        out.append(f'<polyline class="line" stroke="{colour}" points="{joined}"/>')
        for (x, y), (load, value) in zip(points, own):
            told = f"<title>{escape(f'{name} at {load:g}: {value:.4g}')}</title>"
            out.append(f'<circle fill="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">{told}</circle>')
        y = top + 22 * place + 11
        out.append(f'<rect fill="{colour}" x="{WIDTH - RIGHT + 20}" y="{y - 11}" width="13" height="13"/>')
        out.append(text(WIDTH - RIGHT + 42, y, name))
    return out
