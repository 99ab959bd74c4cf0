"""Whatever is wrong leaves as an OpenAI error object that names the parameter."""

from typing import Any

import pytest

from paceline.core.errors import BusyError, CapacityError, InputError, LostError
from paceline.serve.errors import as_api_error, blamed, error_response, written
from tests.serve.http import post, send

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
P = {"prompt": "Tom"}
M = {"messages": [{"role": "user", "content": "Tom"}]}
F = {"type": "function", "function": {"name": "f"}}
BAD: list[tuple[str, dict[str, Any], str | None, str]] = [
    (COMPLETIONS, {}, "prompt", "missing"),
    (COMPLETIONS, {"prompt": []}, "prompt", "at least one"),
    (COMPLETIONS, {"prompt": ""}, None, "empty"),
    (COMPLETIONS, {"prompt": [1.5]}, "prompt", "a text, a list of texts"),
    (COMPLETIONS, {"prompt": [99999]}, None, "outside the vocabulary"),
    (COMPLETIONS, P | {"best_of": 2}, "best_of", "not supported"),
    (COMPLETIONS, P | {"suffix": "x"}, "suffix", "no tokens to fill in with"),
    (COMPLETIONS, P | {"use_beam_search": True}, "use_beam_search", "not served"),
    (COMPLETIONS, P | {"lora_path": "x"}, "lora_path", "adapter"),
    (COMPLETIONS, P | {"Foo-Bar": 1}, "Foo-Bar", "Unknown parameter"),
    (COMPLETIONS, P | {"messages": []}, "messages", "Unknown parameter"),
    (COMPLETIONS, P | {"temperature": "1"}, "temperature", "must be 0 (greedy)"),
    (COMPLETIONS, P | {"temperature": -1}, "temperature", "must be 0 (greedy)"),
    (COMPLETIONS, P | {"top_p": 0}, "top_p", "(0, 1]"),
    (COMPLETIONS, P | {"n": 0}, "n", ">= 1"),
    (COMPLETIONS, P | {"n": True}, "n", ">= 1"),
    (COMPLETIONS, P | {"n": 10**6}, "n", "at most 128"),
    (COMPLETIONS, P | {"seed": -2}, "seed", "[0, 2**64)"),
    (COMPLETIONS, P | {"seed": 2**64}, "seed", "[0, 2**64)"),
    (COMPLETIONS, P | {"max_tokens": 0}, "max_tokens", "echo"),
    (COMPLETIONS, P | {"logprobs": 21}, "logprobs", "from 0 to 20"),
    (COMPLETIONS, P | {"stop": ["a"] * 17}, "stop", "16 at most"),
    (COMPLETIONS, P | {"logit_bias": {"x": 1}}, "logit_bias", "token ids"),
    (COMPLETIONS, P | {"logit_bias": {"99999": 1}}, "logit_bias", "0 to 2047"),
    (COMPLETIONS, P | {"min_tokens": 9, "max_tokens": 2}, "min_tokens", "at most max_tokens"),
    (COMPLETIONS, P | {"stream_options": {"include_usage": True}}, "stream_options", "set stream"),
    (COMPLETIONS, P | {"speculation": {"foo": 1}}, "speculation.foo", "Unknown parameter"),
    (COMPLETIONS, P | {"speculation": {"drafter": "x"}}, "speculation.drafter", "known are"),
    (COMPLETIONS, P | {"speculation": {"drafter": "user"}}, "speculation.drafter", "needs a function"),
    (COMPLETIONS, P | {"speculation": {"drafter": "topk", "verifier": "chain"}}, "speculation.drafter", "chains only"),
    (COMPLETIONS, P | {"grammar": {"kind": "regex", "text": "("}}, None, "regex"),
    (CHAT, {"messages": []}, "messages", "at least one"),
    (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "'system'"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content", "only text"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content", "only text"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content", "a text or a list"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0]", "no content"),
    (CHAT, {"messages": [{"role": "user", "content": "", "tool_calls": []}]}, "messages[0]", "only an assistant"),
    (CHAT, M | {"top_logprobs": 2}, "top_logprobs", "set logprobs"),
    (CHAT, M | {"max_tokens": 2, "max_completion_tokens": 3}, "max_tokens", "differ"),
    (CHAT, M | {"echo": True}, "echo", "Unknown parameter"),
    (CHAT, M | {"response_format": {"type": "xml"}}, "response_format.type", "'json_schema'"),
    (CHAT, M | {"response_format": {"type": "json_schema"}}, "response_format", "needs json_schema"),
    (CHAT, M | {"tool_choice": "required"}, "tool_choice", "give tools"),
    (CHAT, M | {"tools": [F, F]}, "tools", "one name"),
    (CHAT, M | {"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs", "'tokenize'"),
    ("/tokenize", {}, "prompt", "one of them"),
    ("/detokenize", {"tokens": [-1]}, "tokens", "0 to 2047"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "param", "words"), BAD, ids=lambda value: str(value)[:50])
def test_bad_bodies_are_refused_by_name(url: str, path: str, body: Any, param: str | None, words: str) -> None:
    status, answer = post(url + path, body)
    error = answer["error"]
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert words in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_unknown_models_and_paths_are_404(url: str) -> None:
    for path, body in ((COMPLETIONS, P), (CHAT, M), ("/tokenize", {"prompt": "a"})):
        status, answer = post(url + path, body | {"model": "gpt-9"})
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (404, "model_not_found", "model")
    assert send(url + "/v1/models/gpt-9")[0] == 404
    assert send(url + "/nothing/here")[1]["error"]["type"] == "not_found_error"
    assert send(url + COMPLETIONS)[0] == 405


def test_null_is_the_same_as_not_given(url: str) -> None:
    status, _ = post(url + COMPLETIONS, P | {"max_tokens": 1, "n": None, "stop": None, "best_of": None, "stream": None})
    assert status == 200


def test_a_fault_of_the_server_is_not_described(caplog: pytest.LogCaptureFixture) -> None:
    fault = as_api_error(KeyError("secret"))
    assert fault.status == 500 and "secret" not in fault.message
    assert "secret" in caplog.text
    assert as_api_error(CapacityError("Too large.")).status == 400


def test_blame() -> None:
    assert blamed(str(InputError("temperature is 9."))) == "temperature"
    assert blamed("Unknown verifier 'x'.") == "speculation.verifier"
    assert blamed("The prompt is empty.") is None
    assert written(("messages", 2, "content", "list[Part]", 0, "text")) == "messages[2].content"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/v1/responses", "/api/chat"])
def test_busy_machine_is_429_with_a_time(path: str) -> None:
    gone = as_api_error(LostError("No engine answers; try again later."))
    assert gone.status == 503 and "try again later" in gone.message and gone.headers == {"Retry-After": "5"}
    fault = as_api_error(BusyError("This machine is too busy; try again."))
    answer = error_response(fault, path)
    assert answer.status_code == 429 and int(answer.headers["Retry-After"]) > 0
    assert fault.param is None and fault.code == "host_busy"
