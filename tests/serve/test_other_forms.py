"""Forms of an answer as vLLM, SGLang and llama-server name them: kept to over HTTP, or refused by name."""

import json
import re
from typing import Any

import pytest

from paceline.serve.other_forms import MOST_CHOICES, formed
from tests.serve.http import post

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
ODD = ['it\'s "so"\n', "/a\\b/ #x", "naïve 🙂", "${x}|y"]


def text(url: str, more: dict[str, Any], path: str = COMPLETIONS) -> str:
    body = {"prompt": "Tom"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "Tom"}]}
    status, answer = post(url + path, {**body, "max_tokens": 60, "seed": 1, **more})
    assert status == 200, answer
    choice = answer["choices"][0]
    return str(choice["text"] if path == COMPLETIONS else choice["message"]["content"])


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_answers_have_the_form(url: str, path: str) -> None:
    for name, value in (
        ("guided_regex", "[ab]{3}"),
        ("regex", "[ab]{3}"),
        ("structured_outputs", {"regex": "[ab]{3}"}),
    ):
        assert re.fullmatch("[ab]{3}", text(url, {name: value}, path)), name
    for name, value in (
        ("guided_json", SCHEMA),
        ("json_schema", json.dumps(SCHEMA)),
        ("structured_outputs", {"json": SCHEMA}),
    ):
        assert set(json.loads(text(url, {name: value}, path))) == {"a"}, name
    for one in ODD:
        assert text(url, {"guided_choice": [one]}, path) == one
    assert text(url, {"structured_outputs": {"choice": ["yes", "no"], "regex": None}}, path) in ("yes", "no")
    assert text(url, {"guided_grammar": 'start: "x" "y"', "guided_decoding_backend": "xgrammar"}, path) == "xy"


def test_forms_that_say_nothing_change_nothing(url: str) -> None:
    plain = text(url, {})
    for more in ({"guided_json": None}, {"structured_outputs": {}}, {"structured_outputs": {"json_object": False}}):
        assert text(url, more) == plain
    assert formed({"grammar": ""}) == {} and formed({"grammar": "", "regex": "a"})["grammar"]["text"] == "a"
    assert formed({"guided_grammar": 'start: "a ::= b"'})["grammar"]["kind"] == "lark"
    assert formed({"structured_outputs": {"json_object": True}}) == {"grammar": {"kind": "json_object"}}


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"guided_json": {}, "regex": "a"}, "guided_json and regex"),
        ({"guided_regex": "a", "grammar": {"kind": "regex", "text": "b"}}, "guided_regex and grammar"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "regex and choice"),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "whitespace_pattern"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structural_tag"),
        ({"structured_outputs": ["a"]}, "not an object"),
        ({"structured_outputs": {"json_object": 1}}, "json_object"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_choice": ["a", 1]}, "guided_choice"),
        ({"guided_choice": ["a"] * (MOST_CHOICES + 1)}, "guided_choice"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": 3}, "guided_regex"),
        ({"guided_json": "{"}, "does not parse as JSON"),
        ({"guided_json": True}, "guided_json"),
        ({"ebnf": 'root ::= "a"'}, "in Lark"),
    ],
)
def test_what_cannot_be_kept_is_refused(url: str, more: dict[str, Any], named: str) -> None:
    status, answer = post(url + COMPLETIONS, {"prompt": "Tom", "max_tokens": 2, **more})
    assert status == 400 and named in answer["error"]["message"], answer


def test_a_form_next_to_another_of_a_chat_is_refused(url: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_object"}}
    status, answer = post(url + CHAT, {**body, "guided_regex": "a"})
    assert status == 400 and "grammar and response_format" in answer["error"]["message"]
