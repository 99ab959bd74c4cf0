"""Adapters over HTTP: named as a model, listed, loaded below a root, unloaded."""

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline import AsyncLLM
from paceline.engine.pair import DEMO as DEMO_AT
from paceline.serve import lora
from paceline.serve.errors import ApiError
from paceline.serve.settings import Settings
from tests.lora import make_adapter
from tests.serve.conftest import DEMO, running
from tests.serve.process import SERVE, spawned
from tests.serve.test_slots import ask


def test_an_adapter_is_a_model_at_every_door(tmp_path: Path) -> None:
    target = DEMO_AT / "target"
    paths = {name: make_adapter(tmp_path / "root" / name, target, seed) for seed, name in enumerate("ab")}
    outside = make_adapter(tmp_path / "outside", target, 5)
    (tmp_path / "root" / "link").symlink_to(outside)
    (tmp_path / "root" / "circle").symlink_to(tmp_path / "root" / "circle")
    llm = AsyncLLM(**DEMO, drafter="none", lora={"a": paths["a"]})
    with running(llm, Settings(lora_root=tmp_path / "root")) as address:

        def said(model: str) -> str:
            body = {"model": model, "prompt": "Tom has", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
            status, answer = ask(address, "/v1/completions", body)
            assert status == 200 and answer["model"] == model, answer
            return str(answer["choices"][0]["text"])

        def load(name: str, path: str, **more: object) -> tuple[int, str]:
            status, answer = post(address, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path, **more})
            return status, str(answer)

        cards = ask(address, "/v1/models", method="GET")[1]["data"]
        base = cards[0]["id"]
        assert [(card["id"], card.get("parent")) for card in cards] == [(base, None), ("a", base)]
        texts = [said(base), said("a")]
        assert load("b", "b")[0] == 200
        texts.append(said("b"))
        assert len({*texts}) == 3
        status, answer = ask(
            address, "/v1/chat/completions",
            {"model": "b", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0},
        )  # fmt: skip
        assert status == 200 and answer["model"] == "b"
        for name, path, status, words in (
            ("b", "b", 400, "loaded already"), (base, "b", 400, "name of a model"), ("c", "../outside", 403, "outside"),
            ("c", str(outside), 403, "outside"), ("c", "link", 403, "outside"), ("c", "missing", 400, "adapter_config"),
            ("c", "x" * 4000, 400, "cannot be a path"), ("c", "circle", 400, "cannot be a path"),
            ("", "b", 400, "name"), ("c", "a\0b", 400, "zero byte"),
        ):  # fmt: skip
            got = load(name, path)
            assert got[0] == status and words in got[1], got
            assert str(tmp_path) not in got[1], "where the root lies is the operator's"
        assert load("b", "a", load_inplace=True)[0] == 200
        assert said("b") == texts[1] and said(base) == texts[0]
        metrics = str(post(address, "/metrics", None, "GET")[1])
        assert "vllm:lora_requests_info{" in metrics and 'max_lora="16"' in metrics
        assert post(address, "/v1/unload_lora_adapter", {"lora_name": "b"})[0] == 200
        assert ask(address, "/v1/unload_lora_adapter", {"lora_name": "b"})[0] == 404
        assert ask(address, "/v1/completions", {"model": "b", "prompt": "x"})[0] == 404
        [vector] = ask(address, "/v1/embeddings", {"model": base, "input": "x"})[1]["data"]
        [other] = ask(address, "/v1/embeddings", {"model": "a", "input": "x"})[1]["data"]
        assert vector["embedding"] != other["embedding"]
    llm.close()


