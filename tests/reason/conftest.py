"""The demo pair as an ensemble: its texts have sentences, so a full stop is a step's end here."""

from collections.abc import Iterator
from typing import Any

import pytest

from paceline import SamplingParams
from paceline.engine.pair import DEMO
from paceline.reason import Ensemble

OPTIONS: dict[str, Any] = {"dtype": "float32", "blocks": 200, "drafter": "none", "check": True}
PROMPT = "Tom has 3 apples and buys 4 more."
GREEDY = SamplingParams(temperature=0, max_tokens=70, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.8, top_p=0.95, seed=11, max_tokens=70, ignore_eos=True)


@pytest.fixture(scope="package")
def pair() -> Iterator[Ensemble]:
    with Ensemble(DEMO / "target", small=DEMO / "draft", **OPTIONS) as made:
        yield made


@pytest.fixture(scope="package")
def twins() -> Iterator[Ensemble]:
    """A model and itself."""
    with Ensemble(DEMO / "draft", small=DEMO / "draft", **OPTIONS) as made:
        yield made


def alone(pair: Ensemble, name: str, params: SamplingParams) -> list[int]:
    """What one model writes by itself: token ids."""
    engine = pair.runner.engines[name]
    [request] = engine.submit(pair.llm.ids(PROMPT), params.resolve({}))
    while request.finish is None:
        engine.step()
    return list(request.output)


def clean(pair: Ensemble) -> None:
    """Nothing is left in either engine."""
    assert not pair.runner.busy
    for engine in pair.runner.engines.values():
        assert not engine.busy and not engine.session.requests and engine.snapshot().used == 0
        engine.cache.check_integrity()
