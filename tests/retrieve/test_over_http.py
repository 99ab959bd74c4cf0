"""`retrieval` on the chat end point, with the openai client: the offline text, passages, scores, metrics, refusals."""

import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from paceline import LLM, AsyncLLM, SamplingParams
from paceline.retrieve import PassageIndex, Retrieval, build, generate
from paceline.serve.settings import Settings
from tests.patience import PATIENCE_S
from tests.retrieve.scenes import folder
from tests.serve.conftest import running
from tests.serve.http import send

pytest.importorskip("bm25s", reason="bm25s is not installed: the rag extra")
ASK: list[Any] = [{"role": "user", "content": "Tom has 3 apples and buys 4 more. How many?"}]
WISH: dict[str, Any] = {"every": 3, "stride": 3, "prefetch": 2, "query_tokens": 8}
PARAMS: dict[str, Any] = {"temperature": 0.7, "seed": 5, "max_tokens": 24}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> PassageIndex:
    root = tmp_path_factory.mktemp("words")
    return build(folder(root / "texts"), root / "out", words=20)


@pytest.fixture(scope="module")
def url(engine: AsyncLLM, words: PassageIndex) -> Iterator[str]:
    with running(engine, Settings(index=words.path)) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)


def metric(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    return float(next((line.split()[-1] for line in lines if line.startswith(f"{name} ")), 0))


def test_the_answer_is_the_offline_one_with_its_passages(client: OpenAI, url: str, words: PassageIndex) -> None:
    before = metric(url, 'paceline_above_proposed_total{policy="retrieval"}')
    got = client.chat.completions.create(model="demo", messages=ASK, extra_body={"retrieval": WISH}, **PARAMS)
    with LLM(dtype="float32", blocks=200) as llm:
        want = generate(llm, ASK, words, SamplingParams(**PARAMS), Retrieval(**WISH))
    [choice] = got.choices
    assert choice.message.content == want.text
    report = choice.model_extra["retrieval"]
    timed = {"model_seconds", "call_seconds", "seconds_saved"}
    assert {k: v for k, v in report.items() if k not in timed and not k.startswith("cached")} == {
        k: v for k, v in want.report.items() if k not in timed and not k.startswith("cached")
    }
    assert "".join(segment["text"] for segment in report["segments"]) == choice.message.content
    used = {segment["passage"] for segment in report["segments"]}
    assert used == {passage["id"] for passage in report["passages"]} and len(used) > 1
    for passage in report["passages"]:
        assert words.passages[passage["id"]].text == passage["text"] and passage["score"] >= 0
    assert metric(url, 'paceline_above_proposed_total{policy="retrieval"}') == before + report["proposed"] > before


def test_streamed_it_is_the_same(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="demo", messages=ASK, extra_body={"retrieval": WISH}, **PARAMS)
    chunks = list(
        client.chat.completions.create(
            model="demo", messages=ASK, stream=True, extra_body={"retrieval": WISH}, **PARAMS
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    last = next(c.choices[0] for c in reversed(chunks) if c.choices and c.choices[0].finish_reason)
    assert last.model_extra["retrieval"]["passages"] == whole.choices[0].model_extra["retrieval"]["passages"]


def test_a_client_that_leaves_ends_it(client: OpenAI, engine: AsyncLLM, url: str) -> None:
    stream = client.chat.completions.create(
        model="demo", messages=ASK, stream=True, max_tokens=400, extra_body={"retrieval": {"every": 2}}
    )
    for _ in zip(range(3), stream):
        pass
    stream.close()
    for _ in range(200):
        if not engine.llm.engine.busy and not any(each.busy for each in engine.beside):
            break
        send(f"{url}/health")
    assert not any(each.busy for each in engine.beside) and engine.llm.engine.snapshot().used == 0


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"retrieval": {"every": 0}}, "retrieval.every is 0, but it must be a whole number from 1 to 4096"),
        ({"retrieval": {"colour": 1}}, "colour"),
        ({"retrieval": {"retriever": "exact"}}, "this index has bm25"),
        ({"retrieval": {"template": "{question}"}}, "template has no {passage}"),
        ({"retrieval": {}, "n": 2}, "n is 2"),
        ({"retrieval": {}, "reasoning": {"policy": "steps"}}, "cannot be combined"),
        ({"retrieval": {}, "logprobs": True}, "logprobs cannot be combined"),
        ({"retrieval": {"passage_tokens": 60000}}, "the context holds"),
    ],
)
def test_what_is_refused(client: OpenAI, extra: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.chat.completions.create(model="demo", messages=ASK, extra_body=extra, max_tokens=4)
    assert says in str(caught.value)


def test_a_server_without_an_index_says_so(engine: AsyncLLM) -> None:
    with running(engine, Settings()) as address:
        client = OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        with pytest.raises(BadRequestError, match="start it with --index"):
            client.chat.completions.create(model="demo", messages=ASK, extra_body={"retrieval": {}})