@pytest.mark.parametrize("requests", [24, pytest.param(200, marks=pytest.mark.full)])
def test_the_command_serves_many_while_others_come_and_go(tmp_path: Path, requests: int) -> None:
    """`paceline serve --lora`, four places for eight adapters, of which half are loaded, unloaded and replaced under
    their names all the time: every text is that of one version, and whole. Nobody is refused but by the name of what is
    not there."""
    target, root = DEMO_AT / "target", tmp_path / "root"
    for seed in range(6):
        make_adapter(root / f"v{seed}", target, seed)
    fixed = {f"f{i}": i for i in range(4)}
    args = [part for name, seed in fixed.items() for part in ("--lora", f"{name}={root / f'v{seed}'}")]
    options = [
        "--drafter",
        "ngram",
        "--threads",
        "1",
        "--max-requests",
        "8",
        "--max-loras",
        "4",
        "--lora-root",
        str(root),
    ]
    with spawned(*SERVE, *options, *args) as (address, child):

        def load(name: str, version: int) -> int:
            body = {"lora_name": name, "lora_path": f"v{version}", "load_inplace": True}
            return post(address, "/v1/load_lora_adapter", body)[0]

        def say(name: str, number: int) -> tuple[int, str]:
            body = {"model": name, "prompt": f"Tom has {number % 3}", "max_tokens": 12, "temperature": 0}
            status, answer = ask(address, "/v1/completions", {**body, "ignore_eos": True})
            return status, answer["choices"][0]["text"] if status == 200 else answer["error"]["message"]

        right = dict[tuple[int, int], str]()
        for version in range(6):
            assert load("g0", version) == 200
            for number in range(3):
                status, right[version, number] = say("g0", number)
                assert status == 200
        assert len({*right.values()}) > 12
        over, rng, changes = threading.Event(), random.Random(1), list[int]()

        def change() -> None:
            while not over.wait(0.05):
                name = f"g{rng.randrange(4)}"
                if rng.random() < 0.3:
                    changes.append(post(address, "/v1/unload_lora_adapter", {"lora_name": name})[0])
                else:
                    changes.append(load(name, rng.randrange(6)))

        changing = threading.Thread(target=change)
        changing.start()
        names = [*fixed, *(f"g{i}" for i in range(4))]
        with ThreadPoolExecutor(8) as callers:
            got = list(callers.map(lambda number: say(names[number % 8], number), range(requests)))
        over.set()
        changing.join()
        for number, (status, text) in enumerate(got):
            name = names[number % 8]
            if status == 404:
                assert name.startswith("g") and name in text, text
                continue
            versions = [fixed[name]] if name in fixed else range(6)
            assert status == 200 and text in {right[version, number % 3] for version in versions}, (name, status, text)
        assert changes and {*changes} <= {200, 404}
        assert child.poll() is None


