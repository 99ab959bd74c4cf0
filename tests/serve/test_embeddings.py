"""/v1/embeddings: the served decoder's hidden states, pooled; transformers computes the same."""

from typing import Any

import pytest
import torch
from openai import OpenAI

from paceline import LLM, AsyncLLM
from paceline.engine.pair import DEMO
from paceline.serve.settings import Settings
from tests.serve.conftest import running
from tests.serve.http import post

TEXTS = ["The sky is blue.", "Tom has 3 apples.", "x " * 700]


@pytest.fixture(scope="module")
def states(llm: LLM) -> list[Any]:
    """The last hidden states of each text, after the final norm."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(str(DEMO / "target"), dtype=torch.float32)
    with torch.inference_mode():
        return [model(torch.tensor([llm.text.encode(text)])).last_hidden_state[0] for text in TEXTS]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors_are_those_of_transformers(client: OpenAI, states: list[Any], llm: LLM, pooling: str) -> None:
    made = client.embeddings.create(model="demo", input=TEXTS, extra_body={"pooling": pooling})
    for hidden, entry in zip(states, made.data, strict=True):
        want = torch.nn.functional.normalize(hidden.mean(0) if pooling == "mean" else hidden[-1], dim=0)
        assert torch.dot(want, torch.tensor(entry.embedding)) > 0.9999
    assert made.usage.prompt_tokens == sum(len(llm.text.encode(text)) for text in TEXTS)


def test_ids_and_floats_do_as_well(client: OpenAI, llm: LLM, engine: AsyncLLM) -> None:
    more: dict[str, Any] = {"model": "demo", "extra_body": {"pooling": "last"}}
    by_text = client.embeddings.create(input=TEXTS[0], **more).data[0].embedding
    ids = llm.text.encode(TEXTS[0])
    by_ids = client.embeddings.create(input=ids, encoding_format="float", **more).data[0].embedding
    assert by_text == pytest.approx(by_ids) and sum(x * x for x in by_ids) == pytest.approx(1)
    assert engine.snapshot.used == 0


def test_the_default_pooling_is_mean(client: OpenAI, engine: AsyncLLM) -> None:
    usual = client.embeddings.create(model="demo", input="a").data[0].embedding
    named = client.embeddings.create(model="demo", input="a", extra_body={"pooling": "mean"}).data[0].embedding
    assert usual == named
    with running(engine, Settings(served_model_name=("demo",), pooling="mean")) as url:
        assert post(url + "/v1/embeddings", {"input": "a"})[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        {"input": []},
        {"input": [[]]},
        {"input": [99999]},
        {"input": "x " * 3000},
        {"input": "a", "dimensions": 7},
        {"input": "a", "pooling": "max"},
    ],
)
def test_what_cannot_be_embedded_is_refused(url: str, body: dict[str, Any]) -> None:
    status, answer = post(url + "/v1/embeddings", {"pooling": "mean", **body})
    assert status == 400 and answer["error"]["message"]
