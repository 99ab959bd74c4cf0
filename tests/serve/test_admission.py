"""Places, pace, keys: arithmetic without a server."""

import asyncio
from time import monotonic

import pytest

from paceline import SamplingParams
from paceline.core.errors import InputError
from paceline.serve.admission import ApiKeys, Gate, LoopTurns
from paceline.serve.errors import ApiError
from paceline.serve.other_clients import UNLIMITED_TOKENS

ONE = ([1, 2], SamplingParams())


def test_places_are_taken_and_given_back() -> None:
    gate = Gate(2, 1)
    gate.admit([([1], SamplingParams(n=2))])
    gate.admit([ONE])
    with pytest.raises(ApiError) as caught:
        gate.admit([ONE])
    assert caught.value.status == 429 and caught.value.headers == {"Retry-After": "1"}
    gate.left(1)
    gate.admit([ONE])
    assert gate.inside == 3


def test_what_can_never_enter_is_no_matter_of_patience() -> None:
    gate = Gate(2, 0)
    with pytest.raises(InputError, match="3 samples"):
        gate.admit([ONE, ONE, ONE])
    assert gate.inside == 0


def test_retry_after_follows_the_pace() -> None:
    gate = Gate(4, 0)
    gate.budget.take("", 4)
    gate._leavings.extend(monotonic() - 10 + i for i in range(11))  # one a second
    assert 2 <= gate.retry_after(3) <= 4
    assert gate.retry_after(4) > gate.retry_after(1)
    gate._leavings.clear()
    gate._leavings.extend([monotonic() - 9999.0] * 2)
    assert gate.retry_after(4) == 60


def test_token_limits() -> None:
    gate = Gate(9, 0, max_prompt=3, max_output=10)
    ((_, params),) = gate.admit([ONE])
    assert params.max_tokens == 10
    ((_, params),) = gate.admit([([1], SamplingParams(max_tokens=4))])
    assert params.max_tokens == 4
    ((_, params),) = gate.admit([([1], SamplingParams(max_tokens=UNLIMITED_TOKENS))])
    assert params.max_tokens == 10
    for batch, words in ((([1] * 4, SamplingParams()), "prompt has 4"), (([1], SamplingParams(max_tokens=11)), "is 11"),
                         (([1], SamplingParams(min_tokens=12)), "min_tokens is 12")):  # fmt: skip
        with pytest.raises(InputError, match=words):
            gate.admit([batch])
    assert gate.inside == 3


def test_keys() -> None:
    assert not ApiKeys([]) and ApiKeys(["a"])
    keys = ApiKeys(["one", "two-ü"])
    assert keys.which("Bearer one") == 0 and keys.which("bearer  two-ü ".encode().decode("latin-1")) == 1
    for header in ("", "one", "Bearer", "Bearer onetwo", "Bearer On", "Basic one", "Bearer \udcff"):
        assert keys.which(header) is None


async def test_one_request_of_each_client_begins_in_a_turn_of_the_loop() -> None:
    turns, begun = LoopTurns(), list[str]()

    async def begin(owner: str) -> None:
        await turns.wait(owner)
        begun.append(owner)

    tasks = [asyncio.create_task(begin(owner)) for owner in ("a",) * 50 + ("b",)]
    await asyncio.sleep(0)
    assert begun == ["a", "b"]
    tasks[1].cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    late = asyncio.create_task(begin("c"))
    await asyncio.sleep(0)
    assert begun.count("a") < 10 and begun[-1] == "c"
    await asyncio.gather(*tasks, late, return_exceptions=True)
    await asyncio.sleep(0)
    assert begun.count("a") == 49 and not turns._waiting
