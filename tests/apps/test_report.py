"""Reports: what is shown is escaped, tables and figures are where they belong."""

from pathlib import Path

import pytest

from paceline.apps.common.report import Report

pytest.importorskip("matplotlib", reason="the extra apps is not installed")


def test_a_report_in_both_forms(tmp_path: Path) -> None:
    report = Report("A <title>", "Lead.")
    report.text("Text", "One.\n\nTwo & three.")
    report.table("Table", [{"name": "a|b", "share": 0.123456, "list": ["x", 1]}, {"name": "<script>", "share": None}])
    report.table("Nothing", [], "No rows, no section.")
    report.text("Empty", " ")
    report.answers({"answers": 2, "answers_of_the_model": 2, "drafted_tokens": 40, "accepted_share": 0.5,
                    "tokens_per_pass": 1.8})  # fmt: skip
    report.code("Code", "<b>\nline")
    report.figure("Plot", lambda axes: axes.plot([1, 2], [3, 4]))
    page = report.write(tmp_path / "out").read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page and "A &lt;title&gt;" in page
    assert "<td>0.1235</td>" in page and "data:image/png;base64," in page and "<p>Two &amp; three.</p>" in page
    assert "Nothing" not in page and "Empty" not in page
    assert "2 of 2 answers were the model&#39;s. 50% of 40 drafted tokens were kept, 1.80 tokens a pass" in page
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| a\\|b | 0.1235 | x, 1 |" in text and "    <b>\n    line" in text and "![Plot](report-4.png)" in text
    assert (tmp_path / "out" / "report-4.png").read_bytes().startswith(b"\x89PNG")
