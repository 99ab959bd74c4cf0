"""A drafter's K/V of a prompt is computed where drafts will save more than it costs, and not elsewhere."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.params import SamplingParams
from paceline.core.plan import Work
from paceline.core.request import Request
from paceline.engine.drafter_table import RETRY, DrafterTable
from paceline.plan import DrafterFacts
from paceline.plan.acceptance import Acceptance, Mean
from paceline.plan.choose import Arm, Goodput
from paceline.plan.cost import Drafting, StepTimes
from paceline.plan.repay import prompt_seconds
from tests.plan.test_choose import Constant

TARGET, BOTH = ("target",), ("target", "draft")
ROW, PASS, DRAFT = 7e-3, 63e-3, 21e-3
"""Seconds: of a target's row, of its pass beside, of a level of a draft a third as expensive."""


class Laptop(StepTimes):
    """One core that reads weights as quickly as it computes nine rows."""

    def of_target(self, work: Work) -> float:
        return work.passes * (PASS + ROW * work.rows)

    def of_draft(self, part: Drafting) -> float:
        return (DRAFT + 2e-3 * part.requests) * part.depth

    def of_rest(self, requests: int, nodes: int, passes: int = 1) -> float:
        return 1e-3


def accepted(rate: float) -> Constant:
    """Of a drafter that has drafted before."""
    return Constant(means={("a", 0): Mean()}, rates={"a": rate})


def chooser(rate: float = 0.7) -> Goodput:
    return Goodput({"a": Arm("a", (1, 2, 3, 4), True)}, Laptop(), lambda r, d: 4, accepted(rate))


def request(prompt: int, most: int, output: int = 0, **more: object) -> Request:
    made = Request(prompt, [0] * prompt, SamplingParams(), 0, arms=("a",), max_tokens=most, **more)  # type: ignore[arg-type]
    made.output += [0] * output
    return made


def taught(pick: Goodput, most: int, length: int, count: int = 30) -> Goodput:
    for _ in range(count):
        pick.drop(request(10, most, length, finish="stop"))
    return pick


def test_long_answers_repay_a_prompt_and_short_ones_do_not() -> None:
    """400 rows of the draft take 0.9 s; a token takes 75 ms plainly and about 55 ms with drafts."""
    assert chooser().repays(request(400, 200), ["a"], 0)
    assert not taught(chooser(), 200, 10).repays(request(400, 200), ["a"], 0)
    assert taught(chooser(), 200, 10).repays(request(20, 200), ["a"], 0)
    assert not chooser().repays(request(400, 4), ["a"], 0), "the limit alone says so"


def test_what_saves_less_among_many_repays_less() -> None:
    pick = taught(chooser(), 200, 100)
    assert pick.repays(request(400, 200), ["a"], 0) and not pick.repays(request(400, 200), ["a"], 7)
    assert not taught(chooser(0.05), 200, 40).repays(request(400, 200), ["a"], 0), "drafts that nobody accepts"
    assert taught(chooser(0.05), 200, 100).repays(request(400, 200), ["a"], 0), "within a tenth of ten seconds"


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 600), st.integers(1, 300), st.integers(0, 12), st.floats(0.1, 0.95))
def test_longer_prompts_never_repay_better(prompt: int, length: int, beside: int, rate: float) -> None:
    pick = taught(chooser(rate), 300, length)
    if pick.repays(request(prompt + 50, 300), ["a"], beside):
        assert pick.repays(request(prompt, 300), ["a"], beside)


def test_what_is_usual_is_kept_by_the_size_of_the_limit() -> None:
    usual = taught(taught(chooser(), 200, 45), 4, 2).usual
    assert usual.answer(request(9, 180)) == 45 and usual.answer(request(9, 5)) == 2
    assert usual.answer(request(9, 30)) == 30, "nobody like it has ended"
    assert usual.answer(request(9, 200, output=40)) == 5 and usual.answer(request(9, 200, output=90)) == 1
    usual.hear(request(9, 200, 1, finish="abort"))
    assert usual.answer(request(9, 200)) == 45
    hit = request(100, 64, 3, finish="stop")
    hit.stats.cached = 100
    for _ in range(99):
        usual.hear(hit)
    assert usual.rows(request(400, 64)) < 10


def test_a_prompt_costs_a_drafter_at_most_what_it_costs_the_target() -> None:
    times = Laptop()
    assert prompt_seconds(times, ["a"], 100) < times.of_target(Work.of([(100, 0, 1)]))
    slow = replace(times)
    slow.of_draft = lambda part: 9.0  # type: ignore[method-assign]
    assert prompt_seconds(slow, ["a"], 100) == times.of_target(Work.of([(100, 0, 1)]))


def test_who_has_never_drafted_is_guessed_and_no_rival_that_has_not_either_is_in_the_way() -> None:
    pick = chooser()
    pick.arms["free"] = Arm("free", (1, 2, 3, 4), True)
    pick.acceptance = Acceptance()
    long, short = request(400, 60), request(400, 40)
    long.arms = short.arms = ("a", "free")
    assert pick.repays(long, ["a"], 0) and not pick.repays(short, ["a"], 5)
    pick.acceptance.means["free", 0] = Mean()  # now known to be as good, for nothing
    assert not pick.repays(long, ["a"], 0)


def test_a_lease_keeps_the_group_where_it_pays_and_now_and_then_elsewhere() -> None:
    table = DrafterTable("goodput", Laptop())
    policy = table.policy
    assert isinstance(policy, Goodput)
    table.enrol("a", DrafterFacts(4, chain=True, group="draft"))
    policy.acceptance = accepted(0.7)
    taught(policy, 200, 5)
    assert [table.groups(request(400, 200)) for _ in range(3)] == [BOTH, TARGET, TARGET]
    policy.step += RETRY * 9
    assert [table.groups(request(400, 200)) for _ in range(2)] == [BOTH, TARGET]
    assert table.groups(request(4, 200)) == BOTH
    named = replace(request(400, 200), arms=(), drafter="a")
    assert table.groups(named) == BOTH, "who names a drafter has it"
