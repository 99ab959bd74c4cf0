"""Adapters, fine-tunes and chains of them in a cluster: the same texts as one engine's, also where it dies."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from paceline import AsyncLLM
from paceline.cluster.live import engines as live
from paceline.cluster.live.engines import Engines
from paceline.cluster.live.serve import application
from paceline.core.errors import InputError
from paceline.engine.options import Options
from paceline.serve.app import create_app
from paceline.serve.settings import Settings
from tests.cluster.live.links import DirectLink, held
from tests.cluster.live.test_http import client, lasting
from tests.cluster.waits import until
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


def links(engines: Engines) -> list[DirectLink]:
    return [state.link for state in engines.states.values()]  # type: ignore[misc]


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
        going = engines.voyages.going
        for kill in (False, True):
            here = links(engines)
            with held(here):
                asking = [asyncio.create_task(many.post(path, json=body)) for path, body in paths[: len(NAMES)]]
                await until(lambda: len(going) == len(NAMES) and all(v.request.output for v in going), asking)
                figures = (await many.get("/metrics")).text
                if kill:
                    here[0].kill()
                else:
                    for voyage in list(going):
                        await engines.move(voyage, next(link for link in here if link is not voyage.link))
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


@pytest.fixture
async def root(options: dict[str, Any], engines: Engines, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """The HTTP API, with adapters named 3 and 4 that may be loaded."""
    for seed in (3, 4):
        make_adapter(tmp_path / str(seed), Path(options["model"]), seed)
    settings = Settings(served_model_name=("base",), lora_root=tmp_path)
    async with client(application(engines, Options(**options), settings)) as many:
        yield many


async def change(many: httpx.AsyncClient, what: str, name: str, path: str = "", **more: Any) -> tuple[int, str]:
    body = {"lora_name": name, **({"lora_path": path} if path else {}), **more}
    answer = await many.post(f"/v1/{what}_lora_adapter", json=body)
    return answer.status_code, answer.text


async def said(many: httpx.AsyncClient, name: str, **more: Any) -> Any:
    answer = await many.post("/v1/completions", json={**ASKED, "model": name, **more})
    return answer.json()["choices"][0]["text"] if answer.status_code == 200 else answer.status_code


async def last_alone(engines: Engines) -> None:
    """A new engine, and the others leave."""
    await engines.scale(3)
    for name in sorted(engines.states)[:2]:
        await engines.drain(name)


async def test_what_is_loaded_later_is_on_all_engines(
    options: dict[str, Any], engines: Engines, root: httpx.AsyncClient, tmp_path: Path
) -> None:
    """On those that come later, too; and what is unloaded on none."""
    async with (
        AsyncLLM(**{**options, "lora": {n: str(tmp_path / n) for n in "34"}}) as llm,
        client(create_app(llm, Settings(served_model_name=("base",)))) as one,
    ):
        want = {name: await said(one, name) for name in ("base", "3", "4")}
    assert len({*want.values()}) == 3
    assert await change(root, "load", "x", "3") == (200, "Success: LoRA adapter 'x' added successfully.")
    status, text = await change(root, "load", "x", "4")
    assert status == 400 and "loaded already" in text
    for link in [state.link for state in engines.states.values()]:  # each has it
        assert "x" in (await link.facts()).adapters.digests
    assert await said(root, "x") == want["3"]
    assert (await change(root, "load", "x", "4", load_inplace=True))[0] == 200 and await said(root, "x") == want["4"]
    assert (await change(root, "unload", "one"))[0] == 200
    await last_alone(engines)
    assert len(engines.states) == 1 and await said(root, "x") == want["4"]
    assert await said(root, "one") == 404 and await said(root, "two") not in (404, want["base"])
    names = [each["id"] for each in (await root.get("/v1/models")).json()["data"]]
    assert "x" in names and "one" not in names
    assert (await change(root, "unload", "x"))[0] == 200 and await said(root, "x") == 404
    assert (await change(root, "unload", "x"))[0] == 404


async def test_a_running_request_keeps_its_version_where_it_is(
    engines: Engines, root: httpx.AsyncClient, tmp_path: Path
) -> None:
    await change(root, "load", "x", "3")
    want = await said(root, "x")
    with held(links(engines)):
        asking = asyncio.create_task(said(root, "x"))
        await until(lambda: any(len(voyage.request.output) > 2 for voyage in engines.voyages.going), [asking])
        [voyage] = engines.voyages.going
        to = next(link for link in links(engines) if link is not voyage.link)
        assert (await change(root, "load", "x", "4", load_inplace=True))[0] == 200
        assert not voyage.over and await engines.move(voyage, to) == "stayed"
    assert await asking == want != await said(root, "x")


@pytest.mark.parametrize("first", ["", "3"])
async def test_where_one_engine_refuses_none_has_it(
    engines: Engines, root: httpx.AsyncClient, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if first:
        await change(root, "load", "x", first)
    before = await said(root, "x")
    links = [state.link for state in engines.states.values()]
    host = links[1].host  # type: ignore[attr-defined]
    load = host._load

    async def refuses(name: str, path: str, *more: Any) -> None:
        if path.endswith("4"):
            raise InputError("no room")
        await load(name, path, *more)

    monkeypatch.setattr(host, "_load", refuses)
    status, text = await change(root, "load", "x", "4", load_inplace=True)
    assert status == 400 and "no room" in text and engines.lost_count == 0
    digests = [(await link.facts()).adapters.digests for link in links]
    assert digests[0] == digests[1] and ("x" in digests[0]) == bool(first)
    assert await said(root, "x") == before
    host._load = None  # it dies over the next one
    links[1].kill()
    assert (await change(root, "load", "x", "4", load_inplace=True))[0] == 200
    assert await said(root, "x") not in (before, 404)


async def test_a_new_engine_that_finds_other_files_is_refused(
    options: dict[str, Any], engines: Engines, root: httpx.AsyncClient, tmp_path: Path
) -> None:
    await change(root, "load", "x", "3")
    make_adapter(tmp_path / "3", Path(options["model"]), 9)
    answer = await root.post("/cluster/scale", json={"engines": 3})
    assert answer.status_code == 400 and "has changed since it was read" in answer.text
    assert len(engines.states) == engines.wanted == 2
