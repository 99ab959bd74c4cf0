import json
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from paceline.bench.load.answer import ServerUsage, TimedAnswer
from paceline.bench.load.report import Generator, LoadCell, LoadReport, doubts
from paceline.bench.load.stats import Spread, summarize


def answers(ttft: float = 0.1) -> list[TimedAnswer]:
    return [
        TimedAnswer(float(i), fired=i + 0.001, sent=i + 0.002, first=i + ttft, last=i + 1.0, ended=i + 1.0,
               gaps=array("d", [1.0 - ttft]), usage=ServerUsage(5, 10), finished=True)
        for i in range(4)
    ]  # fmt: skip


def cell(own: list[TimedAnswer], *late: float, busy: float = 0.1, closed: bool = False, value: float = 2.0) -> LoadCell:
    summary = summarize(own, {"ttft": 200.0})
    return LoadCell(f"Poisson {value:g}/s", value, closed, summary, Generator.of(own, late or [0.0], busy), own)


def shown(report: LoadReport, width: int = 80) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for table in report.tables():
        console.print(table)
    return console.export_text()


def report(*cells: LoadCell) -> LoadReport:
    return LoadReport("http://x", "m", "chat", {"ttft": 200.0}, list(cells))


def test_one_load_has_all_percentiles_and_a_sweep_one_line_each() -> None:
    one, two = shown(report(cell(answers()))), shown(report(cell(answers()), cell(answers(), value=16.0)))
    assert "TTFT from sending" in one and "from sending" not in two and "…" not in one + two
    assert len([line for line in two.splitlines() if "Poisson" in line]) == 2


def test_no_doubt_without_cause() -> None:
    assert doubts(cell(answers())) == []


def test_lateness_is_said_where_it_matters() -> None:
    (said,) = doubts(cell(answers(), 0.05))
    assert "50.0 ms late" in said
    assert doubts(cell(answers(ttft=0.9), 0.05)) == [], "a tenth of TTFT is more"
    assert doubts(cell(answers(), *[0.0] * 95, *[0.05] * 5)), "at p99 alone"
    tardy = [replace(a, fired=a.intended + 0.2) for a in answers()]
    assert "200.0 ms late" in doubts(cell(tardy))[0]


def test_other_doubts() -> None:
    assert "95% of a core" in doubts(cell(answers(), busy=0.95))[0]
    assert "reported no usage" in doubts(cell([replace(a, usage=None) for a in answers()]))[0]
    failed = [*answers(), TimedAnswer(0.0, ended=1.0, error="HTTP 429", detail="The queue is full.")]
    assert doubts(cell(failed)) == ["1 x HTTP 429: The queue is full."]


def test_a_short_run_is_mostly_its_end() -> None:
    slow = [*answers(), replace(answers()[0], ended=5.0)]
    assert "last 2.0 of 5.0 s had no arrivals" in doubts(cell(slow))[0]
    assert doubts(cell(slow, closed=True)) == []
    assert doubts(cell([replace(a, intended=0.0, fired=0.0) for a in slow])) == [], "all at once is nothing but its end"


def test_a_baseline_is_called_one() -> None:
    assert any("baseline" in note for note in report(cell(answers(), closed=True)).notes())
    assert not any("baseline" in note for note in report(cell(answers())).notes())


def test_repeated_prompts_are_said() -> None:
    told = report(cell(answers()))
    assert told.warnings() == []
    told.repeated = 3
    assert "3 requests had a prompt that was sent before" in told.warnings()[0]


def test_json_holds_what_every_figure_can_be_computed_from(tmp_path: Path) -> None:
    failed = TimedAnswer(9.0, ended=9.5, error="timeout", detail="No end.")
    own = report(cell([*answers(), failed]), cell(answers(), value=float("inf")))
    own.write(tmp_path / "out.json", {"rate": "2"})
    written = json.loads((tmp_path / "out.json").read_text())
    assert {"url", "model", "endpoint", "slo", "repeated", "machine", "versions", "args", "warnings"} < written.keys()
    first, second = written["cells"]
    assert second["value"] is None and first["summary"]["errors"] == {"timeout": 1}
    rows = first["requests"]
    ttft = [(row["first"] - row["intended"]) for row in rows if row["error"] is None]
    assert Spread.of(ttft) == Spread(**first["summary"]["ttft"]) and rows[-1]["error"] == "timeout"
    assert rows[0]["tokens"] == 10 and rows[0]["gaps"] == [0.9]


@pytest.mark.parametrize(("closed", "label"), [(False, "requests/s offered"), (True, "clients")])
def test_plot(closed: bool, label: str, tmp_path: Path) -> None:
    report(cell(answers(), closed=closed), cell(answers(), closed=closed, value=8.0)).plot(tmp_path / "p.svg")
    drawn = (tmp_path / "p.svg").read_text()
    assert label in drawn and "goodput" in drawn and "TTFT, ms" in drawn and "TPOT, ms" in drawn
