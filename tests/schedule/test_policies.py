"""Names, and what is refused."""

import pytest

from paceline.core.errors import InputError, RefusalError
from paceline.core.params import SamplingParams
from paceline.schedule import policies
from paceline.schedule.chunked import Chunked
from paceline.schedule.exspec import Grouped
from tests.schedule.population import Stairs


def test_every_name_makes_a_policy() -> None:
    for schedule in policies.SCHEDULES:
        for order in policies.ORDERS:
            made = policies.policy(schedule, order, 64, layers=3)
            assert made.turn([], 0.0) == [] and made.rows([], 0.0) == 64 and made.order([], 0.0) == []
    made = policies.policy("chunked", "fcfs", 64, tbt_target_ms=250.0, forecast=Stairs(), group_size=2)
    assert isinstance(made, Grouped) and isinstance(made.inner, Chunked) and made.inner.target == 0.25


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"schedule": "lifo"}, InputError, "Unknown schedule 'lifo'; known are chunked, layered, prefill_first"),
        ({"order": "lifo"}, InputError, "Unknown order 'lifo'; known are fcfs, priority, deadline, fair"),
        ({"tbt_target_ms": -1.0}, InputError, "tbt_target_ms is -1.0"),
        ({"group_size": 0}, InputError, "group_size is 0"),
        ({"tbt_target_ms": 9.0, "schedule": "prefill_first"}, RefusalError, "tbt_target_ms and schedule prefill_first"),
        ({"layer_groups": 0, "schedule": "layered"}, InputError, "layer_groups is 0"),
        ({"layer_groups": 2}, RefusalError, "layer_groups and schedule chunked cannot be combined"),
        ({"schedule": "layered"}, RefusalError, "schedule layered needs a model whose rows can wait"),
        ({"tbt_target_ms": 9.0}, RefusalError, "tbt_target_ms needs step times"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        policies.policy(**{"schedule": "chunked", "order": "fcfs", "row_budget": 64, **wrong})


@pytest.mark.parametrize(("wish", "order"), [({"priority": 1}, "priority"), ({"deadline_ms": 5.0}, "deadline")])
def test_a_wish_that_the_order_would_ignore_is_refused(wish: dict, order: str) -> None:
    policies.check_wishes(SamplingParams(**wish), order)
    with pytest.raises(RefusalError, match=f"{next(iter(wish))} and order fair cannot be combined"):
        policies.check_wishes(SamplingParams(**wish), "fair")
