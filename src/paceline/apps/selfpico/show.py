"""The report: each fragment with its lines as they ran, the values put in next to them, and its errors."""

from collections.abc import Sequence
from html import escape
from typing import Any

from ..common.report import Report
from .fragment import Finding, Put, Ran

STYLE = """
.code { font: .86rem/1.45 ui-monospace, monospace; border-collapse: collapse; }
.code td { border: 0; padding: 0 .6rem 0 0; white-space: pre-wrap; }
.ran { background: #2a82; } .missed { background: #d333; } .note { color: #777; font-size: .8rem; }
.code td { overflow-wrap: anywhere; } .code td:nth-child(3) { min-width: 9rem; }
.error { color: #c22; font-weight: 600; }
"""


def report(title: str, ran: Sequence[Ran], facts: dict[str, Any], rows: Sequence[dict[str, Any]] = ()) -> Report:
    """What ran, in total and line by line."""
    lines = sum(len(r.lines) for r in ran)
    done = sum(len(r.ran) for r in ran)
    share = f"{done} of {lines} lines ran ({done / lines:.0%})" if lines else "no lines"
    made = Report(title, f"{len(ran)} fragments: {share}. Green lines ran, red ones did not.", style=STYLE)
    if facts:
        made.answers(facts)
    if rows:
        kept = [name for name in rows[0] if any(row.get(name) is not None for row in rows)]
        made.table("By predictor", [{name: row.get(name) for name in kept} for row in rows])
        made.figure(
            "Lines run",
            lambda axes: bars(axes, rows),
            "Mean share of a fragment's lines that ran.",
            (6, 1 + 0.35 * len(rows)),
        )
    made.facts("Use of the server", facts)
    if errors := [row for r in ran for row in finding_rows(r)]:
        made.table(
            "Errors found", errors, "Sure: no value that was put in reaches its line, so the error is the fragment's."
        )
    for r in ran:
        made.markup(f"{r.name}: {r.share:.0%}", page(r), marked(r))
    return made


def bars(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    names = [f"{row['predictor']}, {row['group']}" for row in rows]
    axes.barh(names, [row["mean_share"] for row in rows])
    axes.set_xlim(0, 1)


def finding_rows(ran: Ran) -> list[dict[str, Any]]:
    return [
        {"fragment": ran.name, "line": f.line, "error": f.error, "message": f.message,
         "sure": "yes" if f.sure else "", "values": f.values, "went on": "yes" if f.passed else ""}
        for f in ran.findings
    ]  # fmt: skip


def page(ran: Ran) -> str:
    """A table of the fragment's lines; everything that comes from it or from a model is escaped."""
    rows = []
    for number, line in enumerate(ran.source.splitlines(), 1):
        mark = "ran" if number in ran.ran else "missed" if number in ran.lines else ""
        notes = [f'<span class="note">{escape(each.what)}</span>' for each in ran.found if each.line == number]
        notes += [noted(p) for p in ran.puts if p.line == number]
        notes += [failed(f) for f in ran.findings if f.line == number]
        rows.append(f'<tr class="{mark}"><td>{number}</td><td>{escape(line)}</td><td>{"<br>".join(notes)}</td></tr>')
    ending = ran.problem or (f"Stopped: {ran.stopped}." if ran.stopped else "")
    tried = f" It tried: {'; '.join(ran.attempts)}." if ran.attempts else ""
    return f'<table class="code">{"".join(rows)}</table><p class="note">{escape(ending + tried)}</p>'


def marked(ran: Ran) -> str:
    """The fragment for Markdown: + before lines that ran, - before those that did not, and what there is to say."""
    signs = {**dict.fromkeys(ran.lines, "-"), **dict.fromkeys(ran.ran, "+")}
    lines = [f"{signs.get(number, ' ')} {line}" for number, line in enumerate(ran.source.splitlines(), 1)]
    return "\n".join([*lines, *([f"# {ran.problem}"] if ran.problem else [])])


def noted(put: Put) -> str:
    sure = put.guess.get("confidence")
    how = put.guess.get("how", "type" if "type" in put.guess else "value")
    tail = f", {sure:.0%}" if isinstance(sure, float) else ""
    return f'<span class="note">{escape(put.key)} = {escape(put.shown)} ({escape(str(how))}{tail})</span>'


def failed(found: Finding) -> str:
    went_on = " (went on)" if found.passed else ""
    return f'<span class="error">{escape(found.error)}: {escape(found.message)}{went_on}</span>'
