"""Recorded runs of an engine around the toy, with everything that can befall a request."""

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from paceline.core.forest import Forest
from paceline.core.params import SamplingParams
from paceline.core.proposer import Proposer
from paceline.draft import Ask, Drafter, View
from paceline.engine.loop import Engine
from paceline.simulate.log import Event
from paceline.simulate.record import record
from tests.lossless.cases import Setting, Wish

DRAFTERS = ("auto", "auto", "none", "model", "ngram", "rsd_s", "lookahead", "ngram|topk", "ngram+model")


class Flaky:
    """A drafter that fails now and then, at its first or its last word."""

    def __init__(self, inner: Drafter, rng: random.Random) -> None:
        self.inner, self.rng = inner, rng

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        self.fail()
        return self.inner.draft(asks, view)

    def propose(self, asks: Sequence[Ask], view: View) -> Proposer | None:
        self.fail()
        inner: Any = self.inner
        proposer: Proposer | None = inner.propose(asks, view)
        return proposer

    def learn(self, view: View) -> None:
        self.inner.learn(view)
        self.fail()

    def fail(self) -> None:
        if self.rng.random() < 0.05:
            raise RuntimeError("flaky")


def fail_at_times(engine: Engine, rng: random.Random) -> None:
    """Passes of the target and two drafters that raise now and then."""
    forward = engine.model.forward

    def flaky(rows: Any) -> Any:
        if rng.random() < 0.03:
            raise ZeroDivisionError
        return forward(rows)

    engine.model.forward = flaky  # type: ignore[method-assign]
    for name in ("ngram", "model"):
        engine.drafters.drafters[name] = Flaky(engine.drafters.drafter(name), rng)


def drive(engine: Engine, wishes: Sequence[Wish], rng: random.Random, aborts: float = 0.0) -> None:
    """All wishes to their end, submitted between steps; some are aborted."""
    queue, live = list(wishes), []
    while queue or engine.busy:
        while queue and (not engine.busy or rng.random() < 0.4):
            wish = queue.pop(0)
            live += engine.submit(wish.prompt, wish.params)
        if live and rng.random() < aborts:
            engine.abort(rng.choice(live))
        with suppress(ZeroDivisionError):
            engine.step()
    engine.cache.check_integrity()


def wished(order: str, place: int) -> dict[str, Any]:
    """What a wish may name under an order."""
    if order == "priority":
        return {"priority": place % 2}
    return {"deadline_ms": (1.0, 30.0, 4.0, None)[place % 4]} if order == "deadline" else {}


def recorded(setting: Setting, wishes: Sequence[Wish], seed: int, faults: bool = False) -> list[Event]:
    """The log of a run."""
    engine, rng, events = setting.engine(), random.Random(seed), list[Event]()
    record(engine, events.append)
    wishes = [replace(w, params=replace(w.params, **wished(setting.order, i))) for i, w in enumerate(wishes)]
    if faults:
        fail_at_times(engine, rng)
    drive(engine, wishes, rng, aborts=0.05 if faults else 0.0)
    return events


settings_st = st.builds(
    Setting,
    model_seed=st.integers(0, 3),
    blocks=st.integers(1, 30),
    block_size=st.sampled_from([1, 2, 4]),
    max_requests=st.integers(1, 5),
    row_budget=st.sampled_from([5, 9, 33]),
    prefix_cache=st.booleans(),
    schedule=st.sampled_from(["chunked", "chunked", "layered"]),
    layer_groups=st.sampled_from([None, 2]),
    order=st.sampled_from(["fcfs", "priority", "deadline", "fair"]),
    tbt_target_ms=st.sampled_from([None, 0.0, 1.0, 1e6]),
    group_size=st.sampled_from([None, None, 2]),
    patience_ms=st.sampled_from([0.0, 1e9]),
    clock=st.integers(0, 2**16),
)


@st.composite
def wish_st(draw: Any) -> Wish:
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.integers(0, 100)),
        drafter=draw(st.sampled_from(DRAFTERS)),
        max_tokens=draw(st.integers(1, 20)),
        n=draw(st.sampled_from([1, 1, 1, 3])),
        max_nodes=draw(st.sampled_from([None, None, 0, 2])),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 0])),
        ignore_eos=draw(st.booleans()),
        user=draw(st.sampled_from(["", "a", "b"])),
    )
    stem = draw(st.sampled_from([[], [0, 1, 2, 3, 4, 5, 0, 1]]))  # prefixes that are shared
    prompt = stem + draw(st.lists(st.integers(0, 6), min_size=1, max_size=12))
    return Wish(prompt, params.resolve({}))


def some(seed: int, count: int, **params: Any) -> list[Wish]:
    """`count` wishes by chance."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(7) for _ in range(rng.randrange(1, 14))] for _ in range(count)]
    base = {"temperature": 1.0, "max_tokens": 16, "ignore_eos": True, **params}
    return [Wish(p, SamplingParams(seed=i, **base).resolve({})) for i, p in enumerate(prompts)]
