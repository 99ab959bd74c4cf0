"""Keeping a draft model's K/V up is not paid for while nobody is expected to draft with it, and made up for later."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from paceline import LLM, SamplingParams
from paceline.core.plan import Work
from paceline.core.request import Request
from paceline.engine.desk import lease_of
from paceline.plan.choose import Goodput
from paceline.plan.cost import KNOTS, Drafting, StepTimes, Times
from paceline.plan.governor import Governor
from tests.plan.test_cost import slow_pair

PROMPT = [5, 6, 7, 8] * 30
"""Longer than a drafter may lag."""


class Unteachable(StepTimes):
    """The engine's own steps, of a tiny model, say nothing of the pair that is played here."""

    read = 0
    """Rows that drafters have read of texts that they did not draft for."""

    def observe(self, work: Work, parts: Sequence[Drafting], times: Times) -> None:
        self.read += sum(times.reads.values())


class Deaf(Governor):
    """Nor does the account hear of them: on a busy machine they would look like losses."""

    def rested(self, work: Work, times: Times) -> None:
        pass

    def drafted(
        self, work: Work, seconds: float, tokens: Mapping[str, tuple[int, int]], total: int, straight: bool,
        waited: float = 0.0,
    ) -> None:  # fmt: skip
        pass

    def shared(self, seconds: float, lost: float, chosen: Mapping[str, float], prompts: bool = True) -> None:
        pass


def dear_for_many() -> StepTimes:
    """Step times of a draft model that pays for one request and for two, not for four."""
    times = Unteachable.load(slow_pair().dump())
    times.drafter("model").weights |= {"depth": 0.016, "requests": 0.008}
    return times


def use(llm: LLM, times: StepTimes) -> None:
    """Let the planner believe these times."""
    policy = cast(Goodput, llm.engine.desk.policy)
    policy.times = llm.engine.table.times = times
    policy.governor = Deaf(times)


@pytest.fixture
def llm(pair: tuple[Path, Path]) -> LLM:
    """Engine with a pair for which drafting costs more than it brings, except for one request or two."""
    llm = LLM(*pair, drafter="ngram|model", dtype="float32", blocks=400, prefix_cache=False)
    use(llm, dear_for_many())
    return llm


def running(llm: LLM, count: int, steps: int) -> list[Request]:
    wish = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, drafter="ngram|model").resolve({})
    made = [llm.engine.submit([*PROMPT, i % 50], wish)[0] for i in range(count)]
    for _ in range(steps):
        llm.engine.step()
    return made


def test_many_do_without_and_one_left_catches_up(llm: LLM) -> None:
    many = running(llm, 6, 5)
    assert [lease_of(r).frontier["draft"] > 0 for r in many] == [True] + [False] * 5, "the first looks whether it pays"
    assert cast(Unteachable, llm.engine.table.times).read == lease_of(many[0]).frontier["draft"]
    assert all(llm.engine.table.depth(r, "model") == 0 for r in many[1:])
    last = many[-1]
    for request in many[:-1]:
        llm.engine.abort(request)
    for _ in range(3):
        llm.engine.step()
    assert lease_of(last).frontier["draft"] > len(PROMPT) and llm.engine.table.depth(last, "model") > 0


def test_a_lease_whose_blocks_may_be_shared_has_the_group_or_not(pair: tuple[Path, Path]) -> None:
    """Six that come at once do without it, and their prompts' blocks are there for the next one."""
    llm = LLM(*pair, drafter="ngram|model", dtype="float32", blocks=400)
    use(llm, dear_for_many())
    many = running(llm, 6, 5)
    assert all("draft" not in lease_of(r).frontier for r in many[1:])
    for request in many[1:]:
        llm.engine.abort(request)
    [other] = running(llm, 1, 0)
    while not other.output:
        llm.engine.step()
    assert "draft" in lease_of(other).frontier, "of two who decode each may draft"
    llm.engine.abort(other)
    [third, *_] = running(llm, 4, 5)
    assert third.stats.cached >= len(PROMPT) - 16 and "draft" not in lease_of(third).frontier


def test_few_keep_up_where_it_pays(llm: LLM) -> None:
    assert all(lease_of(r).frontier["draft"] > len(PROMPT) - 2 for r in running(llm, 2, 3))


def test_one_does_without_where_it_cannot_pay(llm: LLM) -> None:
    """On a CPU on which a pass of the draft, or of a row more, takes as long as one of the target."""
    llm.engine.table.times.drafter("model").weights["depth"] = 0.1
    first, second = [running(llm, 1, 3)[0] for _ in range(2)]
    assert lease_of(first).frontier["draft"] == lease_of(second).frontier["draft"] == 0


def test_a_short_text_is_not_read_unasked(llm: LLM) -> None:
    """Request with as many rows as a drafter may lag behind, and too few last tokens to repay reading them."""
    times = llm.engine.table.times
    times.drafter("model").weights["requests"] = 0.0
    times.target.weights |= {rows: 0.05 * (1 + rows / 4) for rows in KNOTS}
    for answer, read in ((60, True), (5, False)):
        wish = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True, drafter="model|ngram").resolve({})
        [request] = llm.engine.submit(PROMPT[:40], wish)
        for _ in range(4):
            llm.engine.step()
        assert (lease_of(request).frontier["draft"] > 0) == read
        llm.engine.abort(request)


def test_the_text_is_the_same(llm: LLM) -> None:
    texts = []
    for drafter in ("none", "ngram|model"):
        wish = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, drafter=drafter)
        texts.append([out.token_ids for out in llm.generate([[*PROMPT, i] for i in range(6)], wish, progress=False)])
    assert texts[0] == texts[1]
