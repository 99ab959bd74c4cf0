"""What is timed before the first request, on machines that have no time for it."""

import math
import os
from pathlib import Path
from time import time

import pytest
import torch

from paceline import LLM
from paceline.core.rows import Out, Rows
from paceline.engine import calibrate
from paceline.plan.cost import KNOTS, StepTimes


@pytest.fixture(scope="module")
def llm(pair: tuple[Path, Path]) -> LLM:
    return LLM(*pair, drafter="auto", dtype="float32", blocks=400)


def test_every_drafter_is_timed_though_the_time_is_up(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft model whose passes nobody timed would read every prompt, as if that were free."""
    monkeypatch.setattr(calibrate, "BUDGET_S", 0.0)
    times = calibrate.measure(llm.engine)
    assert {"model", "ngram", "ngram+topk"} <= times.drafts.keys() and times.measured
    assert times.of_level(["easyspec", "model"]) > 0


def test_a_model_that_draws_no_token_ends_the_measuring(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Damaged weights make numbers that are not finite: a request ends without a token, and so must the start."""
    forward = llm.engine.model.forward

    def damaged(rows: Rows) -> Out:
        out = forward(rows)
        with torch.inference_mode():
            out.logits.fill_(math.nan)
        return out

    monkeypatch.setattr(llm.engine.model, "forward", damaged)
    monkeypatch.setattr(calibrate, "BUDGET_S", 0.2)
    calibrate.measure(llm.engine)
    assert caplog.text.count("not finite") == 1 and not llm.engine.busy


def test_no_pass_begins_that_would_not_end_in_time(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands but for the passes, of a second a row."""
    now = [0.0]
    monkeypatch.setattr(calibrate, "perf_counter", lambda: now[0])
    forward = llm.engine.model.forward

    def slow(rows: Rows) -> Out:
        now[0] += rows.count
        return forward(rows)

    monkeypatch.setattr(llm.engine.model, "forward", slow)
    sizes = [work.rows for work, _ in calibrate.passes(llm.engine, 150.0)]
    assert set(sizes) <= set(KNOTS) and 16 in sizes and now[0] <= 150.0
    assert [*calibrate.passes(llm.engine, now[0] - 1.0)] == []


def test_prompts_that_there_is_no_time_for_are_priced_without_scores(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands but for the passes, of a second for a row and another for its scores."""
    now = [0.0]
    monkeypatch.setattr(calibrate, "perf_counter", lambda: now[0])
    forward = llm.engine.model.forward

    def slow(rows: Rows) -> Out:
        out = forward(rows)
        now[0] += rows.count + len(out.logits)
        return out

    monkeypatch.setattr(llm.engine.model, "forward", slow)
    alone = dict(calibrate.passes(llm.engine, 150.0))
    longest = max(work.rows for work in alone if work.requests == 1)
    assert 4 <= longest <= 16
    assert calibrate.share_unscored(llm.engine, alone) == pytest.approx((longest + 1) / (2 * longest))
    alone = dict(calibrate.passes(llm.engine, 1e9))
    assert calibrate.share_unscored(llm.engine, alone) == 1.0, "prompts were timed"


@pytest.mark.parametrize("cpu, waits, doubt", [(10.0, 0.0, 1.0), (2.0, 0.0, 5.0), (10.0, 15.0, 2.5)])
def test_a_table_of_a_busy_start_is_doubted_and_soon_measured_again(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu: float, waits: float, doubt: float
) -> None:
    """Ten seconds on the clock: with a CPU, with a fifth of one, and as one of many threads that want one."""
    clocks = {"perf_counter": [0.0, 10.0], "process_time": [0.0, cpu], "waited": [0.0, waits]}
    for name, values in clocks.items():
        monkeypatch.setattr(calibrate, name, iter(values).__next__)
    path = tmp_path / "times.json"
    monkeypatch.setattr(calibrate, "place", lambda facts: path)
    monkeypatch.setattr(calibrate, "measure", lambda engine: StepTimes())
    times = calibrate.calibrated(llm.engine, {})
    assert times.doubt == doubt
    for minutes, load, found in ((1, 9e9, True), (1, 0.0, doubt == 1.0), (11, 9e9, doubt == 1.0)):
        os.utime(path, times=(time() - 60 * minutes,) * 2)
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, load, load))
        known = calibrate.kept(path)
        assert (known is not None) == found and (known is None or known.doubt == doubt)
