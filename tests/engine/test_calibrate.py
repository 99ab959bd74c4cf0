"""What is timed before the first request, on machines that have no time for it."""

from pathlib import Path

import pytest

from paceline import LLM
from paceline.core.rows import Out, Rows
from paceline.engine import calibrate
from paceline.plan.cost import KNOTS


@pytest.fixture(scope="module")
def llm(pair: tuple[Path, Path]) -> LLM:
    return LLM(*pair, drafter="auto", dtype="float32", blocks=400)


def test_every_drafter_is_timed_though_the_time_is_up(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft model whose passes nobody timed would read every prompt, as if that were free."""
    monkeypatch.setattr(calibrate, "BUDGET_S", 0.0)
    times = calibrate.measure(llm.engine)
    assert {"model", "ngram", "ngram+topk"} <= times.drafts.keys() and times.measured
    assert times.of_level(["easyspec", "model"]) > 0


def test_no_pass_begins_that_would_not_end_in_time(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands but for the passes, of a second a row."""
    now = [0.0]
    monkeypatch.setattr(calibrate, "perf_counter", lambda: now[0])
    forward = llm.engine.model.forward

    def slow(rows: Rows) -> Out:
        now[0] += rows.count
        return forward(rows)

    monkeypatch.setattr(llm.engine.model, "forward", slow)
    sizes = [work.rows for work, _ in calibrate.passes(llm.engine, 100.0)]
    assert set(sizes) <= set(KNOTS) and 16 in sizes and now[0] <= 100.0
    assert [*calibrate.passes(llm.engine, now[0] - 1.0)] == []
