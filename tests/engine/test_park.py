"""Requests that travel: parked in one engine and resumed in another one with another draft, they say what they would
have said undisturbed. Parked bytes are input: what is damaged or made up is refused, and nothing changes."""

import hashlib
import json
import random
from array import array
from typing import Any

import pytest

from paceline.core.errors import InputError, PacelineError, RefusalError
from paceline.core.grammar import Grammar
from paceline.core.operations import Park, Reserve, Resume, Settle
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.engine.config import EngineConfig
from paceline.engine.loop import Engine
from paceline.engine.packing import CHECKSUM_BYTES, PARKED_MAGIC, taken
from tests.lossless.cases import EOS, REGEX, TOKENIZER, Setting
from tests.toy import VOCAB, Toy, table

PROMPT = [1, 2, 3, 4, 5, 0, 1, 2, 3]


def engine(draft: int | None = 1, *, weights: int = 0, block: int = 2, order: str = "fcfs", now: Any = None) -> Engine:
    """With a draft of its own table, or none."""
    drafter = "model" if draft else "none"
    config = EngineConfig(64, block_size=block, max_requests=4, row_budget=6, drafter=drafter,
                          order=order, check=True, length="fixed")  # fmt: skip
    parts = {} if draft is None else {"draft": Toy(table(0) + 0.7 * table(draft))}
    extra = {} if now is None else {"now": now}
    return Engine(Toy(table(weights)), config, components=parts, tokenizer=TOKENIZER, eos=(EOS,), **extra)


def asks(**changes: Any) -> SamplingParams:
    base: dict[str, Any] = {"temperature": 0.8, "seed": 7, "max_tokens": 14, "ignore_eos": True}
    return SamplingParams(**{**base, **changes}).resolve({})


KINDS = {
    "sampled": asks(),
    "greedy": asks(temperature=0.0),
    "log-probabilities": asks(logprobs=2, prompt_logprobs=1),
    "grammar": asks(grammar=Grammar("regex", REGEX), ignore_eos=False, logprobs=0),
    "stop": asks(stop=["34", "1201", "55"], seed=3),
    "penalties": asks(frequency_penalty=0.7, logit_bias={2: 1.0}, bad_words=[[1, 2]], min_tokens=3),
    "n": asks(n=3),
}


def seen(request: Request) -> tuple[Any, ...]:
    return (request.output, request.text, request.marks, request.logprobs, request.prompt_logprobs, request.finish,
            request.stats.generated)  # fmt: skip


def to_end(*engines: Engine) -> None:
    while any(each.busy for each in engines):
        for each in engines:
            each.step()


def clean(each: Engine) -> bool:
    """Nothing is held of any request."""
    session = each.session
    each.cache.check_integrity()
    held = (session.requests, session.stoppers, session.judge.sampler._slots, each.desk.running, each.desk.waiting)
    return not any(held) and not each.cache._leases and each.cache.room() == each.cache.num_blocks


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_those_of_undisturbed_requests(kind: str) -> None:
    params = KINDS[kind]
    alone = engine(1)
    want = alone.submit(PROMPT, params)
    to_end(alone)
    moved = 0
    for after in range(12):
        one, two = engine(1, block=2), engine([None, 2, 3][after % 3], block=[2, 4][after % 2])
        going = one.submit(PROMPT, params)
        for _ in range(after):
            one.step()
        parked = [one.apply(Park(r.id)) for r in going if r.finish is None]
        assert all(r.finish is not None for r in going)
        arrived = iter([two.apply(Resume(each))[0] for each in parked])
        final = [next(arrived) if r.finish == "parked" else r for r in going]
        moved += len(parked)
        to_end(one, two)
        assert [seen(r) for r in final] == [seen(r) for r in want]
        assert clean(one) and clean(two) and not two.drafters.errors
    assert moved >= 5


def test_a_request_travels_to_and_fro() -> None:
    alone = engine(1)
    [want] = alone.submit(PROMPT, asks(logprobs=1, max_tokens=20))
    to_end(alone)
    engines = [engine(1), engine(None), engine(3)]
    [request] = engines[0].submit(PROMPT, asks(logprobs=1, max_tokens=20))
    for turn in range(30):
        here, there = engines[turn % 3], engines[(turn + 1) % 3]
        if request.finish is None:
            here.step()
        if request.finish is not None:
            break
        [request] = there.apply(Resume(here.apply(Park(request.id))))
    assert seen(request) == seen(want) and all(map(clean, engines))


