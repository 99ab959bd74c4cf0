"""`bench --plot`: tokens a second of each method as bars, one panel for each batch size and temperature."""

from importlib.util import find_spec
from pathlib import Path

from paceline.bench.report import BenchReport
from paceline.core.errors import InputError

PICTURE_KINDS = (".svg", ".png", ".pdf")
PANEL_INCHES = 4.5


def check(path: Path) -> None:
    """Raise InputError, before anything is measured, where no picture can be drawn or kept."""
    if path.suffix not in PICTURE_KINDS:
        raise InputError(f"--plot is {str(path)!r}, but its name must end in {', '.join(PICTURE_KINDS)}.")
    if not path.resolve().parent.is_dir():
        raise InputError(f"--plot is {str(path)!r}, but its folder does not exist; make it.")
    if find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib; pip install 'paceline[plot]'.")


def draw(report: BenchReport, path: Path) -> None:
    """The rows of a report; whiskers are the range of the repeats. Raises InputError where it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cells = list(dict.fromkeys((row.batch, row.temperature) for row in report.rows))
    figure = Figure(figsize=(PANEL_INCHES * len(cells), PANEL_INCHES), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (batch, temperature) in zip(figure.subplots(1, len(cells), squeeze=False)[0], cells):
        rows = [row for row in report.rows if (row.batch, row.temperature) == (batch, temperature)]
        speeds = [row.tokens_per_second for row in rows]
        plain = [row.tokens_per_second / row.speedup for row in rows]
        below = [max(0.0, speed - base * row.speedup_min) for speed, base, row in zip(speeds, plain, rows)]
        above = [max(0.0, base * row.speedup_max - speed) for speed, base, row in zip(speeds, plain, rows)]
        bars = axes.barh([row.method for row in rows], speeds, xerr=[below, above], capsize=3)
        axes.bar_label(bars, [f"{row.speedup:.2f}x" for row in rows], padding=6)
        axes.set(title=f"batch {batch}, temperature {temperature:g}", xlabel="tokens a second")
        axes.margins(x=0.15)
        axes.invert_yaxis()
    try:
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"--plot {path} cannot be written: {error}.") from None
