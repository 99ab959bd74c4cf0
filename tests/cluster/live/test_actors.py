"""Engines as Ray actors: one is killed in mid-text, a request moves, and the text is that of an engine alone."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="needs paceline[cluster]")
from paceline import AsyncLLM, SamplingParams  # noqa: E402
from paceline.cluster.live.actors import ActorLink, join  # noqa: E402
from paceline.cluster.live.engines import Engines  # noqa: E402
from paceline.cluster.live.front import ClusterLLM  # noqa: E402
from paceline.engine.options import Options  # noqa: E402
from tests.cluster.live.test_live import heard  # noqa: E402

pytestmark = pytest.mark.full
OPTIONS: dict[str, Any] = {"dtype": "bfloat16", "blocks": 300, "drafter": "ngram"}
ASKED = SamplingParams(temperature=0.8, seed=3, max_tokens=300, ignore_eos=True)


@pytest.fixture(scope="module", autouse=True)
def here() -> Iterator[None]:
    join(None)
    yield
    ray.shutdown()


async def test_killed_and_moved() -> None:
    async with AsyncLLM(**OPTIONS) as llm:
        want = await heard(llm, ASKED)
    engines = Engines(lambda name: ActorLink(name, OPTIONS, 0.0, {"OMP_NUM_THREADS": "1"}))
    await engines.start(2)
    cluster = ClusterLLM(engines, Options(**OPTIONS))
    for kill in (False, True):
        asking = asyncio.create_task(heard(cluster, ASKED))
        while not any(len(voyage.request.output) > 20 for voyage in engines.voyages.going):
            await asyncio.sleep(0.002)
        [voyage] = engines.voyages.going
        if kill:
            voyage.link.actor.leave_at_once.remote()  # type: ignore[attr-defined]
        else:
            [to] = [state.link for state in engines.states.values() if state.link is not voyage.link]
            assert await engines.move(voyage, to) in ("moved", "ended")
        assert await asyncio.wait_for(asking, 240) == want
    assert engines.lost_count == 1
    await engines.close()
