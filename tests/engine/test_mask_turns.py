"""Masks that take long: each client's wait for one another, the others go on, and no text changes."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from paceline.core.operations import Park, Resume
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.sample import grammar as module
from paceline.sample import mask_turns
from paceline.sample.grammar import Parse, Place
from paceline.sample.mask_turns import EXTRA_STEP_S
from paceline.simulate.log import Event, Step
from paceline.simulate.record import record
from paceline.simulate.replay import replay
from tests.lossless.cases import FEATURES, MAX_LEN, Setting, Wish, check, plain
from tests.sample.cases import admitted, request
from tests.simulate.runs import drive


def wish(seed: int, client: str, feature: str = "grammar", **params: Any) -> Wish:
    ends = {"min_tokens": 16} if feature == "grammar" else {"ignore_eos": True}
    made = {**FEATURES[feature], "seed": seed, "client": client, "max_tokens": 16, **ends, **params}
    return Wish([seed % 6, 1, 2], SamplingParams(**made).resolve({}))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Place]]:
    """A look at the processor's clock costs time, and so a mask does; the places whose masks were computed."""
    rng, now, computed = random.Random(0), [0.0], list[Place]()
    compute: Callable[..., Any] = Parse._compute

    def tell() -> float:
        now[0] += 2 * rng.random() * EXTRA_STEP_S / 3
        return now[0]

    def noted(self: Parse, place: Place, until: float) -> Any:
        if self.client:
            computed.append(place)
        return compute(self, place, until)

    monkeypatch.setattr(mask_turns, "ALONE_TIMES", 1)
    monkeypatch.setattr(module, "thread_time", tell)
    monkeypatch.setattr(Parse, "_compute", noted)
    yield computed


@pytest.mark.parametrize("drafter", ["none", "user", "ngram", "model", "auto"])
def test_no_text_changes(slow: list[Place], drafter: str) -> None:
    wishes = [wish(i, "ab"[i % 2], drafter=drafter, n=1 + i % 2) for i in range(6)]
    wishes += [wish(i, "c", "temperature", drafter=drafter) for i in range(2)]
    engine, held = Setting(max_requests=8, blocks=24).engine(), list[int]()
    choose = engine.judge.sampler.held
    engine.judge.sampler.held = lambda requests: held.extend(now := choose(requests)) or now  # type: ignore[method-assign, func-returns-value]
    setting = Setting(max_requests=8, blocks=24)
    setting.engine = lambda **_: engine  # type: ignore[method-assign]
    check(setting, wishes, random.Random(1))
    assert held


def test_a_step_computes_few_masks_and_others_get_their_tokens(slow: list[Place]) -> None:
    """Each of 6 requests, and each of its guesses, would cost the others a mask's time in each step."""
    engine = Setting(max_requests=8, nodes={"ngram": 8, "user": 8}).engine()
    wishes = [wish(i, "a", drafter="user") for i in range(6)]
    dear = [r for w in wishes for r in engine.submit(w.prompt, w.params)]
    other = wish(9, "b", "temperature", drafter="none")
    [quick] = engine.submit(other.prompt, other.params)
    while quick.pending > 1:
        engine.step()
    while quick.finish is None:
        length = len(quick.output)
        slow.clear()
        engine.step()
        assert len(quick.output) == length + 1
        assert len(slow) <= 4, "at least a third of what a step may take was seen of each"
    while engine.busy:
        engine.step()
    assert {r.finish for r in dear} == {"length"}


def test_clients_that_owe_little_come_first() -> None:
    grammar = FEATURES["grammar"]["grammar"]
    mine = [request(i, grammar=grammar, client="many") for i in range(4)]
    theirs = request(9, grammar=grammar, client="few")
    sampler = admitted(*mine, theirs)
    for r in (*mine, theirs):
        parse = sampler._place(r).parse
        parse.work = lambda place, seconds, client=parse.client: sampler.turns.charge(client, EXTRA_STEP_S) or True  # type: ignore[method-assign, func-returns-value]
    first = sampler.held([*mine, theirs])
    assert len(first) == 4 and 9 in first, "all is spent by the first mask"
    assert set(sampler.held([*mine, theirs])) == {0, 1, 2, 3}
    assert sampler.held([request(1, client="x")]) == []


