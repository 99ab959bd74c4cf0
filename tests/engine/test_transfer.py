"""Requests that are copied while they run, and go on elsewhere."""

import random
from typing import Any

import pytest

from paceline.core.errors import CapacityError, InputError, PacelineError
from paceline.core.handover import FINAL_STATES, Handover
from paceline.core.operations import Abort, Park, Peek, Reserve, Resume, Settle
from paceline.core.request import Request
from paceline.engine.loop import Engine
from paceline.simulate.log import Event
from paceline.simulate.record import record
from paceline.simulate.replay import replay
from tests.engine.test_park import PROMPT, asks, clean, engine, forged, seen, to_end


def moved(one: Engine, two: Engine, request: Request, rng: random.Random, lossy: float = 0.0) -> tuple[Request, int]:
    """Move a request as a `Handover` says; who it is afterwards, and the steps for which it stood still."""
    move, number, parked, still = Handover(), 0, b"", 0
    final = request
    while move.state not in FINAL_STATES:
        event, blocks, left = "done", 0, 0
        try:
            match move.action:
                case "reserve":
                    number = two.apply(Reserve(30))
                case "copy":
                    before = move.copied
                    blocks = two.apply(Settle(number, one.apply(Peek(request.id, before)))) - before
                    for _ in range(rng.randint(0, 2)):
                        if one.busy:
                            one.step()
                case "park":
                    parked = one.apply(Park(request.id, move.copied))
                case "settle":
                    still += 1
                    [final] = two.apply(Settle(number, parked))
                case "restore":
                    [final] = one.apply(Resume(parked))
                case "release":
                    two.apply(Settle(number, None))
        except CapacityError:
            event = "refused"
        except InputError:
            event = "gone" if request.finish not in (None, "parked") else "refused"
        if rng.random() < lossy and move.action == "settle":
            event = "lost"
        move = move.step(event, blocks, left)  # type: ignore[arg-type]
    return final, still


@pytest.mark.parametrize("seed", range(12))
def test_moved_requests_say_what_they_would_have_said(seed: int) -> None:
    rng = random.Random(seed)
    alone, one, two = engine(1), engine(1), engine([1, 2, None][seed % 3])
    logs: list[list[Event]] = [[], []]
    for each, log in zip((one, two), logs):
        record(each, log.append)
    params = asks(logprobs=1, max_tokens=20)
    want = [alone.submit(PROMPT[i:], params)[0] for i in range(3)]
    going = [one.submit(PROMPT[i:], params)[0] for i in range(3)]
    to_end(alone)
    for _ in range(rng.randint(0, 7)):
        one.step()
    final, stood = [], 0
    for request in going:
        if request.finish is None:
            request, still = moved(one, two, request, rng, lossy=0.3)
            stood = max(stood, still)
        final.append(request)
    to_end(one, two)
    assert [seen(r) for r in final] == [seen(r) for r in want]
    assert clean(one) and clean(two) and not two.desk.reserved
    assert all(replay(log).difference is None for log in logs)


def test_a_reservation_holds_blocks_until_its_time_is_over() -> None:
    time = [0.0]
    two = engine(1, now=lambda: time[0])
    number = two.apply(Reserve(10, seconds=2.0, spare=5))
    assert two.cache.room() == two.cache.num_blocks - 10
    two.cache.check_integrity()
    with pytest.raises(CapacityError, match="are free"):
        two.apply(Reserve(60))
    for seconds in (0, -1, 1e9, float("inf"), float("nan")):
        with pytest.raises(InputError, match="number of seconds"):
            two.apply(Reserve(1, seconds=seconds))
    time[0] = 2.5
    with pytest.raises(InputError, match="run out"):
        two.apply(Settle(number, packed_piece()))
    assert two.cache.room() == two.cache.num_blocks and clean(two)
    assert two.apply(Settle(number, None)) == 0


def packed_piece(prompt: list[int] = PROMPT, first: int = 0) -> bytes:
    one = engine(1)
    [request] = one.submit(prompt, asks())
    while len(request.output) < 3:
        one.step()
    piece: bytes = one.apply(Peek(request.id, first))
    return piece


