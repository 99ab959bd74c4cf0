"""bench/studies/above.py on the demo pair: each study records single questions, and the table reads them."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
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


def parsed(study: ModuleType, data: Path) -> Any:
    """What the command would be given."""
    return study.parse(asked(study, data))


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
    monkeypatch.setattr(study, "CALIBRATION", 1)
    monkeypatch.setattr(study.signal, "signal", lambda *_: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    study.main(asked(study, data))
    assert ran == ["judged", "reasoning", "reasoning", "reasoning", "judging", *["parallel"] * 4]
    names = ("settings", "gap", "steps", "times", "cues", "rules", "texts", "branches")
    before = {name: (made / f"{name}.jsonl").read_text(encoding="utf-8") for name in names}
    assert all(len(text.splitlines()) >= (1 if name == "settings" else 3) for name, text in before.items())
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
    (out / "gap.jsonl").touch()
    with pytest.raises(SystemExit, match="of which models"):
        study.main(asked(study, data, "--table"))
    (out / "gap.jsonl").unlink()
    args = parsed(study, data)
    study.settings(args).settle()
    args.base = args.small
    with pytest.raises(SystemExit, match=r"was made with base target .*, not draft"):
        study.settings(args)
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
    assert "gsm8k, tau 4: 0.000" in step and "base's passes 0.50 ± ?" in step
    assert "tau 4 2.00 ± ? times as fast by processor time on 1" in step and "| 1 |" in step
    (out / "times.jsonl").unlink()
    study.main(asked(study, data, "--table"))
    assert "tau 4 was not timed" in capsys.readouterr().out


def test_ratios_have_intervals(study: ModuleType) -> None:
    assert study.ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == "2.00 ± 0.00"
    assert study.ratio([2.0, 4.0, 6.0], [1.0, 1.0, 4.0]) == "2.00 ± 1.13", "by hand"
    assert study.ratio([2.0], [1.0]) == "2.00 ± ?"


def test_seconds_are_of_questions_that_chose_nothing(study: ModuleType, data: Path) -> None:
    args = parsed(study, data)
    [times] = [job for job in study.jobs(args, "gsm8k") if job.name == "times"]
    assert times.words[times.words.index("--skip") + 1] == str(study.CALIBRATION)
    plain = [job.words for job in study.jobs(args, "gsm8k") if job.name == "judge"]
    (data / "out" / "head" / "judge").mkdir(parents=True)
    trained = [job.words for job in study.jobs(args, "gsm8k") if job.name == "judge"]
    assert [words[words.index("--out") + 1].rpartition("/")[2] for [words] in (plain, trained)] == [
        "rules.jsonl",
        "judge.jsonl",
    ]


def test_a_study_without_its_data_is_passed_over(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file of gsm8k: no head is trained, the next study begins, and the table comes."""
    ran = list[str]()
    monkeypatch.setattr(study, "process", lambda words: ran.append(words[0]) or 0)
    monkeypatch.setattr(study.signal, "signal", lambda *_: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    study.main(asked(study, tmp_path, "--only", "head,judge"))
    said = capsys.readouterr().out
    assert "== head failed: " in said and "has no gsm8k_train.jsonl" in said and "| paper |" in said
    assert [Path(each).stem for each in ran] == ["judging"]


def test_rules_are_told_by_task(study: ModuleType, data: Path) -> None:
    args = parsed(study, data)
    args.out.mkdir()
    record = study.Record(args.out / "rules.jsonl", {})
    for task in ("gsm8k", "svamp"):
        for row in ("exact", "top 2"):
            for number in range(2):
                record.add(
                    f"{task} {row}", str(number), right=task == "svamp", tokens=8, passes=4 if row == "exact" else 2
                )
    told = [(facts, number) for _, facts, _, number in study.judge_rows(args)]
    assert [facts.partition(" [")[0] for facts, _ in told] == ["gsm8k, top 2: 0.000", "svamp, top 2: 1.000"]
    assert all("tokens a pass 2.00 ± 0.00 times" in facts and number == 2 for facts, number in told)


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
    for far in (6.0, 8.0):
        scale, shift = steps.platt([-far] * 100 + [far] * 100, right)
        assert scale == pytest.approx(2 / far, abs=0.02) and abs(shift) < 0.01, "Newton's whole step goes too far"
    draw = np.random.default_rng(0)
    x = draw.normal(2, 4, 3000)
    scale, shift = steps.platt(x, draw.random(3000) < 1 / (1 + np.exp(-0.3 * x - 0.5)))
    assert scale == pytest.approx(0.3, abs=0.05) and shift == pytest.approx(0.5, abs=0.15)
    assert steps.platt([0.0, 0.0], [True, True])[0] == pytest.approx(1), "nothing says otherwise"


def test_odds_are_fitted_on_the_calibrating_questions(tmp_path: Path) -> None:
    steps: Any = load("reasoning")
    record = steps.Record(tmp_path / "r.jsonl")
    record.add("svamp odds 0", "0", right=True, scores=[8.0, 7.0])
    record.add("svamp odds 0", "1", right=False)  # of an earlier version
    record.add("svamp odds 0", "2", right=False, scores=[1.0])
    assert steps.graded(record, "svamp", ["0", "1"]) == [(8.0, True), (7.0, True)]
