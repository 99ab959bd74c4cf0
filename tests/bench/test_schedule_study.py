"""bench/studies/schedule.py: its arithmetic, and one short run on the demo pair."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bench.studies import load


@pytest.fixture(scope="module")
def study() -> Any:
    return load("schedule")


@pytest.mark.parametrize("most", [0.5, 3.3, 47.0])
def test_the_search_ends_at_the_capacity(study: Any, most: float) -> None:
    """An engine whose tokens are late beyond a rate."""

    def run(schedule: str, qps: float) -> Any:
        return study.Run([0.01 if qps <= most else 1.0], [0.1], 0.1, 1.0, 1.0)

    stand = SimpleNamespace(qps=2.0, slo=0.05, trace=lambda qps, seed: qps, run=run)
    assert most / study.FINE <= study.search(stand, "chunked", 1) <= most
    stand.slo = 0.001
    assert study.search(stand, "chunked", 1) == 0.0


def test_gaps_are_between_steps_that_brought_tokens(study: Any) -> None:
    trips = [study.Trip(1.0, None, 1.5, [2.0, 2.1, 3.1]), study.Trip(0.0, None, 0.0, [1.0])]
    run = study.summary(trips, 5.0, 6.0)
    assert run.gaps == pytest.approx([0.1, 1.0]) and run.first == [1.0, 1.0] and run.delay == 0.25


def test_groups_give_the_same_texts(
    study: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "Tom has {i} apples and buys {2 * i} more."}}\n' for i in range(30)))
    argv = ["grouping", "--prompts", str(prompts), "--dtype", "float32", "--memory", "64M", "--long", "50"]
    monkeypatch.setattr(
        sys, "argv", [study.__file__, *argv, "--requests", "12", "--output", "8", "--batch", "2", "--slo-ms", "50"]
    )
    study.main()
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][2:]
    assert [row[1].strip() for row in rows] == ["3", "4", "8", "16", "32"]
    assert {row[6].strip() for row in rows} == {"100%"}
