"""bench/studies/above.py on the demo pair: each study records single questions, and the table reads them."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paceline.engine.pair import DEMO
from tests.bench.studies import load


@pytest.fixture(scope="module")
def study() -> ModuleType:
    return load("above")


@pytest.fixture
def data(tmp_path: Path, study: ModuleType) -> Path:
    answer = "He has <<3+4=7>>7.\n#### 7"
    for name, count in (("train", study.SHOTS + 2), ("test", 3)):
        entries = [{"question": f"Tom has {i} apples. How many?", "answer": answer} for i in range(count)]
        (tmp_path / f"gsm8k_{name}.jsonl").write_text("\n".join(map(json.dumps, entries)), encoding="utf-8")
    return tmp_path


def asked(study: ModuleType, data: Path, *more: str) -> list[str]:
    rows = ["--step-rows", "small,base,odds 0,tau 4", "--time-rows", "base,tau 4", "--tasks", "gsm8k"]
    few = [
        "--questions",
        "2",
        "--gap-questions",
        "2",
        "--timed-questions",
        "1",
        "--texts",
        "1",
        "--tokens",
        "60",
        "--context",
        "1024",
    ]
    return [str(data / "out"), str(data), str(DEMO / "target"), str(DEMO / "draft"), *rows, *few, *more]


@pytest.mark.full
def test_every_study_goes_on_where_it_was(
    study: ModuleType, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, ran = data / "out", list[str]()

    def inside(words: list[str]) -> int:
        """The study in this process; the head's training is another test's."""
        if words[0].endswith(".py"):
            module = load(Path(words[0]).stem)
            if hasattr(module, "MOST_TOKENS"):
                monkeypatch.setattr(module, "MOST_TOKENS", dict.fromkeys(module.MOST_TOKENS, 24))
            module.main(words[1:])
            ran.append(Path(words[0]).stem)
        return 0

    monkeypatch.setattr(study, "process", inside)
    monkeypatch.setattr(study.signal, "signal", lambda *_: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    study.main(asked(study, data))
    assert ran == ["judged", "reasoning", "reasoning", "reasoning", "judging", *["parallel"] * 4]
    names = ("gap", "steps", "times", "cues", "judge", "texts", "branches")
    before = {name: (made / f"{name}.jsonl").read_text(encoding="utf-8") for name in names}
    assert all(len(text.splitlines()) >= 2 for text in before.values())
    capsys.readouterr()
    study.main(asked(study, data))
    assert {name: (made / f"{name}.jsonl").read_text(encoding="utf-8") for name in names} == before
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    papers = {line.split(" | ")[0].strip("| ") for line in table[1:]}
    assert papers >= {"a pair with a gap", "SpecReason", "Speculative Thinking", "Judge Decoding", "Multiverse"}
    [chat, _] = [json.loads(line) for line in (made / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    assert chat["messages"][-1] == {"role": "user", "content": "Tom has 3 apples. How many?"}


def test_the_table_is_read_from_what_is_there(
    study: ModuleType, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "CALIBRATION", 1)
    out = data / "out"
    out.mkdir()
    study.main(asked(study, data, "--table"))
    assert len(capsys.readouterr().out.splitlines()) == 2, "nothing yet"
    gap, steps, times = (study.Record(out / f"{name}.jsonl") for name in ("gap", "steps", "times"))
    for number, right in (("0", True), ("1", False)):
        gap.add("gsm8k small", f"gsm8k-{number}", right=False)
        gap.add("gsm8k base", f"gsm8k-{number}", right=right)
        for row, passes in (("base", 60), ("tau 4", 30)):
            steps.add(f"gsm8k {row}", f"gsm8k-{number}", right=right, passes={"base": passes})
            times.add(f"gsm8k {row} timed", f"gsm8k-{number}", cpu=float(passes))
    study.main(asked(study, data, "--table"))
    _, _, pair, step = capsys.readouterr().out.splitlines()
    assert "gsm8k: gap 0.500 ± 0.980; base 0.500" in pair and "| 2 |" in pair
    assert "gsm8k, tau 4: 0.000" in step and "base's passes 0.50 ± 0.00" in step
    assert "tau 4 2.00 ± 0.00 times as fast by processor time on 2" in step and "| 1 |" in step


def test_ratios_have_intervals(study: ModuleType) -> None:
    assert study.ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == "2.00 ± 0.00"
    assert study.ratio([2.0, 4.0, 6.0], [1.0, 1.0, 4.0]) == "2.00 ± 1.13", "by hand"


def test_thresholds_and_odds_are_fitted(tmp_path: Path) -> None:
    """The lowest threshold that is good enough; a judge of whose scores half the log-odds is true."""
    steps: Any = load("reasoning")
    record = steps.Record(tmp_path / "r.jsonl")
    for i in range(10):
        for row, right in (("base", i < 8), ("tau 5", i < 4), ("tau 7", i < 7), ("tau 9", i < 8), ("tau 9 spec", True)):
            record.add(f"svamp {row}", str(i), right=right)
    ids, names = [str(i) for i in range(10)], ["base", "tau 9", "tau 5", "tau 7", "tau 9 spec"]
    assert steps.chosen(record, "svamp", names, ids)[0] == "tau 7"
    assert steps.chosen(record, "svamp", names[:1], ids)[0] is None
    odds = [steps.log_odds(9 * chance) for chance in (0.5, 0.9, 0.1)]
    assert odds[0] == 0 and odds[1] == pytest.approx(-odds[2])
    x = [-4.0] * 100 + [4.0] * 100
    right = [i < 12 for i in range(100)] + [i < 88 for i in range(100)]
    scale, shift = steps.platt(x, right)
    assert scale == pytest.approx(0.5, abs=0.02) and abs(shift) < 0.01