def test_a_parked_request_is_resumed_as_often_as_one_likes() -> None:
    one, two = engine(1), engine(2)
    [request] = one.submit(PROMPT, asks())
    for _ in range(4):
        one.step()
    packed = one.apply(Park(request.id))
    again = [two.apply(Resume(packed))[0] for _ in range(3)]
    to_end(two)
    assert len({tuple(r.output) for r in again}) == 1 and clean(two)


def test_statistics_and_deadlines_go_on() -> None:
    time = [100.0]
    one, two = (engine(1, order="deadline", now=lambda: time[0]) for _ in range(2))
    [request] = one.submit(PROMPT, asks(deadline_ms=5000.0))
    for _ in range(4):
        one.step()
    time[0] = 101.5
    packed, before = one.apply(Park(request.id)), request.stats
    time[0] = 7000.0
    [again] = two.apply(Resume(packed))
    assert again.arrival == 6998.5 and again.admitted == again.arrival
    assert again.stats == before and before.passes > 0
    with pytest.raises(PacelineError, match="deadline"):
        engine(1).apply(Resume(packed))


def test_held_back_text_is_shown_where_it_goes_on() -> None:
    """What may become a stop string is not shown when the request is parked in the midst of it."""
    alone = engine(1)
    [free] = alone.submit(PROMPT, asks(max_tokens=10))
    to_end(alone)
    stop = free.text[3:6]
    one, two = engine(1), engine(None)
    [request] = one.submit(PROMPT, asks(max_tokens=10, stop=[stop], drafter="none"))
    while len(request.output) < 4:
        one.step()
    packed = one.apply(Park(request.id))
    assert request.text == free.text[:3] and len(request.output) == 4
    [again] = two.apply(Resume(packed))
    to_end(two)
    assert again.text == free.text[: free.text.index(stop)] and again.finish == "stop"


def packed_request(**changes: Any) -> tuple[Engine, bytes]:
    one = engine(1)
    [request] = one.submit(PROMPT, asks(logprobs=1, prompt_logprobs=0, **changes))
    while len(request.output) < 5:
        one.step()
    return one, one.apply(Park(request.id))


def forged(packed: bytes, change: Any) -> bytes:
    """With another header, and a checksum that is right."""
    end = 16 + int.from_bytes(packed[8:16], "little")
    header = json.loads(packed[16:end])
    change(header)
    text = json.dumps(header).encode()
    body = packed[:8] + len(text).to_bytes(8, "little") + text + packed[end:-CHECKSUM_BYTES]
    return body + hashlib.sha256(body).digest()


def test_damaged_bytes_are_refused_and_nothing_changes() -> None:
    one, packed = packed_request()
    rng = random.Random(1)
    state = (list(one.cache.pool.free), dict(one.cache.pool.index), one.session._next_id)
    for number in range(1000):
        bad = bytearray(packed)
        match number % 4:
            case 0:
                bad[rng.randrange(len(bad))] ^= rng.randrange(1, 256)
            case 1:
                del bad[rng.randrange(len(bad)) :]
            case 2:
                at = rng.randrange(len(bad))
                del bad[at : at + rng.randint(1, 40)]
            case _:
                bad[rng.randrange(len(bad) + 1) : 0] = rng.randbytes(rng.randint(1, 40))
        if bytes(bad) == packed:
            continue
        with pytest.raises(InputError):
            one.apply(Resume(bytes(bad)))
    assert state == (list(one.cache.pool.free), dict(one.cache.pool.index), one.session._next_id)
    assert clean(one) and one.apply(Resume(packed))


