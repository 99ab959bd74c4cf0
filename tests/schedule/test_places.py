"""Shares of the clients in the places and rows of an engine: who comes later need not wait for those who have many."""

import pytest

from paceline.core.params import SamplingParams
from paceline.core.plan import Item
from paceline.core.request import Request
from paceline.schedule.places import ClientShares
from paceline.schedule.policies import ORDERS, SCHEDULES
from tests.schedule.population import Arrival, Population
from tests.schedule.test_chunked import Held

PLACES = 4


def population(order: str, *more: Arrival, count: int = 12, blocks: int = 400, prompt: int = 8) -> Population:
    """Client x comes first, with long outputs for thrice the places."""
    long = [Arrival(0, prompt, 200, user="x", client="x") for _ in range(count)]
    return Population([*long, *more], order=order, places=PLACES, nodes=0, blocks=blocks)


def began(done: Population, number: int) -> int:
    """The step in which a request was computed first."""
    return next(i for i, (items, _) in enumerate(done.log) if number in [request for request, _, _ in items])


@pytest.mark.parametrize("order", ORDERS)
def test_a_place_is_free_at_once_for_who_comes_later(order: str) -> None:
    done = population(order, Arrival(10, 8, 4, user="y", client="y")).run()
    assert began(done, 12) <= 12 and done.ended[12] <= 18
    assert done.preemptions == 1


@pytest.mark.parametrize("order", ORDERS)
def test_two_clients_hold_half_each_and_nobody_goes_back_and_forth(order: str) -> None:
    done = population(order, *(Arrival(10, 8, 200, user="y", client="y") for _ in range(12)))
    seen = []
    step = done.step

    def noted():  # type: ignore[no-untyped-def]
        plan = step()
        seen.append([r.params.client for r in done.desk.running].count("y"))
        return plan

    done.step = noted  # type: ignore[method-assign]
    done.run()
    assert set(seen[15:180]) == {PLACES // 2}
    assert done.preemptions <= 8


@pytest.mark.parametrize("order", ORDERS)
def test_blocks_that_one_client_fills_are_shared_too(order: str) -> None:
    """Two of its texts fill the cache, while places are left."""
    done = population(order, Arrival(40, 8, 4, user="y", client="y"), count=4, blocks=80, prompt=60).run()
    assert began(done, 4) <= 44


def test_long_prompts_of_one_client_do_not_stand_before_those_of_another() -> None:
    late = Arrival(2, 8, 1, user="y", client="y")
    done = Population([*(Arrival(0, 2000, 1, client="x") for _ in range(3)), late], nodes=0, blocks=2000).run()
    assert began(done, 3) <= 4


def test_rows_of_drafts_and_of_prompts_count_by_client() -> None:
    """Prompts of the client that was given fewer rows come first, whatever its rows were for."""
    shares = ClientShares(8)
    one, two, three = (Request(i, [0] * 9, SamplingParams(client=c), 0, max_tokens=9) for i, c in enumerate("xyx"))
    for r in (one, two, three):
        r.lease = Held(3)
    running = [one, two, three]
    assert shares.turned(running, running) == [one, two, three]
    shares.gave([Item(one, 1, 12, "ngram", "exact"), Item(two, 6, 0, "none", "exact")])
    assert shares.rows == {"x": 13, "y": 6}
    assert shares.turned(running, running) == [two, one, three]
    shares.gave([Item(two, 6, 3, "none", "exact")])
    assert shares.turned(running, running) == [one, two, three]
    late = Request(3, [0] * 9, SamplingParams(client="z"), 0, max_tokens=9)
    late.lease = Held(3)
    shares.turned([late, *running], [late, *running])
    assert shares.rows["z"] == 13, "who comes has no claim on what was given before"
    shares.turned([two], [two])
    assert shares.rows == {"y": 15}, "and who left is forgotten"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_names_of_a_user_make_no_clients(schedule: str) -> None:
    """Without keys a client may call itself anything."""
    names = [Arrival(0, 8, 20, user=name, client="x") for name in "abcdefgh"]
    done = Population([*names, Arrival(5, 8, 4, user="i", client="x")], schedule, places=PLACES, nodes=0).run()
    assert not done.preemptions


def test_one_place_goes_round_by_requests() -> None:
    done = Population([Arrival(0, 8, 20, client="x"), Arrival(1, 8, 4, client="y")], places=1, nodes=0).run()
    assert not done.preemptions and done.ended[0] < done.ended[1]