def test_one_waits_for_room_and_may_have_a_draft_of_its_own(tmp_path: Path) -> None:
    """`max_loras` 1: one that is in use has the room, and another one waits for it; both texts are as alone. The draft
    of one, which is given at the start or over HTTP, changes no text."""
    target, draft, root = DEMO_AT / "target", DEMO_AT / "draft", tmp_path / "root"
    paths = {name: make_adapter(root / name, target, seed) for seed, name in enumerate("ab")}
    own = make_adapter(root / "own", draft, 3)
    llm = AsyncLLM(**DEMO, max_loras=1, lora={"a": f"{paths['a']},draft={own}", "b": paths["b"]})
    with running(llm, Settings(lora_root=root)) as address:

        def said(model: str, drafter: str, tokens: int = 8) -> str:
            body = {"model": model, "prompt": "Tom has", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
            status, answer = ask(address, "/v1/completions", {**body, "speculation": {"drafter": drafter}})
            assert status == 200, answer
            return str(answer["choices"][0]["text"])

        alone = {name: said(name, "none") for name in "ab"}
        assert alone["a"] != alone["b"] and said("a", "model") == alone["a"]
        with ThreadPoolExecutor(4) as callers:
            got = list(callers.map(lambda number: said("ab"[number % 2], "model"), range(4)))
        assert got == [alone["a"], alone["b"]] * 2
        body = {"lora_name": "c", "lora_path": "b", "draft_path": "own"}
        assert post(address, "/v1/load_lora_adapter", body)[0] == 200
        assert said("c", "model") == alone["b"]
        status, text = post(address, "/v1/load_lora_adapter", {**body, "lora_name": "d", "draft_path": "b"})
        assert status == 400 and "another model" in text and str(tmp_path) not in text
        assert llm.llm.engine.session.adapters.loads > 4, "each left memory for the other"
    llm.close()


def test_without_a_root_nothing_is_loaded(tmp_path: Path) -> None:
    path = make_adapter(tmp_path / "a", DEMO_AT / "target")
    llm = AsyncLLM(**DEMO, drafter="none")
    with running(llm, Settings()) as address:
        for call in ("load", "unload"):
            status, answer = ask(
                address, f"/v1/{call}_lora_adapter", {"lora_name": "a", "lora_path": str(path)}
                if call == "load" else {"lora_name": "a"},
            )  # fmt: skip
            assert status == 403 and "--lora-root" in answer["error"]["message"]
    llm.close()


def test_a_key_changes_only_what_it_has_loaded(tmp_path: Path) -> None:
    """Where keys are kept apart; the operator's adapters are nobody's, and directories are not shown."""
    root = tmp_path / "root"
    made = {name: make_adapter(root / name, DEMO_AT / "target", seed) for seed, name in enumerate("ab")}
    keys = ("key-one-01", "key-two-02")
    llm = AsyncLLM(**DEMO, drafter="none", lora={"a": made["a"]})
    with running(llm, Settings(lora_root=root, api_keys=keys)) as address:

        def said(key: str, path: str, **body: object) -> tuple[int, str]:
            headers = {"Authorization": f"Bearer {key}"}
            return post(address, path, body or None, "POST" if body else "GET", headers)

        load, unload, one, two = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", *keys
        assert said(one, load, lora_name="b", lora_path="b")[0] == 200
        for key, name in ((two, "b"), (one, "a"), (two, "a")):
            for status, text in (
                said(key, unload, lora_name=name), said(key, load, lora_name=name, lora_path="a", load_inplace=True)
            ):  # fmt: skip
                assert status == 403 and "not loaded with this API key" in text
        assert said(two, "/v1/completions", model="b", prompt="x", max_tokens=1)[0] == 200
        assert str(root) not in said(two, "/v1/models")[1] and '"root":"b"' in said(two, "/v1/models")[1]
        assert said(one, load, lora_name="b", lora_path="a", load_inplace=True)[0] == 200
        status, text = said(one, load, lora_name="long", lora_path="x/" * 100_000)
        assert status == 400 and "may have at most 4096" in text, "each part of a path is looked up"
        assert said(one, unload, lora_name="b")[0] == 200
        assert said(two, load, lora_name="b", lora_path="b")[0] == 200, "a name that is free again"
    llm.close()


def test_a_turn_ends_with_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that does not answer keeps its turn: what waits is refused after a while, and no thread is added."""
    monkeypatch.setattr(lora, "LORA_READ_S", 0.05)
    entered, leave = list[int](), threading.Event()

    class Turn:
        lora_turn = asyncio.Lock()

    def read() -> None:
        entered.append(1)
        leave.wait(20)

    async def refused() -> None:
        for _ in range(3):
            with pytest.raises(ApiError, match="does not answer"):
                await lora.in_turn(Turn(), lambda: asyncio.to_thread(read))  # type: ignore[arg-type]
        leave.set()
        monkeypatch.setattr(lora, "LORA_READ_S", 20.0)
        await lora.in_turn(Turn(), lambda: asyncio.to_thread(read))  # type: ignore[arg-type]

    asyncio.run(refused())
    assert len(entered) == 2


def post(
    address: str, path: str, body: dict[str, object] | None, method: str = "POST", headers: dict[str, str] | None = None
) -> tuple[int, str]:
    """(status, text)"""
    import json
    import urllib.request
    from urllib.error import HTTPError

    data = None if body is None else json.dumps(body).encode()
    given = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(address + path, data, given, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()
