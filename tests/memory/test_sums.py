"""One byte budget: what it comes to, that it is held, that its refusals are honest, and that no text depends on it."""

import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import LLM, SamplingParams
from paceline.core.errors import CapacityError, InputError
from paceline.engine.budget import memory_of, parse_bytes, shape_of
from paceline.engine.options import Options
from paceline.engine.pair import DEMO
from paceline.memory.sums import BudgetShape, MemoryModel
from paceline.model.footprint import Footprint
from tests.patience import PATIENCE_S
from tests.plan.test_planner import planner, request, room
from tests.tiny import tiny_checkpoint

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux tells a process's peak")
FORMS: list[dict[str, Any]] = [{}, {"dtype": "float32"}]
ASKED = [(0, 1, "model"), (1, 1, "model"), (0, 1, "dyspec"), (1, 0.9, "topk"), (0.7, 1, "ngram+topk"), (1, 1, "suffix")]
"""Temperature, top-p and drafter."""
PAIR = DEMO / "target", DEMO / "draft"


def arithmetic(max_len: int = 512, draft: bool = True, vocab: int = 1000) -> MemoryModel:
    target = Footprint(10**8, 10**7, 10**4, 16, vocab, 10**6, 10**4, 100, 0, 0, 0, 0)
    return MemoryModel(target, replace(target, weights=10**7, slot=10**3) if draft else None, max_len, 16)


def test_the_parts_add_up() -> None:
    memory, shape = arithmetic(), BudgetShape(100, 32, 32, 8, remember=0)
    parts = memory.parts(shape)
    assert parts["weights"] == 10**8 + 10**7
    assert parts["kv"] == 1600 * (10**4 + 10**3 + 1024)
    assert parts["logits"] == 2 * 4 * 1000 * 8 * 32 + 64 * 32 * 1000
    assert parts["scratch"] == 10**6 + (32 + 32) * 10**4 + 512 * 100  # of the draft, over the text and its nodes
    assert memory.total(shape) == sum(parts.values())
    assert memory.total(replace(shape, blocks=1, rows=1, drafted=0, requests=1)) > 10**8 + 10**7 + 10**7


def test_the_longest_context_fits_and_one_block_more_does_not() -> None:
    memory = arithmetic(max_len=100_000)
    budget = memory.total(memory.smallest()) + 10**8
    longest = memory.longest(budget)
    shape = memory.smallest(longest // 16)
    assert 0 < longest < 100_000 and longest % 16 == 0
    assert memory.total(shape) <= budget < memory.total(replace(shape, blocks=shape.blocks + 1))
    assert memory.longest(10**12) == 100_000 and memory.longest(10) == 0
    half = replace(memory, target=replace(memory.target, slot=5 * 10**3))  # K/V in fewer bits
    assert half.longest(budget) > 1.4 * longest


def test_loading_may_be_the_peak() -> None:
    small = arithmetic()
    heavy = replace(small, target=replace(small.target, loading=10**9))
    assert heavy.total(BudgetShape(1, 1, 0, 1)) > 10**9 + 10**8


@pytest.mark.parametrize(("text", "value"), [(7, 7), ("2G", 2 << 30), ("1.5 MiB", 3 << 19), ("10kb", 10 << 10)])
def test_bytes(text: int | str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "G", "two", "2X"])
def test_no_bytes(text: str) -> None:
    with pytest.raises(InputError, match="must be bytes"):
        parse_bytes(text)


def stated(message: str) -> int:
    """The smallest budget that a refusal names."""
    found = re.search(r"at least ([\d,]+) bytes", message)
    assert found, message
    return int(found[1].replace(",", ""))


