"""bench/studies/judged.py: what counts as right, intervals, and a record that is gone on with."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from paceline.apps.common.sandbox import unavailable
from tests.bench.studies import load


@pytest.fixture(scope="module")
def study() -> ModuleType:
    return load("judged")


@pytest.mark.parametrize(
    ("text", "mark", "right"),
    [
        ("6 * 7 = 42.\n#### 42", "####", True),
        ("#### 41", "####", False),
        ("it is 42", "####", True),
        ("it is 42, not 43", "####", False),
        ("The answer is 42. 43 is wrong.", "answer is", True),
        ("no number", "####", False),
        ("#### 1,042", "####", False),
    ],
)
def test_numbers(study: ModuleType, text: str, mark: str, right: bool) -> None:
    assert study.same_number(text, 42.0, mark) is right
    assert study.same_number("#### 1,042.00", 1042.0, "####")


def test_boxes(study: ModuleType) -> None:
    assert study.boxed(r"so \boxed{\frac{1}{2}} or \boxed{\left( 3, \frac{\pi}{2} \right)}.") == (
        r"\left( 3, \frac{\pi}{2} \right)"
    )
    assert study.boxed("none") is None and study.boxed(r"\boxed{open") is None
    for one, other in ((r"\dfrac12", r"\frac{1}{2}"), ("1,000", "1000"), (r"50\%", "50"), (r"\text{ even}", "even")):
        assert study.tidy(one) == study.tidy(other)
    assert study.tidy("12") != study.tidy("1 3")


def test_programs(study: ModuleType) -> None:
    assert study.program("Here:\n```python\nx = 1\n```\nDone.") == "x = 1\n"
    assert study.program("x = 1") == "x = 1" and study.program("```\ny = 2") == "y = 2"
    if not unavailable():
        assert study.passes("assert 1 + 1 == 2") and not study.passes("assert 1 + 1 == 3")


def test_intervals(study: ModuleType) -> None:
    """Wilson's, by the table: 8 of 10."""
    low, high = study.interval(8, 10)
    assert low == pytest.approx(0.490, abs=1e-3) and high == pytest.approx(0.943, abs=1e-3)
    assert study.interval(0, 10)[0] == pytest.approx(0, abs=1e-12) and study.interval(0, 0) == (0.0, 1.0)
    mean, half = study.difference([True, True, False, True], [False, True, False, True])
    assert mean == 0.25 and half == pytest.approx(1.96 * 0.5 / 2)


def test_tasks_are_read(study: ModuleType, tmp_path: Path) -> None:
    shots = [{"question": "1 + 1?", "answer": "It is <<1+1=2>>2\n#### 2"}] * study.SHOTS
    (tmp_path / "gsm8k_train.jsonl").write_text("\n".join(map(json.dumps, shots)), encoding="utf-8")
    (tmp_path / "gsm8k_test.jsonl").write_text(
        json.dumps({"question": "2 + 2?", "answer": "#### 1,004"}), encoding="utf-8"
    )
    [question] = study.TASKS["gsm8k"](tmp_path)
    assert len(question.messages) == 2 * study.SHOTS + 1 and "<<" not in question.messages[1]["content"]
    assert question.right("#### 1004") and not question.right("#### 4") and question.separator == "\n"


def test_what_is_recorded_is_not_asked_again(study: ModuleType, tmp_path: Path) -> None:
    questions = [study.Question(str(i), [], bool) for i in range(3)]
    record = study.Record(tmp_path / "r.jsonl")
    record.add("base", "1", right=True)
    again = study.Record(tmp_path / "r.jsonl")
    assert [each.id for each in again.left("base", questions)] == ["0", "2"]
    assert [each.id for each in again.left("small", questions)] == ["0", "1", "2"]
    assert again.row("base")["1"]["right"] is True
    with again.path.open("a", encoding="utf-8") as file:
        file.write('{"row": "base", "id": "2", "ri')  # its process was killed
    study.Record(again.path).add("base", "0", right=False)
    assert [*study.Record(again.path).row("base")] == ["1", "0"]


def test_a_record_is_of_its_settings(study: ModuleType, tmp_path: Path) -> None:
    """Other values are refused, new ones are added, and a record that says nothing is refused until its user does."""
    path = tmp_path / "r.jsonl"
    study.Record(path, {"base": "one", "quantize": None})
    assert not path.exists(), "nothing is written before a figure"
    study.Record(path, {"base": "one", "quantize": None}).add("base", "1", right=True)
    again = study.Record(path, {"base": "one", "small": "two"})
    assert again.row("base")["1"]["right"] is True
    again.add("small", "1", right=False)
    assert len(study.Record(path).all) == 2 and study.Record(path, {"small": "two", "quantize": None})
    for name, value in (("base", "three"), ("quantize", "int4")):
        with pytest.raises(SystemExit, match=rf"was made with {name} .*, not {value}"):
            study.Record(path, {name: value})
    path.write_text('{"row": "base", "id": "1"}\n', encoding="utf-8")
    with pytest.raises(SystemExit, match="does not say how its figures were made"):
        study.Record(path, {"base": "one"})
    assert study.Record(path).all, "reading needs no settings"
    path.write_text('{"settings": {}}\n' + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert study.Record(path, {"base": "one"}).all
    path.write_text('{"problem": "ta01"}\n', encoding="utf-8")
    with pytest.raises(SystemExit, match="no record of this study"):
        study.Record(path)


def test_models_are_known_by_what_is_in_them(study: ModuleType, tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "judge").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "judge" / "weights").write_bytes(bytes(200_000))
    first = study.digest(model)
    (model / ".cache").write_text("of no account")
    assert first == study.digest(str(model)) and first.startswith("model ")
    (model / "judge" / "weights").write_bytes(bytes(199_999) + b"1")
    assert study.digest(model) != first
    assert study.digest("owner/name") == "owner/name" and study.digest(None) is None
    assert study.digest(model / "config.json").startswith("config.json ")


def test_tasks_are_settings(study: ModuleType) -> None:
    one, other = ([study.Question("1", [{"role": "user", "content": text}], bool)] for text in ("1 + 1?", "1 + 2?"))
    made = study.task_settings("gsm8k", one)
    assert made["gsm8k tokens"] == study.MOST_TOKENS["gsm8k"] and made == study.task_settings("gsm8k", one)
    assert made["gsm8k questions"] != study.task_settings("gsm8k", other)["gsm8k questions"]


def test_one_question_has_no_interval(study: ModuleType) -> None:
    mean, half = study.difference([True], [False])
    assert mean == 1.0 and study.within(half) == "± ?" and study.within(0.25) == "± 0.250"


def test_examples_that_doubt(study: ModuleType, tmp_path: Path) -> None:
    shots = [{"question": "1 + 1?", "answer": "It is <<1+1=2>>2\nSo it is 2.\n#### 2"}] * study.SHOTS
    (tmp_path / "gsm8k_train.jsonl").write_text("\n".join(map(json.dumps, shots)), encoding="utf-8")
    (tmp_path / "gsm8k_test.jsonl").write_text(json.dumps({"question": "2 + 2?", "answer": "#### 4"}), encoding="utf-8")
    [question] = study.TASKS["doubts"](tmp_path)
    said = question.messages[1]["content"].split(question.separator)
    assert said == ["It is 2", "Wait, let me check that: 1+1 is 2. Yes, that is right.", "So it is 2.", "#### 2"]
