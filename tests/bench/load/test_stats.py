from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.bench.load.answer import ServerUsage, TimedAnswer
from paceline.bench.load.stats import Spread, meets, most_in_flight, parse_slo, summarize
from paceline.core.errors import InputError


def answer(
    intended: float, first: float, last: float, ended: float, tokens: int, sent: float | None = None
) -> TimedAnswer:
    return TimedAnswer(
        intended, sent=intended if sent is None else sent, first=first, last=last, ended=ended,
        gaps=array("d", [last - first]), usage=ServerUsage(10, tokens), finished=True,
    )  # fmt: skip


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=60))
def test_percentiles(values: list[float]) -> None:
    spread = Spread.of([None, *values])
    assert spread is not None
    for name, q in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("max", 100)):
        assert getattr(spread, name) == pytest.approx(np.percentile(values, q) * 1e3)
    assert spread.mean == pytest.approx(sum(values) / len(values) * 1e3)


def test_percentiles_interpolate() -> None:
    spread = Spread.of(i / 1e3 for i in range(101))
    assert spread == Spread(50.0, 50.0, 90.0, 95.0, 99.0, 100.0)
    assert Spread.of([0.0, 0.01]).p90 == pytest.approx(9.0)  # type: ignore[union-attr]
    assert Spread.of([None]) is None


def test_summary_of_two_successes_and_two_failures() -> None:
    answers = [
        answer(0.0, 0.1, 1.0, 1.0, 10),
        answer(1.0, 1.5, 3.5, 4.0, 5, sent=1.25),
        TimedAnswer(2.0, sent=2.0, ended=2.1, error="HTTP 429", detail="The queue is full."),
        TimedAnswer(3.0, sent=3.0, ended=3.5, first=3.2, last=3.2, error="closed", detail="The server closed."),
    ]
    s = summarize(answers, {"ttft": 200.0})
    assert (s.requests, s.completed, s.errors) == (4, 2, {"HTTP 429": 1, "closed": 1})
    assert s.examples["HTTP 429"] == "The queue is full."
    assert (s.seconds, s.requests_per_second, s.tokens_per_second) == (4.0, 0.5, 15 / 4)
    assert s.ttft and s.ttft.max == pytest.approx(500) and s.ttft_sent and s.ttft_sent.max == pytest.approx(250)
    assert s.e2e and s.e2e.max == pytest.approx(3000) and s.e2e_sent and s.e2e_sent.max == pytest.approx(2750)
    assert s.tpot and s.tpot.max == pytest.approx(500) and s.tbt and s.tbt.p50 == pytest.approx(1450)
    assert (s.goodput, s.within) == (0.25, 0.25), "one kept 200 ms; failures keep no SLO"
    assert s.tokens_per_chunk == 15 / 4 and s.prompt_tokens == 20 and s.counted
    assert s.in_flight == pytest.approx((1.0 + 3.0 + 0.1 + 0.5) / 4) and s.in_flight_max == 2


def test_tau_pools_tokens_over_passes() -> None:
    a, b = answer(0.0, 0.1, 1.0, 1.0, 10), answer(0.0, 0.1, 1.0, 1.0, 2)
    a.usage, b.usage = (
        ServerUsage(10, 10, 5, passes=2, drafted=8, accepted=6),
        ServerUsage(10, 2, 0, passes=2, drafted=8, accepted=0),
    )
    s = summarize([a, b, answer(0.0, 0.1, 1.0, 1.0, 50)])
    assert (s.tau, s.acceptance, s.cached) == (3.0, 6 / 16, 5 / 30), "who tells no passes plays no part"
    assert summarize([answer(0.0, 0.1, 1.0, 1.0, 50)]).tau is None


def test_nothing_at_all() -> None:
    s = summarize([], {"ttft": 1.0})
    assert (s.requests, s.goodput, s.within, s.ttft, s.tokens_per_chunk) == (0, 0.0, None, None, None)
    s = summarize([TimedAnswer(0.0)])
    assert s.errors == {"unfinished": 1} and s.in_flight_max == 0


def test_goodput_wants_every_bound() -> None:
    one = answer(0.0, 0.1, 1.0, 1.2, 10)  # TTFT 100, TPOT 100, E2E 1200
    assert meets(one, {"ttft": 100.1, "tpot": 100.1, "e2e": 1200.1})
    for name in ("ttft", "tpot", "e2e"):
        assert not meets(one, {"ttft": 1e4, "tpot": 1e4, "e2e": 1e4, name: 99.0})
    single = replace(one, usage=ServerUsage(10, 1))
    assert meets(single, {"tpot": 0.1}), "one token has no TPOT"


def test_bounds_are_read() -> None:
    assert parse_slo("ttft:200, tpot:50,e2e:2000.5") == {"ttft": 200.0, "tpot": 50.0, "e2e": 2000.5}
    for bad in ("", "ttft", "ttft:", "ttft:x", "ttft:0", "ttft:inf", "ttft:nan", "itl:5", "ttft:1,ttft:2"):
        with pytest.raises(InputError, match="--slo"):
            parse_slo(bad)


def test_in_flight_counts_from_arrival_to_end() -> None:
    spans = [(0.0, 2.0), (1.0, 3.0), (2.0, 4.0), (5.0, 6.0)]
    assert most_in_flight([TimedAnswer(a, ended=b) for a, b in spans]) == 2, "an end at 2 makes room at 2"
