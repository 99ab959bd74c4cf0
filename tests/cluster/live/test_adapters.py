"""Adapters, fine-tunes and chains of them in a cluster: the same texts as one engine's, also where it dies."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from paceline import AsyncLLM
from paceline.cluster.live import engines as live
from paceline.cluster.live.engines import Engines
from paceline.cluster.live.serve import application
from paceline.core.errors import InputError
from paceline.engine.options import Options
from paceline.serve.app import create_app
from paceline.serve.settings import Settings
from tests.cluster.live.links import DirectLink
from tests.cluster.live.test_http import client, lasting
from tests.lora import make_adapter
from tests.zoo import LAYERS, family_of_tunes

CHAIN = f"a[0:3]+base[3:{LAYERS}]"
NAMES = ("base", "one", "two", "a", "b", CHAIN)
ASKED = {"prompt": "Tom has", "max_tokens": 24, "ignore_eos": True, "temperature": 0.8, "seed": 4}


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    at = tmp_path_factory.mktemp("cluster")
    tunes = family_of_tunes(at)
    loras = {name: str(make_adapter(at / name, tunes["base"], seed)) for seed, name in enumerate(("one", "two"), 1)}
    return {"model": str(tunes["base"]), "lora": loras, "zoo": {"a": str(tunes["a"]), "b": str(tunes["b"])},
            "dtype": "bfloat16", "blocks": 120, "drafter": "none", "max_requests": 8}  # fmt: skip


@pytest.fixture
async def engines(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engines]:
    monkeypatch.setattr(live, "FIRST_REVIVAL_S", 0.01)
    made = Engines(lambda name: DirectLink(name, options))
    await made.start(2)
    yield made
    await made.close()


async def test_each_name_gets_its_own_text(options: dict[str, Any], engines: Engines) -> None:
    """Wherever it is, and where its engine dies; embeddings, too."""
    settings = Settings(served_model_name=("base",))
    async with AsyncLLM(**options) as llm, client(create_app(llm, settings)) as one:
        paths = [("/v1/completions", {**ASKED, "model": name}) for name in NAMES]
        paths += [("/v1/embeddings", {"input": "a", "model": name}) for name in ("base", "one")]
        want = [lasting((await one.post(path, json=body)).json()) for path, body in paths]
        names = (await one.get("/v1/models")).json()["data"]
    assert len({each["choices"][0]["text"] for each in want[: len(NAMES)]}) == len(NAMES)
    assert want[-1]["data"] != want[-2]["data"]
    async with client(application(engines, Options(**options), settings)) as many:
        got = [lasting((await many.post(path, json=body)).json()) for path, body in paths]
        assert got == want
        assert [each["id"] for each in (await many.get("/v1/models")).json()["data"]] == [each["id"] for each in names]
        for kill in (False, True):
            asking = [asyncio.create_task(many.post(path, json=body)) for path, body in paths[: len(NAMES)]]
            while len(engines.voyages.going) < len(NAMES) or any(not v.request.output for v in engines.voyages.going):
                await asyncio.sleep(0.001)
            figures = (await many.get("/metrics")).text
            here = [*engines.states.values()]
            if kill:
                here[0].link.kill()
            else:
                for voyage in list(engines.voyages.going):
                    await engines.move(voyage, next(state.link for state in here if state.link is not voyage.link))
            again = [(await each).json()["choices"] for each in asking]
            assert again == [each["choices"] for each in want[: len(NAMES)]]
            assert 'running_lora_adapters="' in figures and "one" in figures.split('running_lora_adapters="')[1][:80]
        assert (await many.post("/v1/completions", json={**ASKED, "model": "three"})).status_code == 404


async def test_an_engine_whose_adapters_have_changed_is_refused(
    options: dict[str, Any], engines: Engines, tmp_path: Path
) -> None:
    other = make_adapter(tmp_path / "one", Path(options["model"]), 9)
    engines.make = lambda name: DirectLink(name, {**options, "lora": {**options["lora"], "one": str(other)}})
    with pytest.raises(InputError, match="has other adapters than the engines before it"):
        await engines.scale(3)