BAD: dict[str, Any] = {
    "output id": lambda h: h["request"]["output"].__setitem__(0, 10**6),
    "prompt id": lambda h: h["request"]["prompt"].__setitem__(0, -1),
    "no drafter": lambda h: h["request"].pop("drafter"),
    "more": lambda h: h["request"].update(lease=1),
    "number for text": lambda h: h["request"].update(drafter=3),
    "text for number": lambda h: h["request"].update(seed="7"),
    "fraction": lambda h: h["request"]["prompt"].__setitem__(0, 1.5),
    "seed": lambda h: h["request"].update(seed=1 << 64),
    "round": lambda h: h["request"].update(round=-1),
    "lineage": lambda h: h["request"].update(lineage=[-3]),
    "authors": lambda h: h["request"]["authors"].pop(),
    "logprobs lost": lambda h: h["request"].update(logprobs=[]),
    "logprobs of others": lambda h: h["request"]["logprobs"][0].update(token=(h["request"]["output"][0] + 1) % VOCAB),
    "logprobs beyond": lambda h: h["request"]["logprobs"][0].update(top={"99": 0.0}),
    "too many prompt logprobs": lambda h: h["request"]["prompt_logprobs"].extend([None] * 9),
    "max_tokens": lambda h: h["request"].update(max_tokens=2),
    "context": lambda h: h["request"].update(max_tokens=10**9),
    "stats": lambda h: h["request"]["stats"].update(passes=-5),
    "more kept than offered": lambda h: h["request"]["stats"].update(offered=[1], kept=[2]),
    "kept deeper": lambda h: h["request"]["stats"].update(offered=[1], kept=[1, 0]),
    "cached": lambda h: h["request"]["stats"].update(cached=1000),
    "waited": lambda h: h.update(age=1.0, waited=2.0),
    "logprob positive": lambda h: h["request"]["logprobs"][0].update(logprob=5.0),
    "logprob infinite": lambda h: h["request"]["logprobs"][0].update(logprob=float("inf")),
    "logprob impossible": lambda h: h["request"]["logprobs"][0].update(logprob=float("-inf")),
    "eos": lambda h: h.update(eos=[VOCAB]),
    "layout": lambda h: h.update(layout=[[400, 0, []]]),
    "layout order": lambda h: h.update(layout=[[3, 0, []], [2, 1, []]]),
    "layout hides": lambda h: h.update(layout=[[3, 1, [[1, 9]]], [5, 1, []]]),
    "layout negative": lambda h: h.update(layout=[[3, -1, []]]),
    "age": lambda h: h.update(age=-1.0),
    "age nan": lambda h: h.update(age=float("nan")),
    "block": lambda h: h.update(block=0),
    "first": lambda h: h.update(first=3),
    "first negative": lambda h: h.update(first=-3),
    "blocks": lambda h: h.update(blocks=10**9),
    "rows": lambda h: h.update(block=50),
    "groups": lambda h: h["groups"][0].__setitem__(2, -8),
    "a group of no bytes": lambda h: h.update(groups=[*h["groups"], ["empty", "form", 0]]),
    "groups twice": lambda h: h["groups"].append(h["groups"][0]),
    "groups swapped": lambda h: h["groups"].__setitem__(0, ["x", "y"]),
    "no groups": lambda h: h.update(groups=[]),
    "text": lambda h: h.update(text="xyz"),
    "model": lambda h: h.update(model="0" * 32),
    "temperature": lambda h: h["params"].update(temperature=-1.0),
    "temperature text": lambda h: h["params"].update(temperature="hot"),
    "stop id": lambda h: h["params"].update(stop_token_ids=[VOCAB]),
    "bias": lambda h: h["params"].update(logit_bias={"0": "much"}),
    "bias id": lambda h: h["params"].update(logit_bias={"99": 1.0}),
    "grammar": lambda h: h["params"].update(grammar={"kind": "regex", "text": "("}),
    "skip": lambda h: h["params"].update(skip_special_tokens=[]),
    "unknown parameter": lambda h: h["params"].update(heat=1),
    "verifier": lambda h: h["request"].update(verifier="wish"),
    "no request": lambda h: h.pop("request"),
    "list": lambda h: h.update(request=[]),
}


