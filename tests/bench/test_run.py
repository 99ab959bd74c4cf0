import json
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.run import Bench, bench
from paceline.core.errors import InputError, RefusalError
from paceline.draft import DRAFTERS
from paceline.engine.options import Options
from tests.wrong import another_token_after_a_run

KEYS = [
    "method", "verifier", "batch", "temperature", "tokens", "seconds", "tokens_per_second", "decode_tokens_per_second",
    "tau", "acceptance_rate", "speedup", "speedup_min", "speedup_max", "identical", "near_ties",
]  # fmt: skip
LIMIT = ["weight_bytes", "read_gb_s", "floor_ms", "step_ms", "fraction_of_limit", "host_share"]


def options(target: Path, draft: Path | None = None, **more: Any) -> Options:
    return Options(target, draft, dtype=more.pop("dtype", "float32"), memory="100M", **more)


def wish(questions: Path, **changes: Any) -> Bench:
    return Bench(questions, **{"batches": [1, 2], "temperatures": [0.0, 1.0], "max_tokens": 12, "repeat": 1, **changes})


def test_report(target: Path, draft: Path, questions: Path, tmp_path: Path) -> None:
    report = bench(options(target, draft), wish(questions, batches=[2]))
    report.write(tmp_path / "out.json")
    written = json.loads((tmp_path / "out.json").read_text())
    serving = [
        d
        for d, card in DRAFTERS.items()
        if {need.name for need in card.needs} <= {"draft", "draft:program", "target:program"}
    ]
    assert [list(row) for row in written["rows"]] == [KEYS] * 2 * len(serving)
    assert list(written["limit"]) == LIMIT
    assert {row["method"] for row in written["rows"]} == set(serving) >= {"none", "ngram", "model", "dyspec", "suffix"}
    for row in written["rows"]:
        assert row["identical"] is True and row["near_ties"] == 0
        assert row["speedup_min"] <= row["speedup"] <= row["speedup_max"]
        assert row["tokens"] > 0 and row["seconds"] > 0
        if row["method"] == "none":
            assert (row["tau"], row["acceptance_rate"], row["speedup"]) == (1, None, 1)
        if row["method"] == "model":
            assert row["tau"] > 1.2 and row["acceptance_rate"] > 0.9, "the draft has the target's own weights"
    assert written["args"]["token"] is None and {"machine", "versions", "warnings"} <= written.keys()
    assert report.passed


def test_a_draft_keeps_its_rights_under_a_law(target: Path, draft: Path, questions: Path) -> None:
    report = bench(options(target, draft, verifier="chain"), wish(questions, batches=[1], methods=["model"]))
    cells = {(row.method, row.temperature): row for row in report.rows}
    assert cells["model", 1.0].identical is None and cells["model", 1.0].near_ties is None
    assert cells["model", 0.0].identical is True and cells["none", 1.0].identical is True
    assert cells["none", 1.0].verifier == "exact" and report.guarantee == "distribution"


def test_a_verifier_that_emits_something_else_is_caught(
    target: Path, draft: Path, questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    another_token_after_a_run(monkeypatch)
    report = bench(options(target, draft), wish(questions, batches=[1], temperatures=[0.0], methods=["model"]))
    assert [row.identical for row in report.rows] == [True, False]
    assert not report.passed and report.differences
    assert report.differences[0]["method"] == "model" and not report.differences[0]["near_tie"]


def test_all_leaves_out_what_cannot_serve_and_a_name_is_refused(target: Path, questions: Path) -> None:
    short = wish(questions, batches=[1], temperatures=[0.0], max_tokens=4, num_prompts=1)
    alone = [
        d for d, card in DRAFTERS.items() if {need.name for need in card.needs} <= {"target:program"} and d != "none"
    ]
    assert [row.method for row in bench(options(target), short).rows] == ["none", *alone] and "ngram" in alone
    with pytest.raises(RefusalError, match="needs a draft model"):
        bench(options(target), wish(questions, methods=["none", "model"]))
    with pytest.raises(InputError, match="Unknown drafter 'nonsense'"):
        bench(options(target), wish(questions, methods=["nonsense"]))


def test_preemption_is_said(target: Path, questions: Path) -> None:
    tight = options(target, max_model_len=96)
    tight = Options(**{**{f: getattr(tight, f) for f in tight.__slots__}, "blocks": 6})
    report = bench(tight, wish(questions, batches=[3], temperatures=[0.0], max_tokens=40, methods=["ngram"]))
    assert any("pre-empted" in warning for warning in report.warnings)
    assert all(row.identical for row in report.rows)


@pytest.mark.parametrize("bad", [{"batches": [0]}, {"repeat": 0}, {"num_prompts": 0}, {"temperatures": [-1.0]}])
def test_bad_wishes(target: Path, questions: Path, bad: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        bench(options(target), wish(questions, **bad))
