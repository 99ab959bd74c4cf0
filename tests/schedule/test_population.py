"""Random populations under every schedule, order and group size: what must hold of each plan and of the whole."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.schedule.policies import ORDERS, SCHEDULES
from tests.schedule.population import Arrival, Population

arrivals = st.lists(
    st.builds(
        Arrival,
        at=st.integers(0, 30),
        prompt=st.integers(1, 60),
        output=st.integers(1, 20),
        priority=st.integers(-3, 3),
        deadline_ms=st.none() | st.integers(1, 90_000),
        user=st.sampled_from(["", "a", "b"]),
        client=st.sampled_from(["", "x", "y"]),
    ),
    min_size=1,
    max_size=14,
)
populations = st.builds(
    Population,
    arrivals,
    order=st.sampled_from(list(ORDERS)),
    blocks=st.integers(20, 60),
    budget=st.sampled_from([8, 17, 32, 64]),
    nodes=st.integers(0, 5),
    places=st.integers(1, 8),
    group_size=st.none() | st.integers(1, 4),
    seed=st.integers(0, 9),
)


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=50, deadline=None)
@given(population=populations)
def test_everybody_is_served_once_by_valid_plans(schedule: str, population: Population) -> None:
    """`Population.step` checks each plan: rows within the budget, no decode stalled by a chunk, chunks without gap or
    overlap, the cache's books; and everybody ends, in a time that the work bounds."""
    done = replace(population, schedule=schedule, requests=[], log=[], first=[], ended={}).run(4000)
    for request, arrival in zip(done.requests, sorted(done.arrivals, key=lambda a: a.at), strict=True):
        assert request.finish == "length" and len(request.output) == arrival.output
    assert done.desk.cache.room() == done.blocks


@settings(max_examples=60, deadline=None)
@given(population=populations, target=st.none() | st.integers(1, 4))
def test_equal_states_make_equal_plans(population: Population, target: int | None) -> None:
    runs = [replace(population, target=target, requests=[], log=[], first=[], ended={}).run() for _ in range(2)]
    assert runs[0].log == runs[1].log


@settings(max_examples=100, deadline=None)
@given(population=populations)
def test_prompts_begin_in_the_order_of_their_arrival(population: Population) -> None:
    """All but those of one token, which need no chunk."""
    alone = [replace(a, client="") for a in population.arrivals]
    done = replace(population, arrivals=alone, order="fcfs", requests=[], log=[], first=[], ended={}).run()
    first = [i for i in done.first if len(done.requests[i].prompt) > 1]
    assert first == sorted(first)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("group_size", [None, 1])
def test_who_is_pre_empted_was_the_last_in_order(schedule: str, group_size: int | None) -> None:
    """Victims are the last in order among all that hold blocks, waiting turns included: `Population.step` checks it."""
    crowd = [Arrival(i, 10, 40) for i in range(12)]
    done = Population(crowd, schedule, blocks=24, nodes=0, group_size=group_size).run()
    assert done.preemptions > 0


def test_a_whole_prompt_is_reserved_when_it_is_admitted() -> None:
    """Admitting by the next chunk alone lets prompts throw one another out (vLLM #21809). Six prompts of which the pool
    holds two: nobody is pre-empted, nothing is computed twice."""
    crowd = [Arrival(0, 60, 1) for _ in range(6)]
    done = Population(crowd, blocks=32, budget=16, nodes=0).run()
    assert done.preemptions == 0 and done.given == 6 * 60


def test_a_prompt_goes_on_when_less_important_decodes_want_its_blocks() -> None:
    """The order decides who gives way, not who asks first: the urgent prompt is not thrown out half computed."""
    crowd = [*(Arrival(0, 4, 40) for _ in range(4)), Arrival(3, 100, 4, priority=-2)]
    done = Population(crowd, order="priority", blocks=36, budget=16, nodes=0).run()
    assert done.requests[4].stats.preempted == 0 and done.preemptions > 0
    assert done.ended[4] < min(done.ended[i] for i in range(4))