def test_held_blocks_give_way_to_those_who_run() -> None:
    from paceline.engine.config import EngineConfig
    from tests.lossless.cases import EOS, TOKENIZER
    from tests.toy import Toy, table

    two = Engine(
        Toy(table(0)),
        EngineConfig(10, block_size=2, max_requests=4, row_budget=6, check=True),
        tokenizer=TOKENIZER,
        eos=(EOS,),
    )
    number = two.apply(Reserve(7))
    [request] = two.submit([1, 2, 3], asks(max_tokens=16, drafter="none"))
    to_end(two)
    assert len(request.output) == 16 and not two.desk.reserved
    with pytest.raises(InputError, match="no reservation"):
        two.apply(Settle(number, packed_piece()))
    assert clean(two)


def test_settling_is_answered_twice_alike() -> None:
    one, two = engine(1), engine(1)
    [request] = one.submit(PROMPT, asks())
    while len(request.output) < 3:
        one.step()
    number = two.apply(Reserve(20))
    copied = two.apply(Settle(number, one.apply(Peek(request.id))))
    assert copied and two.apply(Settle(number, one.apply(Peek(request.id)))) == copied
    parked = one.apply(Park(request.id, copied))
    [first] = two.apply(Settle(number, parked))
    assert two.apply(Settle(number, parked)) == [first]
    to_end(two)
    assert first.stats.cached >= copied * 2
    with pytest.raises(InputError, match="has ended"):
        two.apply(Settle(number, parked))
    with pytest.raises(InputError, match="lacks the K/V"):
        two.apply(Resume(parked))
    assert clean(one) and clean(two)


BAD: dict[str, Any] = {
    "tokens": lambda h: h["tokens"].__setitem__(0, 99),
    "fewer tokens": lambda h: h["tokens"].pop(),
    "first": lambda h: h.update(first=-1),
    "later first": lambda h: h.update(first=7),
    "block": lambda h: h.update(block=4),
    "no block": lambda h: h.update(block=0),
    "blocks": lambda h: h.update(blocks=99),
    "groups": lambda h: h["groups"].pop(),
    "forms": lambda h: h["groups"][1].__setitem__(1, "0" * 32),
    "model": lambda h: h.update(model="x"),
    "layout": lambda h: h.update(layout=[[1, 5, []]]),
    "key": lambda h: h.update(extra_key=4),
}


@pytest.mark.parametrize("name", BAD)
def test_made_up_pieces_are_refused(name: str) -> None:
    two = engine(1)
    number = two.apply(Reserve(20))
    with pytest.raises(PacelineError):
        two.apply(Settle(number, forged(packed_piece(), BAD[name])))
    two.apply(Settle(number, None))
    assert clean(two)


def test_pieces_of_two_requests_do_not_mix() -> None:
    two = engine(1)
    number = two.apply(Reserve(20))
    assert two.apply(Settle(number, packed_piece())) > 2
    with pytest.raises(InputError, match="another request"):
        two.apply(Settle(number, packed_piece([2, *PROMPT[1:]])))
    one = engine(1)
    [other] = one.submit([2, *PROMPT[1:]], asks())
    for _ in range(2):
        one.step()
    with pytest.raises(InputError, match="another one than the pieces"):
        two.apply(Settle(number, one.apply(Park(other.id))))
    rng = random.Random(0)
    piece = packed_piece()
    for _ in range(100):
        bad = bytearray(piece)
        bad[rng.randrange(len(bad))] ^= rng.randrange(1, 256)
        with pytest.raises(InputError):
            two.apply(Settle(number, bytes(bad)))
    two.apply(Settle(number, None))
    assert clean(two) and not two.cache.pool.index


def test_a_request_that_ends_meanwhile_leaves_nothing() -> None:
    one, two = engine(1), engine(1)
    [request] = one.submit(PROMPT, asks())
    for _ in range(3):
        one.step()
    number = two.apply(Reserve(20))
    two.apply(Settle(number, one.apply(Peek(request.id))))
    one.apply(Abort(request.id))
    with pytest.raises(InputError, match="has ended"):
        one.apply(Peek(request.id))
    two.apply(Settle(number, None))
    assert clean(one) and clean(two)
