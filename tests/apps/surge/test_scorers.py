"""The scorers: 1 for the truth, monotone under corruption, and each published slip put right."""

import json
import random
from pathlib import Path

import pytest

from paceline.apps.surge import published
from paceline.apps.surge.extract import answer
from paceline.apps.surge.items import SurgeItem, read, write
from paceline.apps.surge.scorers import SCORERS, errors, exact, numbers, ranking, similar, tokens

BROKEN = {"pass": False, "complete": False, "errors": [
    {"severity": "error", "pos": {"line": 3, "column": 4}, "endPos": None, "data": "incompatible types in return"},
    {"severity": "error", "pos": {"line": 7, "column": 1}, "endPos": None, "data": "name x is not defined"},
]}  # fmt: skip
TRUTHS = {
    "exact": "13\n21",
    "similar": "begin\n  conv 64 3x3\n  pool 2\n  conv 128 3x3\nend",
    "numbers": "[0.5, 1.25, -3e-4, 1000.0, 0.25]",
    "ranking": "[1, 2, 5, 8, 9, 40, 41]",
    "tokens": "main.cpp:4:5: error: expected ';' before 'return'",
    "errors": json.dumps(BROKEN),
}


@pytest.mark.parametrize("rule", SCORERS)
def test_the_truth_scores_one_and_nothing_scores_less(rule: str) -> None:
    score, truth = SCORERS[rule], TRUTHS[rule]
    assert score(truth, truth) == 1.0
    assert score("", truth) == 0.0
    assert score("unrelated words 77777777", truth) < 0.3


def spoilt(rule: str, truth: str, steps: int, draw: random.Random) -> str:
    """The truth with `steps` further parts of it spoilt; those of fewer steps stay spoilt."""
    if rule == "errors":
        found = json.loads(truth)
        for error in found["errors"][:steps]:
            error["pos"]["line"] += 100
        return json.dumps(found)
    parts = truth.split("\n") if rule == "similar" else truth.replace("[", "[ ").split(" ")
    order = [index for index, part in enumerate(parts) if any(c.isalnum() for c in part)]
    draw.shuffle(order)
    for index in order[:steps]:
        parts[index] = "99999," if rule in ("numbers", "ranking") else "§§§§"
    return ("\n" if rule == "similar" else " ").join(parts)


@pytest.mark.parametrize("rule", SCORERS)
@pytest.mark.parametrize("seed", range(5))
def test_monotone_under_corruption(rule: str, seed: int) -> None:
    truth = TRUTHS[rule]
    scores = [SCORERS[rule](spoilt(rule, truth, steps, random.Random(seed)), truth) for steps in range(5)]
    assert scores[0] == 1.0
    assert scores[1] < 1.0
    if rule != "ranking":
        assert scores == sorted(scores, reverse=True)


def test_ranking_falls_with_what_is_missing_and_with_what_is_out_of_order() -> None:
    assert ranking("[1, 2, 5, 8]", TRUTHS["ranking"]) == pytest.approx(4 / 7)
    assert ranking("[41, 40, 9, 8, 5, 2, 1]", TRUTHS["ranking"]) == 0.0
    assert ranking("[2, 1, 5, 8, 9, 40, 41]", TRUTHS["ranking"]) == pytest.approx(5 / 6)
    assert ranking("[9, 5, 1]", "[9, 5, 1]") == 1.0
    assert ranking("[7, 7, 7]", "[7, 7, 7]") == 1.0
    assert published.ranking("[7, 7, 7]", "[7, 7, 7]") == 0.0


def test_missing_numbers_are_wrong_not_zero() -> None:
    zeros = "[0, 0, 0, 0]"
    assert numbers("[0]", zeros) == 0.25
    assert published.numbers("[0]", zeros) == 1.0
    assert numbers("[1, 2, 3, 4, 5, 6]", "[1, 2, 3]") == 0.5
    assert published.numbers("[1, 2, 3, 4, 5, 6]", "[1, 2, 3]") == 1.0


def test_one_wild_number_costs_one_number() -> None:
    assert numbers("[1, 2, 1e9]", "[1, 2, 3]") == pytest.approx(2 / 3)
    assert published.numbers("[1, 2, 1e9]", "[1, 2, 3]") == 0.0


@pytest.mark.parametrize(
    ("ours", "truth", "wanted"),
    [
        ("[[1. 2.]\n [3. 4.]]", "[[1. 2.]\n [3. 4.]]", 1.0),
        ("Estimated pi: 3.14", "Estimated pi: 3.14", 1.0),
        ("3.0", "pi: 3.0", 1.0),
        ("1.5e+01 2", "15 2", 1.0),
        ("nan", "nan", 1.0),
        ("1", "nan", 0.0),
        ("1", "inf", 0.0),
        ("9", "10", 0.9),
    ],
)
def test_numbers_in_many_notations(ours: str, truth: str, wanted: float) -> None:
    assert numbers(ours, truth) == pytest.approx(wanted)


