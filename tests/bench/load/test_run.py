"""Whole runs against the real server and the real model."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.load.run import Load, LoadTarget, LoadTask, load
from paceline.bench.load.workload import LoadWish, RecordedRequest
from paceline.core.errors import InputError
from paceline.core.params import SamplingParams
from paceline.engine.async_llm import AsyncLLM

PROMPTS = [
    {"prompt": text}
    for text in ("Tom has 3 apples and buys 4 more.", "def add(a, b):", "Count: 1 2 3", "Ann has 2 books.")
]


def task(*loads: Load, **more: Any) -> LoadTask:
    wish = LoadWish("", more.pop("endpoint", "completions"), max_tokens=12, temperature=0.0)
    return LoadTask(wish, loads, more.pop("prompts", PROMPTS), requests=more.pop("requests", 8), **more)


def test_counts_are_those_of_the_engine(url: str, served: Any, llm: AsyncLLM) -> None:
    report = load(LoadTarget(url), task(Load(rate=200.0), slo={"e2e": 1e6}, warmup=0))
    (cell,) = report.cells
    own = asyncio.run(llm.generate([p["prompt"] for p in PROMPTS], SamplingParams(temperature=0.0, max_tokens=12)))
    want = {i: (len(out.prompt_token_ids), len(out.token_ids)) for i, out in enumerate(own)}
    passes = [a.usage.passes or 0 for a in cell.answers if a.usage]
    for answer in cell.answers:
        assert answer.ok and answer.usage, answer.detail
        assert (answer.usage.prompt, answer.usage.completion) == want[answer.prompt]
        assert 1 <= answer.chunks <= answer.tokens
        assert answer.ttft is not None and answer.e2e is not None and 0 < answer.ttft <= answer.e2e
    s = cell.summary
    assert (s.requests, s.completed, s.errors) == (8, 8, {}) and s.goodput == pytest.approx(s.requests_per_second)
    assert s.tokens == 2 * sum(n for _, n in want.values()) and s.tau == s.tokens / sum(passes) >= 1
    assert report.model == served.app.state.host.model and report.repeated == 4


def test_a_sweep_and_the_other_end_point(url: str) -> None:
    asked = task(
        Load(rate=100.0), Load(rate=float("inf")), Load(rate=50.0, burstiness=0.5), endpoint="chat", requests=3
    )
    report = load(LoadTarget(url), asked)
    assert [cell.name for cell in report.cells] == ["Poisson 100/s", "all at once", "gamma 0.5 50/s"]
    assert all(cell.summary.completed == 3 for cell in report.cells)
    assert [a.prompt for cell in report.cells for a in cell.answers] == [0, 1, 2, 3, 0, 1, 2, 3, 0], "warm-up took four"


def test_a_closed_loop_is_named(url: str) -> None:
    (cell,) = load(LoadTarget(url), task(Load(clients=2))).cells
    assert cell.closed and cell.name == "closed loop 2" and cell.summary.completed == 8
    assert cell.summary.in_flight_max <= 2


def test_a_closed_loop_ends_by_the_clock(url: str) -> None:
    (cell,) = load(LoadTarget(url), task(Load(clients=2), requests=None, seconds=0.3)).cells
    assert cell.summary.completed == cell.summary.requests >= 2


def test_a_recording_keeps_its_times_and_bodies(url: str) -> None:
    lines = [
        RecordedRequest(0.0, {"prompt": "Tom", "max_tokens": 3}),
        RecordedRequest(0.2, {"prompt": "Ann", "max_tokens": 5}),
    ]
    cells = load(LoadTarget(url), task(Load(speed=1.0), Load(speed=4.0), lines=lines, prompts=[], requests=None)).cells
    for cell, last in zip(cells, (0.2, 0.05)):
        assert [(a.intended, a.tokens) for a in cell.answers] == [(0.0, 3), (last, 5)]


def test_failures_are_counted_by_kind(url: str) -> None:
    wish = LoadWish("", "completions", max_tokens=4, extra={"drafter": "ngram"})
    with pytest.raises(InputError, match=r"refuses the warm-up: HTTP 400: .*drafter"):
        load(LoadTarget(url), LoadTask(wish, [Load(rate=100.0)], PROMPTS, requests=3))
    (cell,) = load(LoadTarget(url), LoadTask(wish, [Load(rate=100.0)], PROMPTS, requests=3, warmup=0)).cells
    assert cell.summary.errors == {"HTTP 400": 3} and cell.summary.completed == 0
    assert "drafter" in cell.summary.examples["HTTP 400"]


def test_bad_targets(url: str) -> None:
    with pytest.raises(InputError, match="No server answers"):
        load(LoadTarget("http://127.0.0.1:1"), task(Load(rate=1.0)))
    with pytest.raises(InputError, match="HTTP 404"):
        load(LoadTarget(url + "/nowhere"), task(Load(rate=1.0)))
    wish = LoadWish("nope", "completions")
    with pytest.raises(InputError, match="nope"):
        load(LoadTarget(url), LoadTask(wish, [Load(rate=1.0)], PROMPTS, requests=1))


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"requests": 0}, "requests is 0"), ({"seconds": -1.0}, "duration is -1"), ({"requests": None}, "no end"),
     ({"warmup": -1}, "warmup"), ({"loads": [Load(clients=0)]}, "clients"), ({"loads": [Load(rate=-1.0)]}, "rate is"),
     ({"loads": [Load(rate=1.0, burstiness=0.0)]}, "burstiness"), ({"loads": [Load(speed=0.0)]}, "speed is 0"),
     ({"loads": [Load(rate=float("inf"))], "requests": None, "seconds": 1.0}, "no end")],
)  # fmt: skip
def test_bad_tasks(changes: dict[str, Any], says: str) -> None:
    fields = {"loads": [Load(rate=1.0)], "prompts": PROMPTS, "requests": 1, **changes}
    with pytest.raises(InputError, match=says):
        load(LoadTarget("http://127.0.0.1:1"), LoadTask(LoadWish("m"), **fields))


def test_json_can_be_read_back(url: str, tmp_path: Path) -> None:
    report = load(LoadTarget(url, key="secret"), task(Load(rate=100.0), requests=2))
    report.write(tmp_path / "o.json", {})
    text = (tmp_path / "o.json").read_text()
    assert len(json.loads(text)["cells"][0]["requests"]) == 2 and "secret" not in text
