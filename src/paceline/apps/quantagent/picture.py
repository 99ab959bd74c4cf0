"""A window of bars as a picture: candles with support and resistance, for models that see, and for reports."""

import base64
import io
from collections.abc import Mapping

import numpy as np

from .bars import Bars
from .trend import Trend


def png(
    bars: Bars, lines: Trend | None = None, title: str = "", levels: Mapping[str, tuple[float, str]] | None = None
) -> bytes:
    """The window as PNG bytes, drawn in memory: nothing is shared between windows that are drawn at once."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.2), dpi=100, layout="constrained")
    axes = figure.subplots()
    x = np.arange(len(bars))
    colours = ["#2a9d8f" if c >= o else "#c8553d" for o, c in zip(bars.open, bars.close, strict=True)]
    axes.vlines(x, bars.low, bars.high, colors=colours, linewidth=1)
    body = np.abs(bars.close - bars.open)
    axes.bar(x, np.maximum(body, 1e-9), 0.7, np.minimum(bars.open, bars.close), color=colours)
    if lines is not None:
        axes.plot(x, lines.support.intercept + lines.support.slope * x, color="#1d4e89", label="support")
        axes.plot(x, lines.resistance.intercept + lines.resistance.slope * x, color="#a4161a", label="resistance")
        axes.legend(loc="best", fontsize=7, frameon=False)
    for name, (price, colour) in (levels or {}).items():
        axes.axhline(price, color=colour, linewidth=1, linestyle="--")
        axes.annotate(f"{name} {price:.6g}", (0, price), fontsize=7, color=colour, va="bottom")
    axes.set(title=title, xlabel="bar", ylabel="price")
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def data_url(image: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(image).decode()
