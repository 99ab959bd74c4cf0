import json
from typing import Any

import pytest

from paceline.bench.load.answer import TimedAnswer


def chat(**delta: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}], "usage": None}).encode()


def told(tokens: int, **more: Any) -> bytes:
    return json.dumps({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens, **more}}).encode()


def test_times_count_from_the_intended_arrival() -> None:
    answer = TimedAnswer(intended=1.0, fired=1.5, sent=2.0)
    for data, now in ((chat(role="assistant", content=""), 2.5), (chat(content="a"), 3.0), (chat(content="bcd"), 4.0),
                      (chat(content="e"), 4.0), (chat(), 4.5), (told(7), 4.6), (b"[DONE]", 5.0)):  # fmt: skip
        answer.event(data, now)
    assert answer.ok and (answer.ttft, answer.e2e, answer.held) == (2.0, 4.0, 1.0), "a role is no token"
    assert (answer.chunks, list(answer.gaps), answer.tokens) == (3, [1.0, 0.0], 7)
    assert answer.tpot == 1.0 / 6, "last chunk minus first, over the tokens after the first"


@pytest.mark.parametrize(
    "choice",
    [{"text": "a"}, {"delta": {"content": "a"}}, {"delta": {"reasoning_content": "a"}},
     {"delta": {"tool_calls": [{"index": 0}]}}],
)  # fmt: skip
def test_whatever_brings_tokens_is_a_first_token(choice: dict[str, Any]) -> None:
    answer = TimedAnswer(0.0)
    answer.event(json.dumps({"choices": [choice]}).encode(), 1.0)
    assert answer.first == 1.0


def test_without_usage_chunks_are_counted() -> None:
    answer = TimedAnswer(0.0)
    for now in (1.0, 2.0):
        answer.event(chat(content="a"), now)
    assert answer.tokens == 2 and answer.usage is None and answer.tpot == 1.0


def test_one_token_has_no_tpot_and_none_no_ttft() -> None:
    answer = TimedAnswer(0.0)
    assert answer.ttft is None and answer.tokens == 0 and answer.chunks == 0
    answer.event(chat(content="a"), 1.0)
    answer.event(told(1), 1.0)
    assert answer.ttft == 1.0 and answer.tpot is None


def test_usage_tells_of_speculation_and_cache() -> None:
    answer = TimedAnswer(0.0)
    spec = {
        "drafter": "ngram",
        "drafted": 9,
        "accepted": 4,
        "target_passes": 3,
        "tau": 2.0,
        "offered": [9],
        "kept": [4],
    }
    answer.event(told(6, speculation=spec, prompt_tokens_details={"cached_tokens": 2}), 1.0)
    usage = answer.usage
    assert usage and (usage.passes, usage.drafted, usage.accepted, usage.cached, usage.prompt) == (3, 9, 4, 2, 5)
    answer.event(told(6, speculation=None, prompt_tokens_details=None), 1.0)
    assert answer.usage and answer.usage.passes is None and answer.usage.cached == 0


def test_an_error_event_fails_the_answer_although_done_follows() -> None:
    answer = TimedAnswer(0.0)
    answer.event(b'{"error": {"message": "The engine died.", "code": 500}}', 1.0)
    answer.event(b"[DONE]", 2.0)
    assert not answer.ok and (answer.error, answer.detail) == ("error event", "The engine died.")


@pytest.mark.parametrize("data", [b"{", b"[]", b'"x"', b'{"choices": [3]}', b'{"usage": 7}', b"\xff"])
def test_malformed_events(data: bytes) -> None:
    answer = TimedAnswer(0.0)
    answer.event(data, 1.0)
    assert answer.error == "malformed event" and answer.ended == 1.0


def test_the_first_failure_stands_and_done_is_the_end() -> None:
    answer = TimedAnswer(0.0)
    answer.fail("timeout", "first", 1.0)
    answer.fail("closed", "second", 2.0)
    assert (answer.error, answer.ended) == ("timeout", 1.0)
    done = TimedAnswer(0.0)
    done.event(b"[DONE]", 1.0)
    done.fail("closed", "The server closed without the last chunk.", 2.0)
    assert done.ok and done.ended == 1.0
