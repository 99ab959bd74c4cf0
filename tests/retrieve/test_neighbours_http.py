"""`neighbours` on the chat end point (KNN-LM): the offline text, streamed and whole, usage, refusals, a client that
leaves; and the command that makes a datastore."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import BadRequestError, OpenAI
from typer.testing import CliRunner

from paceline import LLM, AsyncLLM, InputError, SamplingParams
from paceline.cli import app
from paceline.engine.pair import DEMO
from paceline.retrieve import Datastore, Knn, knn_generate
from paceline.serve.settings import Settings
from tests.patience import PATIENCE_S
from tests.serve.conftest import running

ASK: list[Any] = [{"role": "user", "content": "Tom has 3 apples and buys 4 more. How many?"}]
TEXTS = ("Tom has 7 apples. He buys 4 more, so he has 11 apples.", "Ann has 3 pens and buys 4 more. She has 7 pens.")
WISH: dict[str, Any] = {"weight": 0.4, "k": 4, "stride": 3, "following": 3}
PARAMS: dict[str, Any] = {"temperature": 0.7, "seed": 5, "max_tokens": 16}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    (root / "texts").mkdir()
    for number, text in enumerate(TEXTS):
        (root / f"texts/{number}.txt").write_text(text, encoding="utf-8")
    done = CliRunner().invoke(
        app, ["index", str(root / "texts"), "--out", str(root / "s.npz"), "--model", str(DEMO / "target")]
    )
    assert done.exit_code == 0 and "passages; serve it with --datastore" in done.output, done.output
    return root / "s.npz"


@pytest.fixture(scope="module")
def client(engine: AsyncLLM, store: Path) -> Iterator[OpenAI]:
    with running(engine, Settings(datastore=store)) as url:
        yield OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)


def test_it_is_the_offline_text_whole_and_streamed(client: OpenAI, store: Path) -> None:
    body: dict[str, Any] = {"model": "demo", "messages": ASK, "extra_body": {"neighbours": WISH}, **PARAMS}
    got = client.chat.completions.create(**body)
    with LLM(dtype="float32", blocks=200) as llm:
        want = knn_generate(llm, ASK, Datastore.load(store), SamplingParams(**PARAMS), Knn(**WISH))
    assert got.choices[0].message.content == want.text
    report = got.choices[0].model_extra["neighbours"]
    assert report["verified"] == want.report["verified"] and report["entries"] > 20
    above = got.usage.model_extra["speculation"]["above"]
    assert (above["policy"], above["proposed"]) == ("neighbours", report["proposed"])
    events = list(client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    assert "".join(e.choices[0].delta.content or "" for e in events if e.choices) == want.text
    assert events[-1].usage.model_extra["speculation"]["above"]["policy"] == "neighbours"


def test_a_client_that_leaves_ends_it(client: OpenAI, engine: AsyncLLM) -> None:
    body: dict[str, Any] = {"model": "demo", "messages": ASK, "extra_body": {"neighbours": WISH, "ignore_eos": True}}
    events = client.chat.completions.create(**body, max_tokens=300, stream=True)
    next(iter(events))
    events.close()

    async def left() -> int:
        for _ in range(400):
            if not await engine.call(lambda: engine.llm.engine.busy):
                break
            await asyncio.sleep(0.05)
        return await engine.call(lambda: len(engine.llm.engine.session.requests))

    assert asyncio.run(left()) == 0


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"neighbours": {"weight": 1.5}}, "weight"),
        ({"neighbours": {"k": 0}}, "neighbours.k"),
        ({"neighbours": {}, "retrieval": {}}, "cannot be combined"),
        ({"retrieval": {}}, "--index"),
    ],
)
def test_what_is_refused(client: OpenAI, extra: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequestError) as told:
        client.chat.completions.create(model="demo", messages=ASK, extra_body=extra)
    assert says in str(told.value)


def test_a_file_that_is_no_datastore_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK nothing")
    with pytest.raises(InputError, match="holds no datastore"):
        Datastore.load(tmp_path / "a.npz")
    with pytest.raises(InputError, match=r"none\.npz cannot be read \(No such file"):
        Datastore.load(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", keys=np.zeros((2, 3)), values=np.zeros(2))
    whole = (tmp_path / "other.npz").read_bytes()
    for name, content in (("empty.npz", b""), ("cut.npz", whole[:100]), ("other.npz", whole)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="holds no datastore"):
            Datastore.load(tmp_path / name)
    np.save(tmp_path / "array.npy", np.zeros(2))
    with pytest.raises(InputError, match="holds no datastore"):
        Datastore.load(tmp_path / "array.npy")
