"""What the planner has learned of drafters is there at the next start, and a damaged file costs nothing."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, AsyncLLM, SamplingParams
from paceline.engine.learned import place
from paceline.plan.belief import RECALLED, Beliefs
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


def served(target: Path, **options: Any) -> tuple[list[list[int]], Beliefs, Path]:
    """Texts, what was known before them, and where it is kept."""
    with LLM(target, memory="100M", **options) as llm:
        beliefs, path = llm.engine.desk.policy.beliefs, place(llm.options)  # type: ignore[attr-defined]
        known = Beliefs()
        known.recall(beliefs.dump())
        params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
        return [o.token_ids for o in llm.generate(PROMPTS, params, progress=False)], known, path


def test_the_next_start_begins_with_it(target: Path, cache: Path) -> None:
    texts, before, path = served(target, keep_learned=True)
    assert not before.of and path.parent == cache and os.stat(path).st_mode & 0o077 == 0
    again, known, _ = served(target, keep_learned=True)
    assert again == texts and ("ngram", 0) in known.of
    assert 0 < known.of["ngram", 0].known(0) <= RECALLED
    assert not served(target)[1].of, "an engine without the option starts again"


def test_a_server_keeps_it(target: Path, cache: Path) -> None:
    engine = AsyncLLM(target, memory="100M", keep_learned=True)
    policy: Any = engine.llm.engine.desk.policy
    policy.beliefs.observe(1, ("ngram", 0), 2, [1, 1], [1])
    engine.close()
    assert json.loads(place(engine.llm.options).read_text())["beliefs"][0]["drafter"] == "ngram"


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
    ["", "{", "[1]", '{"beliefs": 1}', '{"beliefs": [{"drafter": "ngram"}]}',
     '{"beliefs": [{"drafter": "ngram", "size": 0, "tries": [1], "hits": [2], "asked": [], "offered": []}]}'],
)  # fmt: skip
def test_a_damaged_file_is_learned_anew(
    content: str, target: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = served(target, keep_learned=True)[2]
    path.write_text(content)
    _, known, _ = served(target, keep_learned=True)
    assert not known.of and "learned again" in caplog.text
    assert json.loads(path.read_text())
