"""Parallel writing over HTTP: an outline, branches and a conclusion in one answer; bad wishes; clients that leave."""

import time
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from paceline import AsyncLLM

ASK: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "What can one do with a bicycle?"}],
    "max_tokens": 240,
    "temperature": 0,
}


def wish(**settings: Any) -> dict[str, Any]:
    return {"reasoning": {"policy": "parallel", "branch_tokens": 24, "fan_out": 3, **settings}}


def idle(engine: AsyncLLM) -> None:
    """Nothing is left of anybody."""
    for _ in range(200):
        loop = engine.llm.engine
        if not loop.busy and not any(each.busy for each in engine.beside):
            break
        time.sleep(0.02)
    assert not loop.session.requests and not loop.desk.branches
    assert loop.cache.room() == loop.cache.num_blocks


def test_an_answer_has_an_outline_branches_and_a_conclusion(client: OpenAI, engine: AsyncLLM) -> None:
    answer = client.chat.completions.create(**ASK, extra_body=wish())
    choice = answer.choices[0]
    report = choice.model_extra["reasoning"]  # type: ignore[index]
    assert report["policy"] == "parallel" and report["mode"] == "prompt"
    assert report["blocks"] == 1 and 2 <= report["branches"] == len(report["outline"]) <= 3
    assert report["critical_path"] < report["tokens"] and report["passes"] > 0
    lines = (choice.message.content or "").split("\n")
    assert lines[0].startswith(f"1. {report['outline'][0]}:") and lines[1].startswith(f"2. {report['outline'][1]}:")
    assert "Overall," in (choice.message.content or "")
    idle(engine)


def test_a_stream_says_the_same_in_order(client: OpenAI, engine: AsyncLLM) -> None:
    whole = client.chat.completions.create(**ASK, extra_body=wish()).choices[0].message.content
    parts, authors = [], list[str]()
    for chunk in client.chat.completions.create(**ASK, stream=True, extra_body=wish()):
        if chunk.choices:
            parts.append(chunk.choices[0].delta.content or "")
            authors += [author for _, author in (chunk.choices[0].model_extra or {}).get("pieces", ())]
    assert "".join(parts) == whole and len(parts) > 5
    assert authors[0] == "branch" and "base" in authors
    idle(engine)


def test_a_client_that_leaves_ends_all_branches(client: OpenAI, engine: AsyncLLM) -> None:
    stream = client.chat.completions.create(**ASK, stream=True, extra_body=wish(branch_tokens=200))
    for number, _ in enumerate(stream):
        if number == 4:
            break
    stream.close()
    idle(engine)


def test_a_deadline_returns_what_stands(client: OpenAI, engine: AsyncLLM) -> None:
    answer = client.chat.completions.create(**ASK, extra_body=wish(deadline_s=0.05))
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].model_extra["reasoning"]["why"] == "deadline"  # type: ignore[index]
    idle(engine)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fan_out": 1}, "fan_out"),
        ({"fan_out": 65}, "fan_out"),
        ({"depth": 0}, "depth"),
        ({"mode": "both"}, "mode"),
        ({"tau": 3}, "not of policy parallel"),
        ({"path_tokens": 3}, "path_tokens"),
        ({"branch_tokens": 1}, "branch_tokens"),
        ({"conclusion": ""}, "conclusion"),
    ],
)
def test_bad_wishes_are_refused(client: OpenAI, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        client.chat.completions.create(**ASK, extra_body=wish(**settings))


def test_what_cannot_be_combined_is_refused(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="n is 2"):
        client.chat.completions.create(**ASK, n=2, extra_body=wish())
    with pytest.raises(BadRequestError, match="last message of role user"):
        said = [*ASK["messages"], {"role": "assistant", "content": "Ride"}]
        client.chat.completions.create(**{**ASK, "messages": said}, extra_body=wish())
