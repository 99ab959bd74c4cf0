"""Counters of several engines together, and the account in words."""

from dataclasses import fields

from paceline.core.request import SpecStats
from paceline.engine.totals import Totals, added
from paceline.plan import Account


def full(number: int) -> Totals:
    stats = SpecStats()
    stats.count([1, 1], [1, 0])
    stats.passes, stats.generated = number, 2 * number
    drafters = {"ngram": stats, f"own {number}": stats}
    return Totals(number, number, number, {"ngram": number}, drafters, number, number, True, number, (f"why {number}",))


def test_no_counter_is_left_out() -> None:
    """A new field of `Totals` has to be added up, too."""
    both = added(full(1), full(2))
    for each in fields(Totals):
        assert getattr(both, each.name) != getattr(Totals(), each.name), each.name
    assert (both.saved_s, both.busy_s, both.stopped_keys, both.why) == (3, 3, 3, ("why 1", "why 2"))
    assert both.drafter_errors == {"ngram": 3} and both.drafters["ngram"].passes == 3
    assert both.drafters["own 2"].generated == 4 and both.drafters["ngram"].offered == [2, 2]


def test_an_engine_that_has_gone_says_nothing_about_now() -> None:
    gone = full(3).retired()
    assert (gone.stopped, gone.stopped_keys, gone.why) == (False, 0, ())
    assert gone.saved_s == 3 and gone.drafters == full(3).drafters


def test_a_policy_without_an_account_changes_none() -> None:
    totals = Totals()
    totals.account(Account(1.0, 4.0, True, 2), ("first",))
    totals.account(None, ())
    assert (totals.saved_s, totals.busy_s, totals.stopped, totals.stopped_keys) == (1.0, 4.0, True, 2)
    assert totals.why == ("first",)


def test_the_account_in_words() -> None:
    totals = Totals(saved_s=12.44, busy_s=60.1)
    assert totals.saved_words == "speculation saved 12.4 s of the 72.5 s that plain decoding takes"
    totals = Totals(saved_s=-0.52, busy_s=10.5)
    assert totals.saved_words == "speculation lost 0.5 s: 10.5 s instead of the 10.0 s that plain decoding takes"
    totals = Totals(saved_s=-0.06, busy_s=0.43)
    assert totals.saved_words == "speculation lost 0.06 s: 0.43 s instead of the 0.37 s that plain decoding takes"
