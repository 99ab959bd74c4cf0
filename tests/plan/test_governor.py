"""The governor's account: exact where plain's price is known, bounded loss whatever the planner believes."""

import random

import pytest

from paceline.core.plan import Work
from paceline.plan.cost import StepTimes, Terms, Times
from paceline.plan.governor import CREDIT_STEPS, LOSS, MOST_KEYS, Governor

PLAIN = 0.02


def work(requests: int = 1, rows: int = 1, passes: int = 1) -> Work:
    return Work(rows, requests, 0, 0, rows, passes)


def measured() -> StepTimes:
    """A table that has seen a plain step."""
    times = StepTimes()
    times.observe(work(), [], Times(0.9 * PLAIN, {}, 0.1 * PLAIN))
    times.rest = Terms({"call": 0.1 * PLAIN / times.speed, "several": 0.1 * PLAIN, "requests": 0.0, "nodes": 0.0})
    return times


def rest(governor: Governor, count: int = 1, seconds: float = PLAIN) -> None:
    for _ in range(count):
        took = Times(0.9 * seconds, {}, 0.1 * seconds)
        governor.rested(work(), took)
        governor.times.observe(work(), [], took)


def draft(governor: Governor, seconds: float, tokens: int, key: str = "") -> None:
    governor.drafted(work(1, 4), seconds, {key: (1, tokens)}, tokens, False)


def test_the_account_is_the_difference_to_plain_decoding() -> None:
    governor = Governor(measured())
    rest(governor, 3)
    for tokens in (1, 2, 4, 3):
        draft(governor, 1.5 * PLAIN, tokens)
    assert governor.saved == pytest.approx(10 * PLAIN - 4 * 1.5 * PLAIN)
    assert governor.seconds == pytest.approx((3 + 4 * 1.5) * PLAIN)


@pytest.mark.parametrize("seed", range(5))
def test_no_more_than_the_credit_and_a_share_of_the_time_is_lost(seed: int) -> None:
    """A planner that drafts whenever it may, with drafts that bring nothing and take any time."""
    rng, governor, plain = random.Random(seed), Governor(measured()), 0.0
    rest(governor)
    for _ in range(3000):
        if governor.stops() or governor.due():
            rest(governor)
        else:
            draft(governor, PLAIN * rng.uniform(1.1, 3.0), 1)
        plain += PLAIN
    assert governor.seconds <= plain * (1 + 1.1 * LOSS) + (CREDIT_STEPS + 4) * PLAIN


def test_a_text_that_was_read_is_paid_for_by_its_answer() -> None:
    """Reading takes four times the credit. It stops nobody whose drafts save as much."""
    governor = Governor(measured())
    rest(governor)
    for _ in range(4):
        governor.shared(30 * PLAIN, 4 * CREDIT_STEPS * PLAIN, {"": 4 * CREDIT_STEPS * PLAIN})
        for _ in range(32):
            assert not governor.stops()
            draft(governor, PLAIN, 2)
    assert governor.saved == pytest.approx(4 * (32 - 4 * CREDIT_STEPS) * PLAIN)


def test_reading_for_a_bet_counts_what_was_read_before() -> None:
    """What a text's reading takes is booked later; until then it leaves no room to read others on the same hope."""
    governor = Governor(measured())
    rest(governor)
    before = governor.room(reads=True)
    governor.shared(PLAIN, 4 * PLAIN, {"": 4 * PLAIN})
    assert governor.room(reads=True) == pytest.approx(before - 4 * PLAIN, rel=0.05)
    assert governor.room() == pytest.approx(before, rel=0.05)


def test_texts_that_were_read_for_nothing_are_booked_in_full() -> None:
    """Each answer of 64 tokens is drafted for without any use while the governor lets it, after its text was read."""
    governor, reading, texts = Governor(measured()), 4 * CREDIT_STEPS * PLAIN, 400
    rest(governor)
    for _ in range(texts):
        if not governor.stops():
            governor.shared(reading, reading, {"": reading})
        for _ in range(64):
            if governor.stops() or governor.due():
                rest(governor)
            else:
                draft(governor, 1.5 * PLAIN, 1)
    plain = 64 * texts * PLAIN
    assert governor.seconds <= plain * (1 + 1.1 * LOSS) + (CREDIT_STEPS + 4) * PLAIN + 5 * reading