def test_long_way_is_gone_in_steps(slow: list[Place]) -> None:
    """A request that comes with a long output, as after a pre-emption elsewhere."""
    r = request(0, output=[1] * 40, grammar=module.Grammar("regex", "b*c"), client="a")
    sampler, calls = admitted(r), 1
    while sampler.held([r]):
        calls += 1
        assert calls < 200
    assert calls > 5
    parse = sampler._place(r).parse
    assert torch.equal(parse.mask(sampler._place(r)), mask_of(r))


def mask_of(r: Request) -> torch.Tensor:
    """The mask after its output, by a parser that has seen nothing else, at once."""
    [place] = [admitted(replace(r, params=replace(r.params, client="")))._place(r)]
    return place.parse.mask(place)


def test_programs_own_requests_are_not_held(slow: list[Place]) -> None:
    r = request(0, output=[1] * 40, grammar=module.Grammar("regex", "b*c"))
    assert admitted(r).held([r]) == []


@pytest.mark.parametrize("seed", range(3))
def test_decisions_repeat(slow: list[Place], seed: int) -> None:
    """With aborts and pre-emptions of requests that wait for masks."""
    engine, events = Setting(max_requests=5, blocks=14, block_size=2, clock=5).engine(), list[Event]()
    record(engine, events.append)
    wishes = [wish(i, "abc"[i % 3], drafter=("none", "auto", "ngram")[i % 3], n=1 + i % 2) for i in range(9)]
    wishes += [wish(i, "d", "temperature", drafter="auto") for i in range(3)]
    drive(engine, wishes, random.Random(seed), aborts=0.03)
    steps = [event for event in events if isinstance(event, Step)]
    assert any(step.decision.held and step.decision.items for step in steps)
    done = replay(events)
    assert done.difference is None and not done.twin.requests
    at = next(i for i, e in enumerate(events) if isinstance(e, Step) and e.decision.held and e.decision.items)
    event = events[at]
    assert isinstance(event, Step)
    free = replace(event, decision=replace(event.decision, held=()))
    assert replay([*events[:at], free, *events[at + 1 :]]).difference is not None


def test_a_request_that_waits_for_its_mask_is_parked_and_goes_on_elsewhere(slow: list[Place]) -> None:
    setting = Setting(max_requests=8)
    here, there = setting.engine(), setting.engine()
    wishes = [wish(i, "a", drafter="none") for i in range(4)]
    requests = [r for w in wishes for r in here.submit(w.prompt, w.params)]
    held: list[int] = []
    while not (held and any(len(r.output) > 3 for r in requests if r.id in held)):
        here.step()
        held = here.judge.sampler.held(here.desk.running)
    parked = next(r for r in requests if r.id in held and len(r.output) > 3)
    [moved] = there.apply(Resume(here.apply(Park(parked.id))))
    while there.busy:
        there.step()
    while here.busy:
        here.step()
    at = requests.index(parked)
    assert moved.output == plain(setting.target(), wishes[at].prompt, wishes[at].params)
    assert len(moved.output) == 16 < MAX_LEN