def test_words_that_come_twice_count_twice() -> None:
    assert tokens("a a b", "a b") == pytest.approx(2 / 3)
    assert published.tokens("a a b", "a b") == 1.0


def test_verdicts_may_stand_in_a_fence() -> None:
    fenced = f"```json\n{TRUTHS['errors']}\n```"
    assert errors(fenced, TRUTHS["errors"]) == 1.0
    assert published.errors(fenced, TRUTHS["errors"]) == 0.0
    assert errors("[]", TRUTHS["errors"]) == 0.0
    assert errors('{"pass": true, "errors": []}', TRUTHS["errors"]) == 0.0
    assert errors('{"pass": true, "errors": null}', '{"pass": true, "errors": []}') == 1.0
    assert errors('{"pass": false, "errors": [1, {"pos": 3}]}', TRUTHS["errors"]) == 0.0


def test_errors_that_are_not_there_cost() -> None:
    more = {**BROKEN, "errors": [*BROKEN["errors"], {"pos": {"line": 9}, "data": "made up"}]}  # type: ignore[misc]
    assert errors(json.dumps(more), TRUTHS["errors"]) == pytest.approx(2 / 3)
    assert published.errors(json.dumps(more), TRUTHS["errors"]) == 1.0


def test_exact_and_similar() -> None:
    assert exact("a  \nb\n", "a\nb") == 1.0
    assert exact("a b", "a  b") == 0.0
    assert 0.5 < similar("begin\n  conv 64 3x3\nend", TRUTHS["similar"]) < 1


def test_zero_columns_count() -> None:
    assert published.mean_of_columns({"a": 0.5, "b": 0.0}) == 0.5


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ("42", "42"),
        ("Output: 42", "42"),
        ("**Output:**\n```\n1\n2\n```\nwhich is it", "1\n2"),
        ("Thought: so Output: is next\nOutput:\n```text\n7\n```", "7"),
        ("The answer:\n```python\nx\n```\n```\ny\n```", "x"),
        ("```\ncut off", "cut off"),
        ("`9`.", "9"),
        ("# Output:\n\n5\n\n6", "5\n\n6"),
        ("", ""),
        ("```\n```", ""),
    ],
)
def test_extraction(reply: str, wanted: str) -> None:
    assert answer(reply) == wanted


def test_items_come_back(tmp_path: Path) -> None:
    item = SurgeItem("x", "ML", "Python", "q", "1", "exact", {"main.py": "print(1)"}, "python3 main.py")
    write([item], tmp_path / "a" / "items.jsonl")
    assert read(tmp_path / "a" / "items.jsonl") == [item]
    assert item.column == "ML/Python"


def test_records_of_the_original(tmp_path: Path) -> None:
    records = [
        {"question": "q", "gt": "1", "custom_categoey": 1, "custom_features": {"language": "Rust"}},
        {"question": "q", "gt": "1", "custom_categoey": 1, "custom_features": {"difficulty": 3, "language": "JS"}},
        {"question": "q", "gt": "1", "custom_category": 5, "custom_features": {"fid": "matrix_inv_3"}},
        {"question": "q", "gt": "1", "custom_category": 5, "custom_features": {"fid": "quick_sort_1"}},
        {"question": "q", "gt": "1", "custom_category": 5, "custom_features": {"fid": "tsp_3"}},
        {"question": "q", "gt": "1", "custom_category": 7, "custom_features": {}},
        {"question": "q", "gt": {"pass": True, "errors": []}, "custom_category": 8, "custom_features": None},
        {"question": "q", "gt": "1", "custom_categoey": 3, "custom_features": {"repo": "PlotNeuralNet"}},
    ]
    path = tmp_path / "ml.json"
    path.write_text(json.dumps(records))
    assert [(item.kind, item.rule) for item in read(path)] == [
        ("ML", "exact"), ("CL", "exact"), ("TC", "numbers"), ("TC", "ranking"), ("TC", "exact"), ("DR", "tokens"),
        ("FL", "errors"), ("RL", "similar"),
    ]  # fmt: skip
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert len(read(path)) == 8


@pytest.mark.parametrize(
    "text", ["{", '{"kind": "ML"}', '{"gt": 1}', '[{"gt": "1", "custom_category": 99, "custom_features": {}}]']
)
def test_bad_records_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.json, (line|record) 1"):
        read(path)
