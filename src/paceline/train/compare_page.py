"""The table of a comparison of drafters: as text, and as a page with a plot, without a library."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from paceline.train.compare import ComparedRow, ComparisonPlan, Estimate, best_of, speed_of, tau_of, were_timed
from paceline.train.files import put

PAGE_FILE = "index.html"
BAR_WIDTH, BAR_HEIGHT, NAME_WIDTH = 420, 22, 110
"""Pixels."""
COMPARISON_STYLE = """
:root { color-scheme: light dark; --line: #8886; --bar: #2a78c2; --poor: #b4552d; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
div { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .7rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } svg text { fill: currentColor; font-size: 13px; }
"""


def advice(plan: ComparisonPlan, rows: Sequence[ComparedRow]) -> str:
    """What to serve, in a sentence or two."""
    wrong = [row.name for row in rows if not row.same]
    warning = f" TEXTS DIFFER from plain decoding's with {', '.join(wrong)}: do not serve with it." if wrong else ""
    if not were_timed(rows):
        return "Tokens per pass alone: nothing was timed, so no row says which drafter is the fastest." + warning
    best = best_of(rows)
    if best is None:
        return "No drafter is surely faster than plain decoding here: serve without one, or train longer." + warning
    draft = plan.out / best.name if best.trained_tokens else plan.draft if best.drafter == "model" else None
    command = f"paceline serve {plan.target}" + ("" if draft is None else f" --draft {draft}")
    again = "" if best.trained_tokens else " It needs no training."
    return (
        f"{best.name} is the fastest: {speed_of(best)} times plain decoding.{again} Serve it with: {command}{warning}"
    )


def cells(row: ComparedRow) -> list[str]:
    chain = "" if row.chain is None else f"{row.chain:.2f}"
    trained = f"{row.trained_tokens:,}" if row.trained_tokens else ""
    minutes = f"{row.train_seconds / 60:.1f}" if row.trained_tokens else ""
    name = row.name if row.same else f"{row.name} (texts differ)"
    return [name, trained, minutes, chain, str(tau_of(row)), str(speed_of(row)) if were_timed([row]) else ""]


HEADINGS = ("drafter", "tokens trained", "minutes", "simulated tau", "tau [95 %]", "speed over plain [95 %]")


def table(rows: Sequence[ComparedRow]) -> str:
    """The table in Markdown."""
    lines = [HEADINGS, ("---",) * len(HEADINGS), *map(cells, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def plot(rows: Sequence[ComparedRow]) -> str:
    """Speed over plain decoding, or tokens per pass where it was not timed, a bar each with its interval, and a line at
    1: SVG."""
    of, title = (speed_of, "Speed over plain decoding") if were_timed(rows) else (tau_of, "Tokens per pass")
    found = [(row.name, of(row)) for row in rows]
    most = max(1.2, *(it.high for _, it in found))
    width, height = NAME_WIDTH + BAR_WIDTH + 150, BAR_HEIGHT * len(found) + 30

    def at(value: float) -> float:
        return NAME_WIDTH + BAR_WIDTH * value / most

    def bar(number: int, name: str, it: Estimate) -> str:
        top = number * BAR_HEIGHT + 4
        middle = top + BAR_HEIGHT / 2 - 2
        return (
            f'<text x="{NAME_WIDTH - 8}" y="{middle + 5}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{NAME_WIDTH}" y="{top}" width="{at(it.value) - NAME_WIDTH:.1f}" height="{BAR_HEIGHT - 6}" '
            f'fill="var(--{"bar" if it.value >= 1 else "poor"})" opacity=".75"/>'
            f'<path d="M{at(it.low):.1f} {middle}H{at(it.high):.1f}" stroke="currentColor" stroke-width="1.5"/>'
            f'<text x="{at(it.high) + 8:.1f}" y="{middle + 5}">{it.value:.2f}</text>'
        )

    bars = "".join(bar(number, name, it) for number, (name, it) in enumerate(found))
    foot = height - 8
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{title}">{bars}'
        f'<path d="M{at(1):.1f} 0V{height - 24}" stroke="currentColor" stroke-dasharray="4 3"/>'
        f'<text x="{at(1):.1f}" y="{foot}" text-anchor="middle">plain decoding = 1</text></svg>'
    )


def write_page(plan: ComparisonPlan, rows: Sequence[ComparedRow]) -> Path:
    """Write the page into the comparison's directory. Raises InputError where that fails."""
    asked = sum(len(them) for them in rows[0].asked.values()) if rows else 0
    amount = f"{plan.hours:g} hours for all" if plan.hours is not None else f"{plan.steps} training steps each"
    how = f"in turns with plain decoding; medians of {plan.rounds}" if plan.rounds else "not timed"
    body = "".join(
        "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in line) + "</tr>"
        for tag, line in [("th", HEADINGS), *(("td", cells(row)) for row in rows)]
    )
    text = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Drafters for {escape(str(plan.target))}</title><style>{COMPARISON_STYLE}</style>"
        f"<h1>Drafters for {escape(str(plan.target))}</h1><p>{escape(advice(plan, rows))}</p><div>{plot(rows)}</div>"
        f"<p>{asked} held-out prompts, answered greedily, {plan.answer} tokens each, one request at a time, "
        f"{how}. {amount}. Tau is tokens per pass of the model. Intervals are "
        f"a bootstrap over the prompts.</p><div><table>{body}</table></div></html>\n"
    )
    page = plan.out / PAGE_FILE
    put(page, text)
    return page
