"""What the planner has learned of drafters is there at the next start, and a damaged file costs nothing."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, AsyncLLM, SamplingParams
from paceline.engine.learned import place
from paceline.plan.acceptance import HEARD, PRIOR, RECALLED, Acceptance
from paceline.simulate.log import Event, Setup
from paceline.simulate.record import record
from paceline.simulate.replay import replay
from tests.tiny import tiny_checkpoint

PROMPTS = ["one two three one two three one", "to be or not to be, to be or not to be"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("target"), "llama", seed=1)


def served(target: Path, **options: Any) -> tuple[list[list[int]], Acceptance, Path]:
    """Texts, what was known before them, and where it is kept."""
    with LLM(target, memory="100M", **options) as llm:
        acceptance, path = llm.engine.desk.policy.acceptance, place(llm.options)  # type: ignore[attr-defined]
        known = Acceptance()
        known.recall(acceptance.dump())
        params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
        return [o.token_ids for o in llm.generate(PROMPTS, params, progress=False)], known, path


def test_the_next_start_begins_with_it(target: Path, cache: Path) -> None:
    texts, before, path = served(target, keep_learned=True)
    assert not before.means and path.parent == cache and os.stat(path).st_mode & 0o077 == 0
    again, known, _ = served(target, keep_learned=True)
    assert again == texts and ("ngram", 0) in known.means
    mean = known.means["ngram", 0]
    assert 0 < max(mean.tried) <= RECALLED and 0 < max(mean.asked) <= HEARD
    assert not served(target)[1].means, "an engine without the option starts again"


def test_a_server_keeps_it(target: Path, cache: Path) -> None:
    engine = AsyncLLM(target, memory="100M", keep_learned=True)
    policy: Any = engine.llm.engine.desk.policy
    policy.acceptance.observe(1, ("ngram", 0), 2, [1, 1], [1])
    engine.close()
    assert json.loads(place(engine.llm.options).read_text())[0]["drafter"] == "ngram"


def test_a_log_that_begins_with_it_replays(target: Path, cache: Path) -> None:
    served(target, keep_learned=True)
    events = list[Event]()
    with LLM(target, memory="100M", keep_learned=True) as llm:
        record(llm.engine, events.append)
        llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True), progress=False)
    first = events[0]
    assert isinstance(first, Setup) and first.learned and replay(events).difference is None


@pytest.mark.parametrize(
    "content",
    ["", "{", "[1]", '[{"drafter": "ngram"}]',
     '[{"drafter": "ngram", "size": 0, "tried": [1], "kept": [2], "asked": [], "offered": []}]',
     '[{"drafter": "ngram", "size": 0, "tried": [NaN], "kept": [0], "asked": [], "offered": []}]',
     '[{"drafter": "ngram", "size": 0, "tried": [9], "kept": [1], "asked": [3], "offered": [Infinity]}]'],
)  # fmt: skip
def test_a_damaged_file_is_learned_anew(
    content: str, target: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = served(target, keep_learned=True)[2]
    path.write_text(content)
    _, known, _ = served(target, keep_learned=True)
    assert not known.means and "learned again" in caplog.text
    assert json.loads(path.read_text())


def test_what_is_recalled_says_what_was_known_and_gives_way() -> None:
    """Recalled acceptance of a drafter that is kept three times of four gives the same chance, and less after some
    rejected rounds."""
    known, later = Acceptance(), Acceptance()
    for request in range(20):
        for round in range(24):
            known.observe(request, ("model", 0), 3, [1, 1, 1], [1, 1, 1] if round % 4 else [])
    later.recall(json.loads(json.dumps(known.dump())))
    before, after = (it.expected(None, ("model", 0), 3) for it in (known, later))
    assert after.chance == pytest.approx(before.chance, abs=0.05) and before.chance[0] > PRIOR + 0.1
    assert after.rows == pytest.approx(before.rows, abs=0.05)
    for request in range(3):
        for _ in range(24):
            later.observe(request, ("model", 0), 3, [1, 1, 1], [])
    assert later.expected(None, ("model", 0), 3).chance[0] < 0.3