def test_what_was_saved_long_ago_pays_for_little() -> None:
    governor = Governor(measured())
    rest(governor)
    for _ in range(500):
        draft(governor, PLAIN, 4)
    lost = 0
    while not governor.stops():
        draft(governor, 2 * PLAIN, 1)
        lost += 1
    assert CREDIT_STEPS < lost <= 2 * CREDIT_STEPS + 3 and governor.saved > 0


def test_a_slower_machine_is_not_booked_as_a_loss() -> None:
    """Steps and plain steps take twice as long all of a sudden, while drafts save half of the time."""
    governor = Governor(measured())
    rest(governor, 20)
    for _ in range(6):
        for _ in range(96):
            draft(governor, 2 * PLAIN, 2)
        rest(governor, 8, 2 * PLAIN)
    assert not governor.stops() and governor.saved > 0.5 * 4 * 96 * PLAIN


def test_a_wrong_price_of_a_plain_step_is_mended_by_plain_steps() -> None:
    """The table says half of what a plain step takes; drafts bring nothing and take a third more."""
    times = measured()
    times.speed, governor = 0.5 * times.speed, Governor(times)
    times.rest = times.rest.scaled(0.5)
    for _ in range(12):
        rest(governor, 4)
        before = governor.saved
        draft(governor, 4 / 3 * PLAIN, 1)
    assert governor.saved - before == pytest.approx(-PLAIN / 3, rel=0.1)


def test_drafted_steps_are_booked_again_at_the_price_that_is_known_by_then() -> None:
    """The start-up table says twice what a plain step takes, until another pass mends it before the first plain one."""
    times = measured()
    times.speed, times.plains, governor = 2 * times.speed, 0, Governor(times)
    for _ in range(50):
        draft(governor, PLAIN, 2)
    times.speed /= 2
    rest(governor)
    assert governor.saved == pytest.approx(50 * PLAIN, rel=0.02)


def test_the_table_tells_the_speed_between_plain_steps() -> None:
    governor = Governor(measured())
    rest(governor, 20, 1.1 * PLAIN)
    governor.times.speed *= 2
    assert governor.pass_seconds(1, 0) == pytest.approx(2.2 * PLAIN, rel=0.02)


def test_a_key_that_loses_is_stopped_and_others_are_not() -> None:
    governor = Governor(measured())
    rest(governor)
    for _ in range(150):
        governor.drafted(work(2, 6), 1.2 * PLAIN, {"a": (1, 4), "b": (1, 1)}, 5, False)
    assert governor.stops("b") and not governor.stops("a") and not governor.stops()


def test_names_that_clients_choose_are_bounded() -> None:
    """What a key has lost is not forgotten while others come and go."""
    governor = Governor(measured())
    rest(governor)
    for _ in range(150):
        governor.drafted(work(2, 6), 1.2 * PLAIN, {"a": (1, 4), "b": (1, 1)}, 5, False)
    for number in range(2 * MOST_KEYS):
        draft(governor, PLAIN, 1, f"client {number}")
    rest(governor)
    assert len(governor.lost) == MOST_KEYS and "" in governor.lost and governor.stops("b")


def test_a_plain_step_is_due_now_and_then() -> None:
    governor = Governor(measured())
    rest(governor)
    passes = 0
    while not governor.due():
        draft(governor, PLAIN, 4)
        passes += 1
    assert passes == pytest.approx(1 / LOSS, abs=2), "a plain step costs no more than that share of the time"
    rest(governor)
    assert not governor.due()


def test_without_a_table_the_first_decoding_step_is_plain() -> None:
    """A first step that also read the weights took as long as 20 plain ones; drafts are booked by the plain one."""
    times = StepTimes()
    governor = Governor(times)
    times.observe(Work(1, 1, 0, 0, 1), [], Times(20 * PLAIN, {}, 0.0))
    times.plains = 0
    assert governor.blind and governor.due()
    rest(governor)
    assert not governor.blind and not governor.due()
    assert governor.pass_seconds(1, 0) == pytest.approx(PLAIN, rel=0.05)
    draft(governor, PLAIN, 1)
    assert governor.saved == pytest.approx(0.0, abs=0.1 * PLAIN)
