"""Engines as Ray actors: the server's answers, and a death that costs nobody an answer."""

import asyncio
import json
from collections.abc import Iterator

import pytest

ray = pytest.importorskip("ray", reason="needs paceline[cluster]")
from paceline.cluster.control.controller import Controller  # noqa: E402
from paceline.cluster.control.ray_engine import RayEngine  # noqa: E402
from paceline.cluster.control.router import tokens_of  # noqa: E402
from paceline.cluster.workflow.policies import DispatcherSetup  # noqa: E402
from paceline.cluster.workflow.tasks import CallWork  # noqa: E402
from tests.cluster.waits import until  # noqa: E402

pytestmark = pytest.mark.full
OPTIONS = {"dtype": "float32", "blocks": 600}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


async def test_an_actor_that_dies_costs_nobody_an_answer() -> None:
    engines = {name: RayEngine(OPTIONS, "demo", slow) for name, slow in (("quick", 0.0), ("slow", 1.0))}
    setup = DispatcherSetup("hexgen", tuple((name, "k", 2) for name in engines), {"k": (0.1, 0.1, 5.0)})
    made = Controller(setup.dispatcher(), engines, used=tokens_of)
    body = json.dumps({"prompt": "Tom has 3", "max_tokens": 8, "temperature": 0, "seed": 1}).encode()

    async def one(n: int) -> str:
        reply = await made.call(f"w{n}", CallWork("draft", 5, 8), "/completions", body)
        if n == 5:
            engines["quick"].actor.leave.remote()
        assert reply.status == 200
        return str(json.loads(reply.body)["choices"][0]["text"])

    texts = await asyncio.wait_for(asyncio.gather(*(one(n) for n in range(20))), 240)
    assert len(set(texts)) == 1 and len(texts) == 20 == sum(made.answered.values())
    await until(lambda: made.dispatcher.instances["quick"].alive)
    await made.close()