@pytest.mark.parametrize("verifier", ["exact", "chain", "rrs", "kseq"])
def test_masks_that_grow_at_once(verifier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing says before that masks will be slow: one of them is computed in a step then, not one for each candidate
    of each request."""
    now, dear = [0.0], list[int]()
    compute: Callable[..., Any] = Parse._compute

    def grown(self: Parse, place: Place, until: float) -> Any:
        if self.client and place.depth >= 4:
            now[0] += 3 * EXTRA_STEP_S
            dear.append(place.depth)
        return compute(self, place, until)

    monkeypatch.setattr(mask_turns, "ALONE_TIMES", 1)
    monkeypatch.setattr(module, "thread_time", lambda: now[0])
    monkeypatch.setattr(Parse, "_compute", grown)
    engine = Setting(max_requests=8, nodes={"model": 6}).engine()
    mine = wish(0, "a", drafter="model", n=6, verifier=verifier, temperature=1.0)
    requests = engine.submit(mine.prompt, mine.params)
    other = wish(9, "b", "temperature", drafter="none", max_tokens=64)
    engine.submit(other.prompt, other.params)
    for _ in range(300):
        dear.clear()
        engine.step()
        assert len(dear) <= (1 if verifier in ("exact", "chain") else 6)
    assert all(len(r.output) > 4 for r in requests), "and all go on"


def test_clients_that_owe_nothing_do_not_follow_one_another() -> None:
    """However many names an attacker has: what all masks took too long is paid back before the next slow one."""
    grammar = FEATURES["grammar"]["grammar"]
    names = [f"c{i}" for i in range(5)]
    requests = [request(i, grammar=grammar, client=name) for i, name in enumerate(names)]
    cheap = request(9, grammar=grammar, client="honest")
    sampler, computed = admitted(*requests, cheap), list[str]()

    def work(place: Place, seconds: float) -> bool:
        client = place.parse.client
        computed.append(client)
        sampler.turns.charge(client, 0.0 if client == "honest" else 4 * EXTRA_STEP_S)
        return True

    for r in (*requests, cheap):
        parse = sampler._place(r).parse
        parse.work, parse.known = work, lambda place: False  # type: ignore[method-assign]
        parse.took = 0.0 if r is cheap else 4 * EXTRA_STEP_S
    for _ in range(20):
        sampler.held([*requests, cheap])
    assert computed.count("honest") == 20
    assert 4 <= len(computed) - 20 <= 6


@pytest.mark.parametrize(("dear", "names", "least", "most"), [(3.0, 1, 100, 140), (60.0, 1, 5, 8), (60.0, 40, 40, 65)])
def test_slow_masks_have_turns_where_cheap_ones_fill_the_step(dear: float, names: int, least: int, most: int) -> None:
    """Ten clients have masks of 2.1 milliseconds, others have slower ones; computed of the latter in 200 steps."""
    grammar = FEATURES["grammar"]["grammar"]
    requests = [request(i, grammar=grammar, client=f"{'slow' if i < names else 'quick'}{i}") for i in range(names + 10)]
    sampler, computed, ready = admitted(*requests), list[str](), set[str]()

    def work(place: Place, seconds: float) -> bool:
        client = place.parse.client
        place.parse.took = (dear if "slow" in client else 2.1) / 1000
        sampler.turns.charge(client, place.parse.took)
        computed.append(client)
        ready.add(client)
        return True

    for r in requests:
        parse = sampler._place(r).parse
        parse.work, parse.known = work, lambda place: place.parse.client in ready  # type: ignore[method-assign]
    for _ in range(200):
        held = sampler.held(requests)
        ready -= {r.params.client for r in requests if r.id not in held}
    assert least <= sum("slow" in client for client in computed) <= most


def test_new_parser_has_a_turn_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that gives up, the one in its place, and the mask of that may each take a fraction of a second."""
    now, made = [0.0], list[bool]()

    class GivesUp:
        def deep_copy(self) -> "GivesUp":
            now[0] += 1
            return self

        def compute_bitmask(self) -> bytes:
            now[0] += 1
            return b""

        def is_error(self) -> bool:
            return True

        def get_error(self) -> str:
            return "too much"

    def compile(fresh: bool) -> module.CompiledGrammar:
        made.append(fresh)
        return module.CompiledGrammar(GivesUp(), 0)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "thread_time", lambda: now[0])
    parse = Parse(compile, 4, [3])
    place, seen = Place(parse), []
    for _ in range(3):
        seen.append((parse.work(place, 0.5), len(made)))
    assert seen == [(False, 1), (False, 2), (True, 2)]
    assert parse.failure and not parse.mask(place).any()
