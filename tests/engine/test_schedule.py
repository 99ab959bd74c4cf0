"""Scheduling order changes no text; a target for the time between two steps is kept by the table of step times."""

import random
from dataclasses import replace

import pytest
import torch

from paceline import LLM
from paceline.core.errors import InputError, RefusalError
from paceline.core.params import SamplingParams
from paceline.core.plan import Work
from paceline.core.rows import Out, Rows
from paceline.engine.config import EngineConfig
from paceline.engine.loop import Engine
from paceline.plan.cost import KNOTS, StepTimes
from paceline.schedule.exspec import Grouped
from paceline.schedule.policies import ORDERS, SCHEDULES
from tests.lossless.cases import Setting, Wish, check
from tests.toy import VOCAB, Toy, table

WISHES = {"priority": [{"priority": p} for p in (-1, 0, 2)], "deadline": [{"deadline_ms": 50.0}, {"deadline_ms": 9e4}]}
DRAFTERS = ("none", "ngram", "model", "topk")


def wishes(order: str, seed: int, apart: bool = False) -> list[Wish]:
    rng, out = random.Random(seed), []
    for i in range(12):
        more = rng.choice(WISHES.get(order, [{}]))
        params = SamplingParams(
            temperature=1.0, seed=i, max_tokens=rng.randrange(4, 20), drafter=rng.choice(DRAFTERS), ignore_eos=True,
            user=rng.choice("ab"), client="xyz"[i % 3 if apart else 0], **more,
        )  # fmt: skip
        out.append(Wish([rng.randrange(VOCAB) for _ in range(rng.randrange(1, 24))], params.resolve({})))
    return out


@pytest.mark.parametrize(("group_size", "apart"), [(None, False), (None, True), (2, False)])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_schedule_changes_a_text(schedule: str, order: str, group_size: int | None, apart: bool) -> None:
    """Twelve requests arriving one by one in a cache that holds two of the longest: many are pre-empted."""
    setting = Setting(blocks=13, max_requests=6, row_budget=16, schedule=schedule, order=order, group_size=group_size)
    engine = check(setting, wishes(order, 3, apart), random.Random(4))
    assert engine.desk.totals.preemptions > 0
    when = engine.desk.schedule
    assert not isinstance(when, Grouped) or when.grouped + when.fallback > 0


def test_a_wish_that_the_order_would_ignore_is_refused() -> None:
    engine = Setting().engine()
    with pytest.raises(RefusalError, match="priority and order fcfs cannot be combined"):
        engine.submit([1], SamplingParams(priority=1).resolve({}))
    assert not engine.busy


def test_an_unknown_schedule_is_refused_before_anything_loads() -> None:
    with pytest.raises(InputError, match="Unknown schedule 'lifo'"):
        LLM("nowhere", schedule="lifo")


class Clocked(Toy):
    """A toy whose pass takes 10 ms for each panel of 16 rows, on a clock of its own."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__(logits, max_len=400)
        self.now, self.rows = 0.0, list[int]()

    def cost(self, rows: int) -> float:
        return 0.01 * -(-rows // 16)

    def forward(self, rows: Rows) -> Out:
        self.now += self.cost(len(rows.token))
        self.rows.append(len(rows.token))
        return super().forward(rows)


def busy_steps(tbt_target_ms: float | None) -> list[int]:
    """Rows of each step in which somebody decodes, with prompts of 300 tokens arriving."""
    model = Clocked(table(0))
    config = EngineConfig(blocks=400, block_size=4, row_budget=256, max_requests=8, tbt_target_ms=tbt_target_ms)
    times = StepTimes()
    times.fit_target([(Work.of([(rows, 0, 1)]), model.cost(rows)) for rows in KNOTS])
    engine = Engine(model, config, times=times, now=lambda: model.now, clock=lambda: model.now)
    plain = SamplingParams(temperature=1.0, seed=1, drafter="none", ignore_eos=True).resolve({})
    engine.submit([1, 2, 3], replace(plain, max_tokens=200))
    for _ in range(40):
        engine.step()
    begun = len(model.rows)
    for i in range(3):
        engine.submit([i % VOCAB] * 300, replace(plain, max_tokens=2, seed=i))
    while len(engine.desk.running) + len(engine.desk.waiting) > 1:
        engine.step()
    return model.rows[begun:]


def test_a_target_bounds_the_steps_of_who_decodes() -> None:
    assert max(busy_steps(0.0)) == 256
    assert max(busy_steps(None)) == 160, "ten panels are 100 ms"
    rows = busy_steps(45.0)
    print(f"\nrows of each step with a target of 45 ms: {rows}")
    assert max(rows) == 64, "four panels are 40 ms"
    assert sum(rows) >= 3 * 300