def measured(seed: int, count: int = 12, **options: Any) -> dict[str, Any]:
    """What a process of its own took (tests/plan/peak.py)."""
    command = [sys.executable, "-m", "tests.memory.peak", json.dumps(options), str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@cache
def least(form: int) -> int:
    """The smallest budget of the demo pair, from a refusal."""
    with pytest.raises(CapacityError) as refused:
        LLM(memory=1, threads=1, drafter="model", **FORMS[form])
    return stated(str(refused.value))


def held(seed: int) -> None:
    """A random budget, which the process keeps to while it loads and while it serves whatever needs memory."""
    rng = random.Random(seed)
    form = rng.randrange(len(FORMS))
    budget = int(least(form) * rng.choice([1, 1.5, 2, 4, 8]) * rng.uniform(1, 1.5))
    options = {"block_size": rng.choice([16, 16, 8, 5]), "drafter": rng.choice(["auto", "model"]), **FORMS[form]}
    keeps(measured(seed, memory=budget, threads=1, **options), budget)


def keeps(result: dict[str, Any], budget: int) -> None:
    print(f"\nbudget {budget / 2**20:.1f} MiB: loaded {result['loaded'] / budget:.2f}, peak "
          f"{result['peak'] / budget:.2f}, {result['rows']} rows, {result['blocks']} blocks")  # fmt: skip
    assert result["loaded"] <= 1.02 * budget
    assert result["peak"] <= 1.02 * budget
    assert not result["errors"]


@LINUX
def test_no_budget_is_exceeded() -> None:
    held(0)


@LINUX
@pytest.mark.full
@pytest.mark.parametrize("seed", range(1, 202))
def test_no_budget_of_two_hundred_is_exceeded(seed: int) -> None:
    held(seed)


@LINUX
def test_no_budget_is_exceeded_where_logits_are_most_of_it(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocab": 50_000, "hidden": 16, "layers": 1}
    pair = [tiny_checkpoint(tmp_path / name, seed=i, **sizes) for i, name in enumerate(("target", "draft"))]
    options = {"model": str(pair[0]), "draft": str(pair[1]), "drafter": "model", "threads": 1}
    budget = 120 << 20
    keeps(measured(budget >> 20, memory=budget, **options), budget)


@LINUX
@pytest.mark.parametrize("form", [0, pytest.param(1, marks=pytest.mark.full)])
def test_the_stated_minimum_starts_and_less_is_refused_unloaded(form: int) -> None:
    need = least(form)
    started = measured(1, count=3, memory=need, threads=1, drafter="model", **FORMS[form])
    assert all(started["texts"]) and started["peak"] <= 1.02 * need
    assert started["rows"] <= 2 and started["requests"] == 1
    refused = measured(1, memory=need - 1, threads=1, drafter="model", **FORMS[form])
    assert stated(refused["refused"]) == need
    assert refused["taken"] < 4 << 20, "weights were loaded before the refusal"


def test_the_text_is_the_same_under_every_budget() -> None:
    """One row a pass and nothing drafted, or trees for everybody; with pre-emptions or without."""
    prompts = [[5 + (7 * i * j) % 300 for j in range(4 + 3 * i)] for i in range(6)]
    params = [
        SamplingParams(temperature=t, top_p=p, seed=i, max_tokens=24, drafter=d, ignore_eos=True)
        for i, (t, p, d) in enumerate(
            [
                (0, 1, "model"),
                (1, 1, "model"),
                (0, 1, "dyspec"),
                (1, 0.9, "topk"),
                (0.7, 1, "ngram+topk"),
                (1, 1, "suffix"),
            ]
        )
    ]
    plain = LLM(drafter="none").generate(prompts, [replace(p, drafter="none") for p in params], progress=False)
    memory, rows = memory_of(Options(), *PAIR), set()
    for shape in (
        BudgetShape(3, 1, 0, 1),
        BudgetShape(4, 4, 3, 4),
        BudgetShape(8, 16, 15, 16),
        BudgetShape(200, 64, 63, 64),
    ):
        llm = LLM(drafter="model", memory=memory.total(shape) + (1 << 20), check=True)
        rows.add(llm.engine.config.row_budget)
        outputs = llm.generate(prompts, params, progress=False)
        assert [o.token_ids for o in outputs] == [o.token_ids for o in plain]
        assert not llm.engine.drafters.errors
    assert len(rows) > 2


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 8), st.integers(8, 64), st.integers(0, 12))
def test_nobody_is_pre_empted_while_someone_has_nodes_to_give_up(
    lengths: list[int], free: int, rows: int, nodes: int
) -> None:
    """Trees shrink first: who is pre-empted could not have stayed had nobody drafted."""
    requests = [request(i, length, length - 1) for i, length in enumerate(lengths)]
    space = room(requests, free)
    plan = planner(rows, nodes).plan(requests, space)
    bare = planner(rows, 0).plan(requests, space)
    assert plan.preempt == bare.preempt
    if plan.preempt:
        assert sum(space.need(r, 1) for r in requests) > free
    else:
        assert len(plan.items) == len(requests)


@pytest.mark.parametrize("free", [64 << 20, 256 << 20])
def test_without_a_budget_k_v_takes_a_quarter_of_the_free_memory(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whole units of the pools, of which a block is a small part."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    memory, shape = memory_of(Options(), *PAIR), shape_of(Options(), *PAIR)
    models = [model for model in (memory.target, memory.draft) if model is not None]
    taken = sum(model.kv(shape.blocks, memory.block_size) for model in models)
    unit = sum(model.unit * model.slot for model in models)
    assert free / 4 - 2 * unit < taken <= free / 4 + 2 * unit