@pytest.mark.parametrize("name", BAD)
def test_made_up_bytes_are_refused_and_nothing_changes(name: str) -> None:
    one, packed = packed_request()
    assert forged(packed, lambda header: None)
    with pytest.raises(PacelineError) as told:
        one.apply(Resume(forged(packed, BAD[name])))
    assert str(told.value).count(". ") == 0 and clean(one)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"", "not a parked request"),
        (b"PACELN\x00", "format"),
        (PARKED_MAGIC[:7] + bytes([PARKED_MAGIC[7] + 1]) + bytes(60), f"format {PARKED_MAGIC[7] + 1}"),
        (PARKED_MAGIC + (1 << 63).to_bytes(8, "little") + bytes(60), "cut"),
        (PARKED_MAGIC + bytes(8), "cut"),
    ],
)
def test_what_is_no_parked_request_is_refused(bad: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        engine(1).apply(Resume(bad))


def test_a_nested_header_is_refused() -> None:
    text = b"[" * 100_000
    body = PARKED_MAGIC + len(text).to_bytes(8, "little") + text
    with pytest.raises(InputError, match="cannot be read"):
        engine(1).apply(Resume(body + hashlib.sha256(body).digest()))


@pytest.mark.parametrize(
    ("sizes", "count", "message"), [([0], 1 << 40, "for a text of"), ([0, 8], 3, "without K/V"), ([], 3, "without K/V")]
)
def test_announced_blocks_are_bounded_before_memory_is_taken(sizes: list[int], count: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        taken(memoryview(bytes(sum(sizes) * 3)), sizes, count, block=2, length=20)


def test_two_fine_tunes_of_one_size_never_meet() -> None:
    one, packed = packed_request()
    other = engine(1, weights=5)
    [innocent] = other.submit(PROMPT, asks())
    to_end(other)
    with pytest.raises(InputError, match="another model"):
        other.apply(Resume(packed))
    [again] = other.submit(PROMPT, asks())
    to_end(other)
    assert again.output == innocent.output
    assert not set(one.cache.pool.index) & set(other.cache.pool.index)


def test_a_draft_of_another_size_is_left_out() -> None:
    one, packed = packed_request()
    config = EngineConfig(64, block_size=2, max_requests=4, row_budget=6, drafter="model", check=True)
    small = Toy(table(3))
    small.kv_bytes_per_token, small.identity = 4, "small"
    two = Engine(Toy(table(0)), config, components={"draft": small}, tokenizer=TOKENIZER, eos=(EOS,))
    [again] = two.apply(Resume(packed))
    to_end(two)
    [want] = one.submit(PROMPT, asks(logprobs=1, prompt_logprobs=0))
    to_end(one)
    assert seen(again) == seen(want) and clean(two)


def test_tenants_stay_apart() -> None:
    """K/V that came from elsewhere is found by its own request alone, whose key stays."""
    one, two = engine(1), engine(1)
    [request] = one.submit(PROMPT, asks())
    request.extra_key = "salt of A"
    while len(request.output) < 3:
        one.step()
    [again] = two.apply(Resume(one.apply(Park(request.id))))
    assert again.extra_key == "salt of A"
    to_end(two)
    [other] = two.submit(PROMPT, asks())
    to_end(two)
    assert again.stats.cached and not other.stats.cached and other.output == again.output


@pytest.mark.parametrize("settled", [False, True])
def test_kv_from_elsewhere_is_in_no_other_requests_text(settled: bool) -> None:
    """The checksum has no key, so K/V in parked bytes may be another text's."""
    _, packed = packed_request()
    end = 16 + int.from_bytes(packed[8:16], "little")
    wrong = array("q", packed[end:-CHECKSUM_BYTES])
    body = packed[:end] + array("q", [(token + 1) % VOCAB for token in wrong]).tobytes()
    bad = body + hashlib.sha256(body).digest()
    two, alone = engine(1), engine(1)
    if settled:
        [poisoned] = two.apply(Settle(two.apply(Reserve(20)), bad))
    else:
        [poisoned] = two.apply(Resume(bad))
    to_end(two)
    assert poisoned.stats.cached
    [shared], [other] = alone.submit(PROMPT, asks(seed=9)), two.submit(PROMPT, asks(seed=9))
    to_end(alone, two)
    assert other.output == shared.output and not other.stats.cached and clean(two)


def test_a_choice_of_drafters_ends_where_nothing_is_chosen() -> None:
    config = EngineConfig(64, block_size=2, max_requests=4, row_budget=6, drafter="auto", check=True)
    parts = {"draft": Toy(table(0) + 0.7 * table(1))}
    one, two = Engine(Toy(table(0)), config, components=parts, tokenizer=TOKENIZER, eos=(EOS,)), engine(2)
    [request] = one.submit(PROMPT, asks(max_tokens=60))
    while not request.output:  # a step may be a run of several passes, each with its draft
        one.step()
    assert request.finish is None
    [again] = two.apply(Resume(one.apply(Park(request.id))))
    assert (request.drafter, again.drafter, again.arms) == ("auto", "model", ())
    to_end(two)
    assert not two.drafters.errors and again.stats.drafted > request.stats.drafted


def test_functions_stay_where_they_are() -> None:
    one = Setting().engine()
    [request] = one.submit([1], asks(processors=(lambda prompt, output, logits: logits,)))
    with pytest.raises(RefusalError, match="processors"):
        one.apply(Park(request.id))
    assert request.finish is None


def test_a_request_without_room_for_its_kv_computes_it_again() -> None:
    one, packed = packed_request()
    config = EngineConfig(12, block_size=2, max_requests=4, row_budget=6, check=True)
    two = Engine(Toy(table(0)), config, tokenizer=TOKENIZER, eos=(EOS,))
    [other] = two.submit([0, 1], asks(seed=1, max_tokens=18))
    while len(other.output) < 16:
        two.step()
    [again] = two.apply(Resume(packed))
    to_end(two)
    [want] = one.submit(PROMPT, asks(logprobs=1, prompt_logprobs=0))
    to_end(one)
    assert seen(again)[:5] == seen(want)[:5]
