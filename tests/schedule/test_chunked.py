"""Rows of a step: the most that meet the target, to a panel's panel, and never fewer than decodes and a chunk."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.params import SamplingParams
from paceline.core.plan import PROMPT_RESERVE_ROWS, Work
from paceline.core.request import Request
from paceline.schedule.chunked import SCORED_ROWS, Chunked, steps, work
from paceline.schedule.orders import fcfs
from tests.schedule.population import Arrival, Population, Stairs


@dataclass
class Held:
    length: int
    layer: int = 0
    reserved: int = 0


def request(i: int, tokens: int, computed: int) -> Request:
    r = Request(i, [0] * tokens, SamplingParams(), 0, max_tokens=50)
    r.lease = Held(computed)
    return r


def crowd(decoding: int, *prompts: int, context: int = 9) -> list[Request]:
    return [request(i, context, context - 1) for i in range(decoding)] + [
        request(decoding + i, tokens, 0) for i, tokens in enumerate(prompts)
    ]


@pytest.mark.parametrize(
    ("target", "decoding", "prompts", "rows"),
    [
        (0.0, 3, (500,), 512),  # none
        (None, 3, (500,), 64),  # four plain steps
        (None, 40, (500,), 192),
        (None, 3, (), 512),  # nobody waits for rows: drafts have their own price
        (4.0, 3, (500,), 64),
        (4.9, 3, (500,), 64),
        (4.0, 0, (500,), 512),  # nobody waits for a token
        (0.5, 3, (500,), 3 + PROMPT_RESERVE_ROWS),  # unreachable: the least chunk
        (0.5, 3, (5,), 8),
        (0.5, 3, (), 3),
        (2.0, 40, (500,), 40 + PROMPT_RESERVE_ROWS),
        (4.0, 40, (500,), 64),
    ],
)
def test_rows(target: float | None, decoding: int, prompts: tuple[int, ...], rows: int) -> None:
    policy = Chunked(fcfs, 512, target, Stairs())
    assert policy.rows(crowd(decoding, *prompts), 0.0) == rows


def test_prompts_whose_log_probabilities_are_told_come_in_small_chunks_while_somebody_decodes() -> None:
    told = Request(9, [0] * 500, SamplingParams(prompt_logprobs=20), 0, max_tokens=1)
    told.lease = Held(0)
    for target in (None, 9.0):
        policy = Chunked(fcfs, 512, target, Stairs(scale=0.001))
        assert policy.rows([*crowd(3), told], 0.0) == SCORED_ROWS, "to a panel's edge"
        assert policy.rows([told], 0.0) == policy.rows(crowd(3, 500), 0.0) == 512


def test_the_default_target_is_a_tenth_of_a_second_where_steps_are_short() -> None:
    policy = Chunked(fcfs, 512, None, Stairs(scale=0.01))
    assert policy.rows(crowd(3, 500), 0.0) == 160


@pytest.mark.parametrize(("decoding", "rows"), [(3, 64), (60, 60 + PROMPT_RESERVE_ROWS), (0, 512)])
def test_an_unmeasured_machine_reads_short_chunks_while_somebody_decodes(decoding: int, rows: int) -> None:
    assert Chunked(fcfs, 512, None, Stairs(measured=False)).rows(crowd(decoding, 500), 0.0) == rows


def test_longer_texts_leave_fewer_rows() -> None:
    policy = Chunked(fcfs, 512, 8.0, Stairs(per_context=0.01))
    assert policy.rows(crowd(4, 500, context=9), 0.0) == 112
    assert policy.rows(crowd(4, 500, context=101), 0.0) == 64


def ended(prompts: list[int], rows: int) -> int:
    """Number of prompts, in order, that `rows` rows complete."""
    return sum(sum(prompts[: i + 1]) <= rows for i in range(len(prompts)))


@given(st.integers(1, 30), st.lists(st.integers(2, 90), max_size=4), st.integers(0, 120))
def test_work_is_as_many_rows_as_said(decoding: int, prompts: list[int], more: int) -> None:
    made = work(crowd(decoding, *prompts), decoding + more)
    assert made.rows == decoding + more
    assert made.logits == decoding + max(0, more - sum(prompts)) + ended(prompts, more)
    assert made.context == 8 * decoding and made.pairs >= 8 * decoding


def test_with_a_target_no_step_is_longer_while_somebody_decodes() -> None:
    """Long prompts among decodes: the steps stay within the target, and the least chunk keeps the prompts going."""
    arrivals = [*(Arrival(0, 4, 400) for _ in range(4)), *(Arrival(5 + 9 * i, 400, 4) for i in range(4))]
    loose = Population(arrivals, blocks=999, budget=256, nodes=3, target=0.0)
    tight = Population(arrivals, blocks=999, budget=256, nodes=3, target=2.0)
    steps = [[sum(g + n for _, g, n in items) for items, _ in p.run().log[5:60]] for p in (loose, tight)]
    assert max(steps[0]) > 200 and max(steps[1]) <= 32
    assert len(tight.ended) == len(arrivals)


def test_nodes_do_not_eat_the_least_chunk() -> None:
    arrivals = [*(Arrival(0, 4, 90) for _ in range(6)), Arrival(5, 300, 2)]
    done = Population(arrivals, blocks=300, budget=40, nodes=12).run()
    chunks = [given for items, _ in done.log for id, given, _ in items if id == 6 and given > 1]
    assert sum(chunks) == 300 and min(chunks[:-1]) >= PROMPT_RESERVE_ROWS


@dataclass
class Passes:
    """Seconds of a pass: `read` once, and some for each row and each row that a row reads."""

    read: float
    row: float = 1e-3
    pair: float = 0.0
    measured: bool = True

    def predict(self, work: Work) -> float:
        return self.read + self.row * work.rows + self.pair * work.pairs

    like_latest = predict


@pytest.mark.parametrize(
    ("read", "prompts", "budget", "rows"),
    [
        (0.5, (4000,), 2048, 2048),  # weights are read once a chunk
        (0.5, (4000,), 1024, 1024),
        (0.5, (500,), 2048, 512),  # it is one chunk in any case
        (0.5, (600, 300), 2048, 1024),
        (0.0, (4000,), 2048, 512),  # more is no sooner
        (0.5, (4000,), 100, 100),
    ],
)
def test_while_nobody_decodes_prompts_have_the_rows_that_read_them_soonest(
    read: float, prompts: tuple[int, ...], budget: int, rows: int
) -> None:
    assert Chunked(fcfs, budget, None, Passes(read)).rows(crowd(0, *prompts), 0.0) == rows
    assert Chunked(fcfs, budget, 0.0, Passes(read)).rows(crowd(0, *prompts), 0.0) == rows
    assert Chunked(fcfs, budget, None, Passes(read, measured=False)).rows(crowd(0, *prompts), 0.0) <= 512


@given(st.integers(0, 4), st.lists(st.integers(2, 3000), min_size=1, max_size=4), st.integers(5, 2048))
def test_steps_read_every_prompt_once_and_exceed_no_budget(decoding: int, prompts: list[int], rows: int) -> None:
    found = [*steps(crowd(decoding, *prompts), rows)]
    assert sum(it.rows for it in found) == sum(prompts) + decoding * len(found)
    assert all(it.rows <= rows for it in found)
    assert len(found) == -(-sum(prompts) // (rows - decoding))
