"""From items to a report, over HTTP: an oracle scores 1, silence 0; the real demo server ends with a report."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline.apps.common.client import Token
from paceline.apps.common.confidence import of_part
from paceline.apps.common.sandbox import unavailable
from paceline.apps.surge.ask import SURGE_SYSTEM, SurgeRecord, prompt
from paceline.apps.surge.command import app
from paceline.apps.surge.extract import answer, is_answer, span
from paceline.apps.surge.items import SurgeItem, question, write
from paceline.apps.surge.table import NEVER_SURE, floors, line, summary, threshold_for, unsure
from tests.apps.scripted import scripted

pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'paceline[apps]')")
VERDICT = '{"pass": false, "errors": [{"severity": "error", "pos": {"line": 1, "column": 1}, "data": "no"}]}'
ITEMS = [
    SurgeItem(f"{kind}-{i}", kind, "Python", question({"main.py": f"print({i})"}, "python3 main.py") + f" #{kind}{i}",
         truth, rule, {"main.py": f"print({i})"}, "python3 main.py")
    for kind, rule, truths in (
        ("ML", "exact", ("0", "1")),
        ("RL", "similar", ("a b\nc d", "a b\nc e")),
        ("SC", "numbers", ("[1.5, 2]", "[3, 4]")),
        ("TC", "ranking", ("[1, 2, 3]", "[4, 5, 6]")),
        ("BG", "tokens", ("error: no x", "error: no y")),
        ("FL", "errors", (VERDICT, '{"pass": true, "errors": []}')),
    )
    for i, truth in enumerate(truths)
]  # fmt: skip
BY_MARK = {f"#{item.kind}{item.id[-1]}": item for item in ITEMS}


def asked(body: dict[str, Any]) -> SurgeItem:
    text = body["messages"][-1]["content"]
    return next(item for mark, item in BY_MARK.items() if mark in text)


def oracle(body: dict[str, Any]) -> str:
    item = asked(body)
    return item.truth if item.rule == "errors" else f"Output:\n```\n{item.truth}\n```"


def invoke(*args: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*args, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def items(tmp_path: Path) -> Path:
    write(ITEMS, tmp_path / "items.jsonl")
    return tmp_path / "items.jsonl"


@pytest.mark.parametrize("style", ["zero", "cot", "few"])
def test_an_oracle_scores_one(items: Path, tmp_path: Path, style: str) -> None:
    with scripted(oracle) as (url, bodies):
        found = invoke("run", str(items), "--url", url, "--style", style, "--out", str(tmp_path), "--size", "10")
    assert found["summary"]["mean"] == found["summary"]["published_mean"] == 1.0
    assert found["summary"]["right"] == len(ITEMS)
    assert all(body["messages"][0]["content"] == SURGE_SYSTEM for body in bodies)
    assert sum("response_format" in body for body in bodies) == 2
    assert "Scores" in (tmp_path / "report.html").read_text()
    assert json.loads((tmp_path / "result.json").read_text())["records"]


def test_silence_scores_nothing_and_a_dead_server_is_named(items: Path, tmp_path: Path) -> None:
    with scripted(lambda body: "") as (url, _):
        silent = CliRunner().invoke(app, ["run", str(items), "--url", url, "--out", str(tmp_path)])
    assert silent.exit_code == 1 and "0 of 12 answers were the model's" in silent.output
    assert json.loads((tmp_path / "result.json").read_text())["summary"]["mean"] == 0.0
    gone = CliRunner().invoke(app, ["run", str(items), "--url", url, "--out", str(tmp_path)])
    assert gone.exit_code == 2
    assert "cannot be reached" in gone.output


def test_models_by_size(items: Path, tmp_path: Path) -> None:
    for size, script in (("10", lambda body: "~"), ("1000", oracle)):
        with scripted(script) as (url, _):
            invoke("run", str(items), "--url", url, "--out", str(tmp_path / size), "--size", size, "--name", f"m{size}")
    paths = [str(tmp_path / size / "result.json") for size in ("10", "1000")]
    assert invoke("scale", *paths, "--out", str(tmp_path))["means"] == {"m10": 0.0, "m1000": 1.0}
    assert "+0.500 a decade" in (tmp_path / "scaling.md").read_text()
    fewer = json.loads((tmp_path / "10" / "result.json").read_text())
    del fewer["records"][0]
    (tmp_path / "10" / "result.json").write_text(json.dumps(fewer))
    result = CliRunner().invoke(app, ["scale", *paths])
    assert result.exit_code == 2 and "answered different items" in result.output


def test_the_demo_pair_ends_with_a_report(items: Path, tmp_path: Path, demo_url: str) -> None:
    found = invoke(
        "run", str(items), "--url", demo_url, "--max-tokens", "48", "--out", str(tmp_path), "--concurrency", "4"
    )
    assert found["summary"]["items"] == len(ITEMS)
    assert found["usage"]["cached_share"] > 0.3
    assert isinstance(found["usage"]["drafted_tokens"], int)  # whether any pay is for the planner to say
    verdicts = [json.loads(r["predicted"]) for r in found["records"] if r["rule"] == "errors" and not r["problem"]]
    assert all(verdict["pass"] == (not verdict["errors"]) for verdict in verdicts)
    assert all(record["confidence"] is not None for record in found["records"] if not record["problem"])
    assert (tmp_path / "report.md").stat().st_size > 500


@pytest.mark.skipif(bool(unavailable()), reason=f"no sandbox here: {unavailable()}")
def test_predict_then_run_when_unsure(tmp_path: Path, demo_url: str) -> None:
    (tmp_path / "main.py").write_text("print(6 * 7)")
    given = (
        "predict",
        str(tmp_path / "main.py"),
        "--command",
        "python3 main.py",
        "--url",
        demo_url,
        "--max-tokens",
        "16",
    )
    ran = invoke(*given, "--threshold", "1.01")
    assert (ran["output"], ran["source"], ran["status"]) == ("42", "run", "ok")
    assert "below 1.01" in ran["why"]
    kept = invoke(*given, "--threshold", "0")
    assert (kept["source"], kept["output"]) == ("predicted", ran["predicted"])


def record(score: float, confidence: float | None, column: str = "ML/Python") -> SurgeRecord:
    return SurgeRecord("x", "ML", column, "exact", "zero", "", "", score, score, confidence, "ok", None, 0.0)


def test_what_confidence_is_worth() -> None:
    rows = unsure([record(1, 0.99), record(1, 0.6), record(0, 0.6), record(0, None)])
    by = {row["threshold"]: row for row in rows}
    assert by[0.0]["run"] == 0.25
    assert by[0.0]["right"] == 0.75
    assert by[0.9] == {"threshold": 0.9, "run": 0.75, "right": 1.0, "kept_right": 1.0}
    assert by[1.01]["run"] == 1.0


def test_zero_columns_count_and_floors_show_boilerplate() -> None:
    found = summary([record(1, 1.0), record(0, 1.0, "SC")], ITEMS)
    assert found["mean"] == 0.5
    assert found["published_mean"] == 1.0
    assert floors(ITEMS)["BG/Python"] == pytest.approx(2 / 4)
    assert line([10, 10], [0.1, 0.2]) is None


def test_no_item_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("")
    result = CliRunner().invoke(app, ["run", str(tmp_path / "x.jsonl")])
    assert result.exit_code == 2
    assert "no item to predict" in result.output


def test_what_calls_share_comes_first() -> None:
    a, b = (prompt(item, "few").messages() for item in ITEMS[:2])
    assert a[:-1] == b[:-1]
    assert a[-1]["content"].startswith("main.py")


@pytest.mark.parametrize("reply", ["Thought: 3*2.\nOutput:\n```\n6\n```\n", "Thought: x\nOutput: `6`", "6"])
def test_confidence_is_of_the_output_alone(reply: str) -> None:
    """The tokens of a long thought hid an output of which the model was not sure."""
    tokens = [Token(each, -2.0 if each == "6" else -0.01) for each in reply]
    begin, end = span(reply)
    assert answer(reply) == reply[begin:end].strip() == "6"
    assert of_part(tokens, begin, end) == pytest.approx(0.1353, abs=1e-3)


def test_confidence_by_samples_is_the_share_that_agrees(items: Path, tmp_path: Path) -> None:
    def script(body: dict[str, Any]) -> Any:
        wrong = "{}" if asked(body).rule == "errors" else "Output:\n```\nother\n```"
        return [oracle(body), oracle(body), wrong, wrong] if body.get("n") else oracle(body)

    with scripted(script) as (url, _):
        found = invoke("run", str(items), "--url", url, "--out", str(tmp_path), "--samples", "4")
    assert {record["confidence"] for record in found["records"]} == {0.5}
    assert {row["run"] for row in found["unsure"] if row["threshold"] > 0.5} == {1.0}


def test_a_threshold_is_the_least_confidence_that_was_right_often_enough(tmp_path: Path) -> None:
    rows = [{"confidence": n / 40, "score": float(n > 20 or n == 5)} for n in range(40)]
    assert threshold_for(rows, 1.0) == 21 / 40 and threshold_for(rows, 0.9) == 19 / 40
    assert threshold_for([{**row, "score": 0.0} for row in rows], 0.5) == NEVER_SURE
    with pytest.raises(ValueError, match="20 or more are needed"):
        threshold_for(rows[:9], 0.9)
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"samples": 4, "style": "cot", "records": rows}))
    program = tmp_path / "a.py"
    program.write_text("print(1)")
    args = [
        "predict",
        str(program),
        "--command",
        "python3 a.py",
        "--measured",
        str(path),
        "--url",
        "http://127.0.0.1:9",
    ]
    refused = CliRunner().invoke(app, args)
    assert refused.exit_code == 2 and "was measured with --samples 4" in refused.output


@pytest.mark.parametrize(
    ("reply", "is_one"),
    [("```", False), ("```\n```", False), ("Output:\n```\n", False), ("Output:\n```\n6\n", False), ("", False),
     ("Output:\n```\n6\n```", True), ("Thought: x\n```py\ny\n```\nOutput: `6`", True), ("6", True)],
)  # fmt: skip
def test_a_bare_or_unclosed_fence_is_no_answer(reply: str, is_one: bool) -> None:
    assert is_answer(reply) == is_one


@pytest.mark.skipif(bool(unavailable()), reason=f"no sandbox here: {unavailable()}")
def test_without_a_measured_run_the_program_is_run(tmp_path: Path) -> None:
    (tmp_path / "main.sh").write_text("echo 42")
    with scripted(lambda body: "Output:\n```\n41\n```") as (url, _):
        found = invoke("predict", str(tmp_path / "main.sh"), "--command", "sh main.sh", "--url", url)
    assert (found["source"], found["output"], found["predicted"]) == ("run", "42", "41")
    assert "not trusted: no measured run" in found["why"]
