"""The small end points."""

from importlib.metadata import version

from openai import OpenAI

from paceline import LLM
from paceline.serve.responses import Models
from tests.serve.http import post, send


def test_the_served_model_is_listed(client: OpenAI, url: str) -> None:
    assert [m.id for m in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").owned_by == "paceline"
    assert Models.model_validate(send(url + "/v1/models")[1]).data[0].max_model_len == 1024


def test_version_and_health(url: str) -> None:
    assert send(url + "/version") == (200, {"version": version("paceline")})
    assert send(url + "/health")[0] == 200


def test_tokenize_and_back(url: str, llm: LLM) -> None:
    text = "naïve 東京 🙂"
    answer = post(url + "/tokenize", {"prompt": text})[1]
    assert answer["tokens"] == llm.text.encode(text) and answer["count"] == len(answer["tokens"])
    assert len(answer["token_strs"]) == answer["count"]
    assert post(url + "/detokenize", {"tokens": answer["tokens"]}) == (200, {"prompt": text})
    messages = [{"role": "user", "content": text}]
    assert post(url + "/tokenize", {"messages": messages})[1]["tokens"] == llm.text.chat(messages)
    assert post(url + "/tokenize", {"prompt": "a", "add_special_tokens": False})[1]["count"] == 1
