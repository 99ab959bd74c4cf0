"""An honest engine keeps its call for as long as the call allows; one that computes nothing is left."""

import asyncio
from math import inf

import orjson
import pytest

from paceline.cluster.control import controller as controller_module
from paceline.cluster.control.bounds import slowest_s
from paceline.cluster.control.controller import LEAST_PATIENCE_S, Controller
from paceline.cluster.control.engines import REPLY_TIMEOUT_S, EngineLost, Reply, SmallCall
from paceline.cluster.workflow.policies import DispatcherSetup
from paceline.cluster.workflow.tasks import CallWork
from tests.cluster.waits import until

LEARNED = CallWork("a", 10.0, 20.0)
"""What other calls of this step were."""


class Clock:
    """Seconds that pass while engines are asked whether they are there."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class OneSlot:
    """Says at once that it is there, computes one call after another, and takes so long for each."""

    heard = worked = 0

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds, self.slot, self.asked = clock, seconds, asyncio.Lock(), 0

    async def ask(self, path: str, body: bytes | None, client: str = "") -> Reply:
        self.asked += 1
        await self._compute(self.seconds)
        return Reply(200, b"{}")

    async def _compute(self, seconds: float) -> None:
        begun = self.clock.now
        async with self.slot:
            end = self.clock.now + seconds
            while self.clock.now < end:
                if self.clock.now - begun >= REPLY_TIMEOUT_S:
                    raise EngineLost("no answer in time")
                await asyncio.sleep(0)
        self.heard, self.worked = self.heard + 1, self.worked + 1

    async def alive(self) -> bool:
        return True

    async def there(self) -> bool:
        self.clock.now += 2.0
        return True

    async def computes(self, call: SmallCall) -> bool:
        await self._compute(min(self.seconds, 1.0) if self.seconds < inf else inf)
        return True


def over(first: float, second: float, most_losses: float = 3) -> tuple[Controller, Clock, OneSlot, OneSlot]:
    """Two engines, of which the first gets the first call."""
    clock = Clock()
    setup = DispatcherSetup(
        "heft", tuple((n, n, 2) for n in "ab"), {"a": (0.01, 0.0, 0.0), "b": (0.02, 0.0, 0.0)}, 0.3, 99.0
    )
    a, b = OneSlot(clock, first), OneSlot(clock, second)
    made = Controller(setup.dispatcher(), {"a": a, "b": b}, clock=clock, most_losses=most_losses)
    return made, clock, a, b


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "ENGINE_SILENCE_S", 0.0)


@pytest.mark.parametrize(
    ("body", "seconds"),
    [({}, 270.0), ({}, REPLY_TIMEOUT_S - 5), ({"max_tokens": 256}, 300.0), ({"max_tokens": 32, "n": 8}, 300.0)],
)
async def test_an_honest_engine_keeps_its_call_whatever_others_were(body: dict[str, int], seconds: float) -> None:
    made, clock, a, b = over(seconds, seconds)
    reply = await asyncio.wait_for(made.call("w", LEARNED, "/completions", orjson.dumps(body)), 3)
    assert reply.status == 200 and (a.asked, b.asked) == (1, 0) and seconds <= clock.now < seconds + 10
    assert all(each.alive for each in made.dispatcher.instances.values())
    await made.close()


async def test_an_engine_that_answers_no_call_is_left_and_that_is_no_loss() -> None:
    """After about a minute, where answers are short."""
    made, clock, a, b = over(inf, 1.0, most_losses=1)
    body = b'{"prompt": "Hi", "max_tokens": 16}'
    reply = await asyncio.wait_for(made.call("w", LEARNED, "/completions", body), 3)
    assert reply.status == 200 and (a.asked, b.asked) == (1, 1)
    assert LEAST_PATIENCE_S < clock.now < LEAST_PATIENCE_S + 40 and not made.dispatcher.instances["a"].alive
    await made.close()


async def test_a_call_is_taken_away_once() -> None:
    """It may be the call that takes long, longer than its limit says."""
    made, clock, a, b = over(400.0, 500.0, most_losses=1)
    body = b'{"prompt": "Hi", "max_tokens": 16}'
    reply = await asyncio.wait_for(made.call("w", LEARNED, "/completions", body), 3)
    assert reply.status == 200 and (a.asked, b.asked) == (1, 1) and 500 < clock.now < 620
    await made.close()


async def test_one_whose_call_had_no_limit_comes_back_when_it_computes() -> None:
    """Its call has the time of a reply; that ends first."""
    made, clock, a, b = over(inf, 1.0)
    reply = await asyncio.wait_for(made.call("w", LEARNED, "/completions", b"{}"), 3)
    assert reply.status == 200 and REPLY_TIMEOUT_S <= clock.now < REPLY_TIMEOUT_S + 20
    await until(lambda: "a" in made._deaf)
    assert not made.dispatcher.instances["a"].alive and (a.asked, b.asked) == (1, 1)
    await made.close()


async def test_calls_that_were_given_up_still_count() -> None:
    """An engine need not hear that a client has gone."""
    made, clock, a, _ = over(150.0, 150.0)
    gone = asyncio.ensure_future(made.call("v", LEARNED, "/completions", b'{"max_tokens": 200}'))
    made.dispatcher.turn("b", False, 0.0)
    await until(lambda: a.asked == 1)
    made.dispatcher.turn("b", True, 0.0)
    await until(lambda: clock.now > 10)
    gone.cancel()
    reply = await asyncio.wait_for(made.call("w", LEARNED, "/completions", b'{"max_tokens": 16}'), 3)
    assert reply.status == 200 and all(each.alive for each in made.dispatcher.instances.values())
    await made.close()


def test_the_time_that_a_call_may_take_is_its_own() -> None:
    def seconds(**body: object) -> float:
        return slowest_s(orjson.dumps(body))

    assert seconds() == seconds(max_tokens=None) == seconds(max_tokens=-1) == seconds(max_tokens="9") == REPLY_TIMEOUT_S
    assert slowest_s(b"no JSON") == slowest_s(b"[]") == seconds(max_tokens=10**9) == REPLY_TIMEOUT_S
    for name in ("max_tokens", "max_completion_tokens", "n_predict", "num_predict"):
        assert 16 < seconds(**{name: 16}) < 18
    assert seconds(max_tokens=16, max_completion_tokens=100) > 100
    assert seconds(max_tokens=16, n=4) > 64 < seconds(max_tokens=16, best_of=4)
    assert seconds(max_tokens=16, prompt=["a", "b", "c"]) > 48 > seconds(max_tokens=16, prompt=[1, 2, 3])
    assert seconds(max_tokens=16, prompt="a" * 16_000) > 16 + 200
    assert slowest_s(b'{"max_tokens": 16}', 2000.0) == 16 + 100
    text, image = {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "http://a/b.png"}}
    assert seconds(max_tokens=16, messages=[{"role": "user", "content": [text]}]) < 30
    assert seconds(max_tokens=16, messages=[{"role": "user", "content": [text, image]}]) == REPLY_TIMEOUT_S
