"""`paceline train all`: every head within a time, measured alike, and which one to serve with."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.cli import app
from paceline.engine.pair import DEMO
from paceline.train import compare as comparing
from paceline.train.compare import ComparedRow, MeasuredPrompt, best_of, estimated, speed_of, tau_of, tau_ratio
from paceline.train.compare_page import advice, plot
from paceline.train.data import Sample


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"Ann has {n} apples. How many are {n} + 2?"}) for n in range(30)))
    return path


def row(name: str, pairs: list[tuple[int, int]], speed: float = 1.5, *, same: bool = True) -> ComparedRow:
    asked = [MeasuredPrompt(tokens, passes, 1.0, speed + 0.01 * i) for i, (tokens, passes) in enumerate(pairs)]
    return ComparedRow(name, name, 100, 60.0, None, same, {"held out": asked})


def test_the_command_trains_measures_and_advises_and_goes_on(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "heads"
    line = [
        "train", "all", "--target", str(DEMO / "target"), "--data", str(data), "--out", str(out), "--steps", "2",
        "--methods", "medusa,eagle-1", "--each", "2", "--answer", "6", "--draft", str(DEMO / "draft"),
    ]  # fmt: skip
    made = CliRunner().invoke(app, line)
    assert made.exit_code == 0, made.output
    for name in ("ngram", "model", "medusa", "eagle-1"):
        assert f"| {name} |" in made.output
    page = (out / "index.html").read_text()
    assert "<svg" in page and "medusa" in page and "in turns with plain decoding" in page
    before = (out / "table.jsonl").read_text()
    rows = [json.loads(line) for line in before.splitlines()]
    assert all(row["same"] and len(row["asked"]["held out"]) == 2 for row in rows)
    assert [row["trained_tokens"] > 0 for row in rows] == [False, False, True, True]
    (out / "table.jsonl").write_text(f'{before}{{"name": "med')  # as it lies when a run is killed
    again = CliRunner().invoke(app, line)
    assert again.exit_code == 0 and (out / "table.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--methods", "medusa,nothing"], "known are medusa"),
        (["--budget", "0"], "positive"),
        (["--budget", "1", "--steps", "3"], "one of them"),
        (["--methods", "medusa,medusa"], "each once"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_loaded(data: Path, more: list[str], words: str) -> None:
    line = ["train", "all", "--target", "/nowhere", "--data", str(data), "--out", str(data.parent / "out"), *more]
    made = CliRunner().invoke(app, line)
    assert made.exit_code and words in " ".join(f"{made.output} {made.exception}".split())


def test_too_few_hours_are_named(tmp_path: Path) -> None:
    plan = comparing.ComparisonPlan(target="t", data=(), out=tmp_path, hours=0.1)
    with pytest.raises(comparing.InputError, match="leave none for 9 trainings"):
        comparing.minutes_of(plan, 400)
    assert comparing.minutes_of(replace(plan, hours=1.0), 0) == comparing.minutes_of(replace(plan, hours=1.0), 900)


def test_ratios_are_paired_by_prompt() -> None:
    """Prompts differ by far more than the drafters do: alone their intervals overlap, paired the ratio is known."""
    passes = [5, 60, 9, 33, 80, 14, 47, 6, 71, 22]
    one, other = row("one", [(110, p) for p in passes]), row("other", [(100, p) for p in passes])
    assert tau_of(one).low < tau_of(other).high
    ratio = tau_ratio(one, other)
    assert ratio.low > 1.09 and ratio.high < 1.11 and ratio.sign == 1
    assert tau_ratio(other, one).sign == -1 and tau_ratio(one, one).sign == 0
    assert estimated([(4, 2), (4, 2)]).value == 2


def test_the_best_is_surely_faster_and_says_the_same() -> None:
    slow, fast, wrong = (
        row("slow", [(9, 3)] * 9, 0.8),
        row("fast", [(9, 3)] * 9, 1.4),
        row("odd", [(9, 3)] * 9, 3, same=False),
    )
    plan = comparing.ComparisonPlan(target="t", data=(), out=Path("heads"), steps=1)
    assert best_of([slow, fast, wrong]) is fast and speed_of(slow).high < 1
    assert "--draft heads/fast" in advice(plan, [slow, fast, wrong]) and "TEXTS DIFFER" in advice(plan, [fast, wrong])
    assert best_of([slow, wrong]) is None and "No drafter" in advice(plan, [slow])
    assert plot([slow, fast]).count("<rect") == 2


def test_what_is_not_timed_asks_plain_decoding_once(tmp_path: Path) -> None:
    plan = comparing.ComparisonPlan(target=DEMO / "target", data=(), out=tmp_path, steps=1, rounds=0, answer=8)
    tests = {"held out": [Sample(tuple(range(100 + i, 130 + i)), 30) for i in range(2)]}
    comparing.check_plan(plan)
    for _ in range(2):
        same, asked = comparing.timed(plan, "ngram", None, tests)
        assert same and [it.tokens for it in asked["held out"]] == [7, 7]
        assert (tmp_path / comparing.PLAIN_FILE).read_text().count("\n") == 2
    found = replace(row("ngram", []), asked=asked)
    assert not comparing.were_timed([found]) and "nothing was timed" in advice(plan, [found])
