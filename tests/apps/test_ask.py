"""Typed calls: values, outcomes and confidence, against scripts and against the demo pair."""

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import pytest
from pydantic import BaseModel

from paceline.apps.common.ask import AppAnswer, AppSettings, Prompt, ask, sample
from paceline.apps.common.client import Alternative, AppClient, CallError, Token
from paceline.apps.common.confidence import expected, over_words
from paceline.apps.common.forms import Choice, Json, Regex, choice, closed
from tests.apps.scripted import scripted

T = TypeVar("T")


class Point(BaseModel):
    x: int


class Step(BaseModel):
    reason: Literal["large", "small"]
    way: Literal["up", "down"]


def against(url: str, use: Callable[[AppClient], Awaitable[T]], **options: Any) -> T:
    async def go() -> T:
        async with AppClient(url, **options) as client:
            return await use(client)

    return asyncio.run(go())


def test_an_invalid_answer_is_asked_for_again_and_shown_why() -> None:
    replies = iter(['{"x": "one"}', '{"x": 1}'])
    with scripted(lambda body: next(replies)) as (url, bodies):
        answer = against(url, lambda c: ask(c, Json(Point), Prompt(data="DATA", task="TASK", system="SYSTEM")))
    assert (answer.value, answer.outcome, answer.attempts) == (Point(x=1), "retried", 2)
    assert [m["content"] for m in bodies[0]["messages"]] == ["SYSTEM", "DATA\n\nTASK"]
    assert "x: Input should be a valid integer" in bodies[1]["messages"][-1]["content"]


def test_objects_have_no_fields_but_their_own_at_any_depth() -> None:
    class Outer(BaseModel):
        points: list[Point]

    schema = Json(Outer).wire(True)["response_format"]["json_schema"]["schema"]
    assert schema["additionalProperties"] is False and schema["$defs"]["Point"]["additionalProperties"] is False
    assert "additionalProperties" not in schema["properties"]["points"]
    assert closed({"properties": {}, "additionalProperties": True})["additionalProperties"] is True


def test_fallbacks_and_failures_are_outcomes_with_their_problem() -> None:
    async def use(client: AppClient) -> list[AppAnswer[str]]:
        form, prompt = choice("yes", "no"), Prompt("?")
        failed = await ask(client, form, prompt, AppSettings(retries=0))
        return [
            failed,
            await ask(client, form, prompt, fallback=lambda problem: "no"),
            *await sample(client, form, prompt, 2),
        ]

    with scripted(lambda body: ["yes", "maybe"] if body.get("n") else "maybe") as (url, _):
        failed, fallback, *samples = against(url, use)
    assert (failed.value, failed.outcome, failed.problem) == (None, "failed", "invalid")
    assert (fallback.value, fallback.outcome, fallback.problem) == ("no", "fallback", "invalid")
    assert [s.value for s in samples] == ["yes", None]
    with scripted(lambda body: (400, "n is too large.")) as (url, bodies):
        refused = against(url, lambda c: ask(c, choice("a"), Prompt("?")))
        assert (refused.problem, len(bodies)) == ("refused", 1)
        assert "n is too large." in refused.detail


def test_a_deadline_that_is_missed_is_counted() -> None:
    async def use(client: AppClient) -> tuple[AppAnswer[str], dict[str, Any]]:
        answer = await ask(client, choice("a"), Prompt("?"), AppSettings(deadline_s=0.1))
        return answer, client.tally.as_dict()

    gate = threading.Event()
    with scripted(lambda body: f"{gate.wait(5)}") as (url, _):
        answer, tally = against(url, use)
        gate.set()
    assert (answer.problem, tally["deadlines_met"], tally["deadlines"]) == ("late", 0, 1)


def test_a_busy_server_is_asked_again_and_an_absent_one_reported() -> None:
    replies = iter([(429, "busy"), (503, "busy"), "a"])
    with scripted(lambda body: next(replies)) as (url, bodies):
        assert against(url, lambda c: ask(c, choice("a"), Prompt("?"))).outcome == "ok"
    assert len(bodies) == 3
    with pytest.raises(CallError, match="cannot be reached"):
        against("http://127.0.0.1:9", lambda c: c.stats())


def test_other_servers_get_openai_forms_only() -> None:
    with scripted(lambda body: '{"answer": "a b"}', owner="someone") as (url, bodies):
        assert against(url, lambda c: ask(c, choice("a b", "c"), Prompt("?"))).value == "a b"
        assert against(url, lambda c: ask(c, Regex("a [bc]"), Prompt("?"))).value == "a b"
        with pytest.raises(CallError, match="takes no drafter"):
            against(url, lambda c: c.stats(), drafter="none")
    assert all("grammar" not in body and "response_format" in body for body in bodies)


def test_the_mass_of_every_alternative_goes_to_the_words_it_leads_to() -> None:
    def token(text: str, p: float, **others: float) -> Token:
        return Token(text, math.log(p), tuple(Alternative(t, math.log(q)) for t, q in {text: p, **others}.items()))

    words = ("Integer", "Int", "Float")
    found = over_words([token("Int", 0.6, F=0.4), token("eger", 0.5, end=0.5)], words, False)
    assert found == pytest.approx({"Integer": 0.3, "Int": 0.3, "Float": 0.4})
    wrapped = [token('{"answer": "', 1.0), token("Float", 0.8, Int=0.2), token('"}', 1.0)]
    assert over_words(wrapped, words, True) == pytest.approx({"Integer": 0.1, "Int": 0.1, "Float": 0.8})
    assert expected({"3": 0.5, "5": 0.5}) == 4
    assert over_words([], words, False) == {}


@pytest.mark.parametrize("words", [(), ("a", "a"), ("a", "")])
def test_a_choice_needs_different_words(words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="different words"):
        Choice(words)


def test_the_demo_pair_keeps_to_each_form(demo_url: str) -> None:
    async def use(client: AppClient) -> None:
        words = choice("yes", "no", "(maybe) [x.y]")
        answer = await ask(client, words, Prompt("Is 2 more than 1?"))
        assert answer.value is not None and answer.confidence == answer.probabilities[answer.value]
        assert sum(answer.probabilities.values()) == pytest.approx(1)
        assert (await ask(client, Regex("[0-9]{2}"), Prompt("How many?"))).outcome == "ok"
        assert (await ask(client, Json(Step), Prompt("Where?"))).outcome == "ok"
        assert all(a.value for a in await sample(client, words, Prompt("Is 2 more than 1?"), 3))
        tally = client.tally.as_dict()
        assert tally["calls"] == 4 and tally["cached_share"] >= 0 and tally["outcomes"] == {"ok": 6}

    against(demo_url, use)
