"""A report: sections of text, tables and plots, written as one HTML file and as Markdown next to it.

    report = Report("What ran", "12 snippets, 83 % of their lines.")
    report.table("Figures", [{"lines": 120, "run": 100}])
    report.figure("Coverage", plot, "Lines run of each snippet.")      # plot(axes) draws with matplotlib
    report.write(Path("out"))                                           # out/report.html, out/report.md, out/*.png

Everything that is shown is escaped: models' answers and programs' output are text, never markup.
"""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

from .usage import speculated, told

APP_HERE = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class Section:
    """One part: `kind` is "text", "code", "table", "figure" or "markup" (HTML that the application escaped itself)."""

    kind: str
    title: str
    text: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    png: bytes = b""

    @property
    def data_url(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


@dataclass(slots=True)
class Report:
    """A title, a lead of one or two sentences, and sections in the order in which they were added."""

    title: str
    lead: str = ""
    sections: list[Section] = field(default_factory=list)
    style: str = ""

    def answers(self, usage: Mapping[str, Any]) -> None:
        """Says in the lead how many answers were the model's, and what speculation brought."""
        self.lead = " ".join(part for part in (self.lead, told(usage), speculated(usage)) if part)

    def text(self, title: str, text: str) -> None:
        """Paragraphs; empty lines part them. No text: no section."""
        if not text.strip():
            return
        self.sections.append(Section("text", title, text))

    def code(self, title: str, text: str) -> None:
        """Text as it is, in a monospaced face."""
        self.sections.append(Section("code", title, text))

    def markup(self, title: str, html: str, text: str = "") -> None:
        """HTML for the page, which the caller has escaped, and `text` for Markdown."""
        self.sections.append(Section("markup", title, text, rows=((html,),)))

    def table(self, title: str, rows: Sequence[Mapping[str, Any]], text: str = "") -> None:
        """Rows as mappings; columns are the first row's keys. No rows: no section."""
        if not rows:
            return
        columns = tuple(rows[0])
        cells = tuple(tuple(cell(row.get(c)) for c in columns) for row in rows)
        self.sections.append(Section("table", title, text, columns, cells))

    def facts(self, title: str, facts: Mapping[str, Any], text: str = "") -> None:
        """A table of names and values."""
        self.table(title, [{"": name.replace("_", " "), "value": value} for name, value in facts.items()], text)

    def figure(
        self, title: str, draw: Callable[[Any], None], text: str = "", size: tuple[float, float] = (7, 3)
    ) -> None:
        """A plot: `draw` gets matplotlib axes. Raises ImportError without matplotlib (extra `apps`)."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure.add_subplot())
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=110)
        self.sections.append(Section("figure", title, text, png=out.getvalue()))

    def html(self) -> str:
        return environment(True).get_template("report.html").render(report=self)

    def markdown(self, images: str = "figure") -> str:
        """The report as Markdown; its n-th section, a figure, is the file IMAGES-n.png."""
        return environment(False).get_template("report.md").render(report=self, images=images)

    def write(self, folder: Path, name: str = "report") -> Path:
        """NAME.html, NAME.md and the figures' PNG files into `folder`, which is made; the path of the HTML file."""
        folder.mkdir(parents=True, exist_ok=True)
        for number, section in enumerate(self.sections, 1):
            if section.png:
                (folder / f"{name}-{number}.png").write_bytes(section.png)
        (folder / f"{name}.md").write_text(self.markdown(name), encoding="utf-8")
        page = folder / f"{name}.html"
        page.write_text(self.html(), encoding="utf-8")
        return page


def cell(value: Any) -> str:
    """A value in a table: floats of four significant digits or whole, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {cell(v)}" for k, v in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(cell(v) for v in value)
    return str(value)


def environment(escape: bool) -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(APP_HERE),
        autoescape=escape,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    env.filters["cell"] = lambda text: str(text).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
    env.filters["fence"] = lambda text: "\n".join("    " + line for line in str(text).splitlines())
    return env
