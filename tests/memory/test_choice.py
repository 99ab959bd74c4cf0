"""What is done with a byte budget: within it, of most predicted throughput, with honest refusals."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import LLM, SamplingParams
from paceline.core.errors import CapacityError, RefusalError
from paceline.engine import calibrate, learned
from paceline.engine.budget import chosen, memory_of, planner_of, prices, words_of
from paceline.engine.options import Options
from paceline.engine.pair import DEMO
from paceline.memory.choice import (
    FEWEST_TEXTS,
    GUESSED_MARGIN,
    USUAL_TEXT,
    BudgetPlan,
    BudgetPlanner,
    LoadSpeed,
    SpeedModel,
    first,
    halved,
    shapes,
    times_by_size,
)
from paceline.memory.sums import MEMORIES, BudgetShape, MemoryModel
from paceline.plan import DrafterFacts
from paceline.plan.allocate import MARGIN
from tests.memory.test_sums import arithmetic, stated
from tests.plan.test_planner import planner as row_planner
from tests.plan.test_planner import request, room

FACTS = {
    "ngram": DrafterFacts(nodes=8, chain=True),
    "model": DrafterFacts(nodes=8, chain=True, group="draft", stops_early=True),
    "topk": DrafterFacts(nodes=16, chain=False, group="draft"),
}
PAIR = DEMO / "target", DEMO / "draft"


def known(**rates: float) -> dict[str, Any]:
    """Beliefs of many rounds: the chance of each node, by drafter."""
    tries = [100.0 * 0.9**d for d in range(16)]
    return {
        "beliefs": [
            {"drafter": name, "size": size, "tries": tries, "hits": [rate * each for each in tries], "asked": tries,
             "offered": tries}
            for name, rate in rates.items() for size in ((0,) if FACTS[name].chain else (8, 16))
        ]
    }  # fmt: skip


def made(
    models: Mapping[bool, MemoryModel], rates: Mapping[str, float] | None = None, row: float = 0.02, draft: int = 10**7
) -> BudgetPlanner:
    facts = {name: it for name, it in FACTS.items() if True in models or it.group is None}
    times = times_by_size(10**8, draft, facts, row)
    return BudgetPlanner(models, SpeedModel(times, facts, known(**rates) if rates else None))


def both(**sizes: Any) -> dict[bool, MemoryModel]:
    return {True: arithmetic(**sizes), False: arithmetic(draft=False, **sizes)}


@settings(max_examples=25, deadline=None)
@given(st.integers(10**8, 3 * 10**9), st.sampled_from([1, 8, 96, 512]), st.integers(1, 64), st.integers(1, 3))
def test_a_plan_stays_within_its_budget_and_more_is_never_worse(budget: int, rows: int, most: int, which: int) -> None:
    models = {draft: it for draft, it in both().items() if which & (1 + draft)}
    it, rows = made(models), max(rows, most)
    try:
        plan, other = it.choose(budget, rows, most)
    except CapacityError as error:
        need = stated(str(error))
        assert need > budget and it.choose(need, rows, most).plan.shape.rows >= 1
        with pytest.raises(CapacityError):
            it.choose(need - 1, rows, most)
        return
    shape = plan.shape
    assert plan.draft in models and models[plan.draft].total(shape) <= budget
    assert 1 <= shape.requests <= min(shape.rows, most) and shape.rows <= rows and shape.drafted < shape.rows
    assert 1 <= shape.blocks <= -(-512 // 16) * shape.requests
    assert other is None or (other.kind != plan.kind and models[other.draft].total(other.shape) <= budget)
    more = it.choose(2 * budget, rows, most).plan
    assert min(more.slots, sum(USUAL_TEXT)) >= min(plan.slots, sum(USUAL_TEXT))
    if min(more.slots, plan.slots) >= sum(USUAL_TEXT):
        assert more.score * MARGIN**2 >= plan.score


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.floats(1.01, 4.0), st.sampled_from([1000, 50_000]), st.floats(0.05, 0.9))
def test_nothing_that_fits_is_predicted_to_be_faster(factor: float, vocab: int, chance: float) -> None:
    """By looking at all shapes without the planner's own search."""
    models = both(vocab=vocab)
    it = made(models, {"ngram": 0.2, "model": chance, "topk": chance})
    budget = int(factor * it.least())
    plan = it.choose(budget, 64, 4).plan
    for draft, memory in models.items():
        spare_bytes = max(0, budget - memory.total(memory.smallest()))
        remember = min(MEMORIES[1], MEMORIES[0] + spare_bytes // 16)
        for shape in shapes(64, 4):
            shape = replace(shape, remember=remember)
            blocks = memory.most_blocks(budget, shape, 32 * shape.requests)
            parts = memory.parts(replace(shape, blocks=blocks))
            spare = 2 * (parts["logits"] + parts["scratch"]) <= budget - parts["weights"] - parts["rest"]
            if 16 * blocks < sum(USUAL_TEXT) or not (spare or blocks == 32 * shape.requests):
                continue
            assert plan.slots >= sum(USUAL_TEXT)
            speeds = [it.speeds.speed(draft, shape, 16 * blocks, load).tokens for load in (1, 4)]
            assert plan.score * MARGIN**2 >= (speeds[0] * speeds[1]) ** 0.5


def test_a_draft_model_that_is_of_no_use_makes_room_for_others() -> None:
    models = both(vocab=50_000)
    models[True] = replace(models[True], draft=replace(models[True].target, weights=9 * 10**7, slot=10**4))
    useless, useful = ({"ngram": 0.01, "model": rate, "topk": rate} for rate in (0.01, 0.9))
    budget = 3 * made(models).least()
    assert not made(models, useless).choose(budget, 512, 16).plan.draft
    assert made(models, useful).choose(budget, 512, 16).plan.draft
    assert made(models, useless).choose(100 * budget, 512, 16).plan.draft, "where there is room, it stays"


def test_drafts_shrink_before_everything_else_fails() -> None:
    it = made({True: arithmetic(vocab=50_000)})
    need = it.least()
    drafted = [it.choose(need + extra, 512, 64).plan.shape.drafted for extra in (0, 10**8, 10**10)]
    assert drafted == sorted(drafted) and drafted[0] == 0 and drafted[-1] >= 64


def test_rows_have_more_than_half_where_usual_texts_still_have_room() -> None:
    """A vocabulary whose logits take most of the budget, and little K/V: rows read prompts sooner."""
    it = made({False: arithmetic(8192, vocab=50_000, draft=False)})
    memory, usual = it.models[False], sum(USUAL_TEXT)
    found = []
    for extra in range(2 * 10**7, 3 * 10**8, 2 * 10**7):
        budget = it.least() + extra
        plan = it.choose(budget, 512, 2).plan
        parts = memory.parts(plan.shape)
        left = budget - parts["weights"] - parts["rest"]
        bold = 2 * (parts["logits"] + parts["scratch"]) > left and plan.shape.rows > 1
        assert not bold or plan.slots >= FEWEST_TEXTS * usual
        found.append(bold)
    assert any(found)


def test_no_speculation_is_one_of_the_choices() -> None:
    it = made(both(vocab=50_000), {"ngram": 0.01, "model": 0.01, "topk": 0.01}, row=1.0)
    plan, other = it.choose(int(1.2 * it.least()), 512, 64)
    assert {speed.drafter for speed in plan.speeds} == {"none"}
    assert other is not None


def test_a_given_number_of_blocks_is_kept_or_refused() -> None:
    it = made(both())
    assert it.choose(10**9, 512, 64, blocks=1000).plan.shape.blocks == 1000
    with pytest.raises(CapacityError, match="give at least"):
        it.choose(2 * 10**8, 512, 64, blocks=10**5)


@pytest.mark.parametrize(("most", "values"), [(0, []), (1, [1]), (2, [2, 1]), (6, [6, 4, 2, 1]), (8, [8, 4, 2, 1])])
def test_powers_of_two_below_a_bound(most: int, values: list[int]) -> None:
    assert [*halved(most)] == values


def test_a_step_has_no_more_drafted_rows_than_were_reserved() -> None:
    requests = [request(i, 8, 7) for i in range(3)]
    free, bound = row_planner(64, 6), row_planner(64, 6)
    bound.draft_rows = 4
    assert sum(item.nodes for item in free.plan(requests, room(requests, 100)).items) > 4
    assert sum(item.nodes for item in bound.plan(requests, room(requests, 100)).items) <= 4


def test_an_engine_under_a_budget_drafts_within_it_and_says_what_was_chosen(caplog: pytest.LogCaptureFixture) -> None:
    memory = memory_of(Options(), *PAIR)
    budget = memory.total(BudgetShape(64, 16, 8, 4)) + (1 << 20)
    with caplog.at_level("INFO", "paceline"):
        llm = LLM(memory=budget, check=True)
    config, said = llm.engine.config, " ".join(caplog.messages)
    assert "Of this memory" in said and "Next best" in said
    assert config.draft_rows is not None and config.draft_rows < config.row_budget
    prompts, plain = [[5, 9, 5, 9, 5, 9], [7, 8, 7, 8]], SamplingParams(temperature=0, max_tokens=20, drafter="none")
    want = [out.token_ids for out in llm.generate(prompts, plain, progress=False)]
    assert [o.token_ids for o in llm.generate(prompts, replace(plain, drafter="auto"), progress=False)] == want


def test_a_draft_model_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a cache of a usual text has no room beside it; who names it is refused, or served without `memory`."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    alone = memory_of(Options(), PAIR[0])
    budget = alone.total(BudgetShape(40, 4, 0, 1)) + (1 << 20)
    assert not chosen(Options(memory=budget), *PAIR).plan.draft
    llm = LLM(memory=budget)
    assert "draft" not in llm.engine.components and "the draft model left out" in " ".join(caplog.messages)
    assert llm.generate([[5, 6]], SamplingParams(temperature=0, max_tokens=4), progress=False)[0].token_ids
    with pytest.raises(RefusalError, match="draft"):
        llm.generate([[5, 6]], SamplingParams(temperature=0, max_tokens=4, drafter="model"), progress=False)
    assert set(planner_of(Options(memory=budget, drafter="model"), *PAIR).models) == {True}


@pytest.mark.parametrize(
    ("with_draft", "margin", "kept"),
    [(0.98, MARGIN, False), (0.98, GUESSED_MARGIN, True), (0.9, GUESSED_MARGIN, False)],
)
def test_a_guess_that_is_close_keeps_the_draft_model(with_draft: float, margin: float, kept: bool) -> None:
    """What is left out is never measured, so later starts could not put it right."""
    plans = [
        BudgetPlan(BudgetShape(64, 16, 8, 4), draft, 1024, (LoadSpeed(1, tokens, "none", 0),))
        for draft, tokens in ((False, 100.0), (True, 100.0 * with_draft), (True, 50.0))
    ]
    plan = first(plans, 512, margin)
    assert plan.draft == kept and plan.score > 60


def test_what_was_measured_and_learned_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    options = Options(memory="100M", keep_learned=True)
    before = planner_of(options, *PAIR)
    assert "not measured" in " ".join(words_of(chosen(options, *PAIR), options, PAIR[1]))
    times = times_by_size(10**8, 10**7, before.speeds.facts, 0.02)
    times.fit_target([])
    times.measured = True
    calibrate.keep(prices(options), times)
    learned.place(options).write_text('{"beliefs": []}')
    words = " ".join(words_of(chosen(options, *PAIR), options, PAIR[1]))
    assert "tokens/s for 1" in words and "not measured" not in words
    assert planner_of(options, *PAIR).speeds.times.measured and not before.speeds.times.measured


def test_a_table_from_a_start_without_the_draft_model_does_not_leave_it_out_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its drafters were not timed there: they are priced by its size."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    options = Options(memory="100M")
    before = planner_of(options, *PAIR)
    alone = {name: it for name, it in before.speeds.facts.items() if it.group is None}
    times = times_by_size(10**8, 10**7, alone, 0.02)
    times.fit_target([])
    times.measured = True
    calibrate.keep(prices(options), times)
    after = planner_of(options, *PAIR)
    assert after.guessed and after.speeds.facts.keys() == before.speeds.facts.keys() > alone.keys()
    assert after.speeds.times.of_level(["model"]) > 0 and chosen(options, *PAIR).plan.draft
