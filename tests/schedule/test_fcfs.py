"""First come, first served: a pre-empted request keeps its place."""

from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.schedule.fcfs import FirstComeFirstServed


def test_order_is_by_arrival() -> None:
    requests = [Request(i, [1], SamplingParams(), 0) for i in (3, 0, 2)]
    assert [r.id for r in FirstComeFirstServed().order(requests, 0.0)] == [0, 2, 3]
