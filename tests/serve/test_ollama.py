"""Ollama's protocol as its clients use it: streams that come in pieces, times, names, options, models that go."""

import asyncio
import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from paceline.core.errors import InputError
from paceline.engine.pair import DEMO
from paceline.serve.fleet import Fleet, check_members
from paceline.serve.ollama_wire import DURATION
from paceline.serve.settings import Settings
from tests.serve.conftest import running
from tests.serve.http import post, send

SAY = [{"role": "user", "content": "Tom has 3 apples."}]
SHORT = {"num_predict": 6, "temperature": 0}


def raw(url: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, list[dict[str, Any]]]:
    """(status, the lines of the answer), with these headers alone."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("POST", path, json.dumps(body), headers)
    answer = connection.getresponse()
    return answer.status, [json.loads(line) for line in answer.read().splitlines()]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/api/chat", {"messages": SAY}), ("/api/generate", {"prompt": "Tom"}),
     ("/api/generate", {"prompt": "Tom", "raw": True})],
)  # fmt: skip
def test_a_stream_comes_in_pieces(url: str, path: str, body: dict[str, Any]) -> None:
    ask = {"model": "demo", "options": {**SHORT, "num_predict": 24}, **body}
    _, lines = raw(url, path, ask, {"Content-Type": "application/json"})
    said = [each.get("message", {}).get("content", each.get("response")) for each in lines]
    assert len([text for text in said if text]) > 1 and lines[-1]["done"]
    whole = post(url + path, {**ask, "stream": False})[1]
    assert "".join(said) == whole.get("message", {}).get("content", whole.get("response"))
    for told in (lines[-1], whole):
        assert 0 < told["eval_duration"] < told["total_duration"] and told["prompt_eval_duration"] > 0


def test_log_probabilities_come_with_their_pieces(url: str) -> None:
    ask = {"model": "demo", "messages": SAY, "logprobs": True, "top_logprobs": 2, "options": SHORT}
    _, lines = raw(url, "/api/chat", ask, {"Content-Type": "application/json"})
    told = [entry for each in lines for entry in each.get("logprobs", ())]
    assert len(told) == 6 and all(len(entry["top_logprobs"]) == 2 for entry in told)
    whole = post(url + "/api/generate", {"model": "demo", "prompt": "a", "raw": True, "logprobs": True, "stream": False,
                                         "options": SHORT})[1]  # fmt: skip
    assert (
        len(whole["logprobs"]) == 6
        and "logprobs"
        not in post(url + "/api/chat", {"model": "demo", "messages": SAY, "stream": False, "options": SHORT})[1]
    )


def test_a_body_of_curl_needs_no_type_but_one_of_a_page_does(url: str) -> None:
    ask, form = (
        {"model": "demo", "messages": SAY, "options": SHORT},
        {"Content-Type": "application/x-www-form-urlencoded"},
    )
    status, lines = raw(url, "/api/chat", ask, form)
    assert status == 200 and lines[-1]["done"] and raw(url, "/api/chat", ask, {})[0] == 200
    page = {"Origin": url}, {"Sec-Fetch-Site": "same-origin"}
    for header in page:
        assert raw(url, "/api/chat", ask, {**form, **header})[0] == 400
    assert raw(url, "/api/chat", ask, {"Content-Type": "text/plain"})[0] == 400
    assert raw(url, "/v1/completions", {"prompt": "a"}, form)[0] == 400


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("chat", {"messages": SAY, "options": {"num_predict": "many"}}, "options.num_predict is 'many'"),
        ("generate", {"prompt": "a", "raw": True, "options": {"repeat_penalty": 0}}, "options.repeat_penalty is 0"),
        ("chat", {"messages": SAY, "options": {"num_predict": False}}, "options.num_predict is False"),
        ("generate", {"prompt": "a", "raw": True, "top_logprobs": 2}, "top_logprobs is given without logprobs"),
        ("chat", {"messages": SAY, "options": {"typical_p": 0.5}}, "options.typical_p is not served"),
        ("chat", {"messages": SAY, "think": "purple"}, "think is 'purple'"),
        ("chat", {"messages": SAY, "keep_alive": "soon"}, "keep_alive is 'soon'"),
        ("embed", {"input": "a", "keep_alive": "1m2"}, "keep_alive is '1m2'"),
        ("chat", {"messages": SAY, "keep_alive": "1" * 600}, "keep_alive has 600 characters"),
        ("chat", {"messages": SAY, "format": [1]}, "format is [1]"),
        ("generate", {"prompt": "a", "raw": True, "system": "b"}, "system is given with raw"),
        ("embed", {"input": "a", "dimensions": 3}, "dimensions is 3"),
        ("chat", {"messages": SAY, "tools": [{"type": "function", "function": {"name": "f"}}] * 300}, "128 at most"),
    ],
)
def test_refusals_name_what_the_client_sent(url: str, path: str, body: dict[str, Any], words: str) -> None:
    status, answer = post(f"{url}/api/{path}", {"model": "demo", **body})
    assert status == 400 and words in answer["error"]


@pytest.mark.parametrize(
    "more",
    [{"options": {"num_predict": -1, "stop": ["a", "e", " "]}}, {"options": {"num_predict": 2, "mirostat_tau": 5.0}},
     {"keep_alive": "1h30m"}, {"keep_alive": -1}, {"truncate": True, "shift": False}, {"think": "high"},
     {"tools": [{"function": {"name": "f", "parameters": {"type": "object"}}}]}],
)  # fmt: skip
def test_what_clients_send_is_taken(url: str, more: dict[str, Any]) -> None:
    ask = {"model": "demo", "messages": SAY, "stream": False, "options": {"num_predict": 2}, **more}
    assert post(url + "/api/chat", ask)[0] == 200


def test_durations_are_read_in_one_go() -> None:
    good = ("5m", "1h30m", "-1", "0", "1.5h", ".5s", "300ms", "+2m", "0s", "1.")
    assert all(DURATION.fullmatch(text) for text in good)
    assert not any(DURATION.fullmatch(text) for text in ("", "m", "soon", "1m2", "5 m", "1.2.3s", "--1"))
    assert not DURATION.fullmatch("1" * 2_000_000 + "x") and not DURATION.fullmatch("1s" * 1_000_000 + "x")


def test_a_get_is_told_to_post(url: str) -> None:
    status, answer = send(url + "/api/chat")
    assert status == 405 and "POST" in answer["error"]
    assert send(url + "/api/version")[1]["version"].split(".") >= ["0", "12"]


def test_a_model_of_several_goes_when_it_is_told_to() -> None:
    options = {"model": DEMO / "draft", "dtype": "float32", "max_requests": 2}
    settings = Settings()
    fleet = Fleet({"a:latest": options}, settings)
    try:
        with running(fleet, settings) as url:
            ask = {"model": "a", "prompt": "b", "raw": True, "stream": False, "options": {"num_predict": 2}}
            assert post(url + "/api/generate", ask)[0] == 200 and fleet.members["a:latest"].server is not None
            answer = post(url + "/api/generate", {"model": "a", "keep_alive": "0s"})[1]
            assert answer["done_reason"] == "unload" and fleet.members["a:latest"].unloads == 1
            assert send(url + "/api/ps")[1]["models"] == []
            assert post(url + "/api/generate", {"model": "c", "keep_alive": 0})[0] == 404
    finally:
        fleet.close()


def test_an_unload_goes_on_when_who_asked_for_it_leaves() -> None:
    fleet = Fleet({"a": {"model": DEMO / "draft", "dtype": "float32", "max_requests": 2}}, Settings())
    member = fleet.members["a"]

    async def leave() -> None:
        member.server = await asyncio.to_thread(fleet._made, member)
        asking = asyncio.ensure_future(fleet.unload("a"))
        while member.server is not None:
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        async with fleet._turn:
            assert member.unloads == 1

    asyncio.run(leave())


def test_models_that_cannot_be_served_together_are_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    for options, words in (({"model": tmp_path}, "is an encoder"), ({"drafter": "magic"}, "Unknown drafter 'magic'")):
        with pytest.raises(InputError, match=f"Model 'a'.*{words}"):
            check_members(Fleet({"a": options}, Settings()))
