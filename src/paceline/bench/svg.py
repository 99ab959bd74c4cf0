"""Stacked bars as a small SVG file, readable on light and dark pages."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

CHART_WIDTH, HEIGHT = 860, 440
CHART_LEFT, CHART_RIGHT, CHART_TOP, CHART_BOTTOM = 64, 216, 44, 56
COLOURS = (
    "#7f6bb3", "#d98c3f", "#3b78b5", "#59b0c4", "#3f9a5f", "#5a5fc7",
    "#c4514f", "#b8a232", "#d588b4", "#8d6748", "#8fb84e", "#8a93a0",
)  # fmt: skip
SVG_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.ground{fill:#fff}.grid{stroke:#d8dde3}.axis{stroke:#57606a}"
    ".part{stroke:#fff;stroke-width:.6}.floor{stroke:#24292f;stroke-width:1.5;stroke-dasharray:6 4}"
    ".title{font-size:14px}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.ground{fill:#0d1117}.grid{stroke:#30363d}"
    ".axis{stroke:#8b949e}.part{stroke:#0d1117}.floor{stroke:#e6edf3}}"
)


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars from bottom to top in the order of `layers` {name: one value for each bar}; `line` (value, name) is drawn
    across all bars. At most len(COLOURS) layers."""

    title: str
    x_label: str
    y_label: str
    bars: Sequence[str]
    layers: Mapping[str, Sequence[float]]
    line: tuple[float, str]

    def svg(self) -> str:
        totals = [sum(values) for values in zip(*self.layers.values())]
        step = tick(max(*totals, self.line[0]))
        top = step * math.ceil(max(*totals, self.line[0]) / step * 1.02)
        scale = (HEIGHT - CHART_TOP - CHART_BOTTOM) / top
        body = [
            f'<rect class="ground" width="{CHART_WIDTH}" height="{HEIGHT}"/>',
            text(CHART_LEFT, 24, self.title, "title"),
        ]
        for i in range(round(top / step) + 1):
            y = HEIGHT - CHART_BOTTOM - i * step * scale
            body.append(stroke("grid" if i else "axis", CHART_LEFT, y, CHART_WIDTH - CHART_RIGHT, y))
            body.append(text(CHART_LEFT - 8, y + 4, f"{i * step:g}", anchor="end"))
        body += self._bars(totals, scale)
        y = HEIGHT - CHART_BOTTOM - self.line[0] * scale
        body += [stroke("floor", CHART_LEFT, y, CHART_WIDTH - CHART_RIGHT, y), *self._legend()]
        centre, middle = (CHART_LEFT + CHART_WIDTH - CHART_RIGHT) / 2, (CHART_TOP + HEIGHT - CHART_BOTTOM) / 2
        body.append(text(centre, HEIGHT - 14, self.x_label, anchor="middle"))
        turned = text(0, 0, self.y_label, anchor="middle")
        body.append(f'<g transform="translate(18 {middle:.1f}) rotate(-90)">{turned}</g>')
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {CHART_WIDTH} {HEIGHT}" role="img">'
        return "\n".join([head, f"<title>{escape(self.title)}</title><style>{SVG_STYLE}</style>", *body, "</svg>", ""])

    def _bars(self, totals: Sequence[float], scale: float) -> list[str]:
        """The stacks, each with its name below and its total above."""
        out, pitch = [], (CHART_WIDTH - CHART_LEFT - CHART_RIGHT) / len(self.bars)
        for i, (name, total) in enumerate(zip(self.bars, totals)):
            x, y, width = CHART_LEFT + (i + 0.2) * pitch, float(HEIGHT - CHART_BOTTOM), 0.6 * pitch
            for colour, (layer, values) in zip(COLOURS, self.layers.items(), strict=False):
                height = values[i] * scale
                y -= height
                told = f"<title>{escape(f'{layer}: {values[i]:.3f}')}</title>"
                place = f'x="{x:.1f}" y="{y:.2f}" width="{width:.1f}" height="{height:.2f}"'
                out.append(f'<rect class="part" fill="{colour}" {place}>{told}</rect>')
            out.append(text(x + width / 2, y - 6, f"{total:.3g}", anchor="middle"))
            out.append(text(x + width / 2, HEIGHT - CHART_BOTTOM + 18, name, anchor="middle"))
        return out

    def _legend(self) -> list[str]:
        """The layers in the order in which they lie, the line last."""
        out, x = [], CHART_WIDTH - CHART_RIGHT + 20
        for i, (colour, layer) in enumerate(reversed(list(zip(COLOURS, self.layers)))):
            out.append(f'<rect fill="{colour}" x="{x}" y="{CHART_TOP + 22 * i}" width="13" height="13"/>')
            out.append(text(x + 22, CHART_TOP + 22 * i + 11, layer))
        y = CHART_TOP + 22 * len(self.layers) + 7
        return [*out, stroke("floor", x, y, x + 16, y), text(x + 22, y + 4, self.line[1])]


def tick(most: float) -> float:
    """A round step that divides `most` into 4 to 10."""
    power = 10.0 ** math.floor(math.log10(most))
    return power * next(share for share in (0.2, 0.25, 0.5, 1.0) if most / power <= 8 * share or share == 1.0)


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def stroke(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
