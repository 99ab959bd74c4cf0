from collections import Counter

import pytest

from paceline.bench import limit
from paceline.bench.harness import BenchCell, BenchPlan, BenchRun, groups, measure, rotated, time_batch
from paceline.core.errors import InputError
from paceline.core.params import SamplingParams
from paceline.engine.config import EngineConfig
from paceline.engine.loop import Engine
from tests.toy import Toy, table

PROMPTS = [[1, 2, 3], [4, 5], [1, 1, 2, 2, 3]]


def engine() -> Engine:
    return Engine(
        Toy(table(0)), EngineConfig(blocks=64, block_size=4, max_requests=4, row_budget=8, prefix_cache=False)
    )


def plan(**changes: object) -> BenchPlan:
    fields: dict[str, object] = {
        "methods": ["none", "ngram"], "batches": [1, 2], "temperatures": [0.0, 1.0], "verifier": "exact",
        "params": SamplingParams(max_tokens=8).resolve({}), "repeat": 2,
    }  # fmt: skip
    return BenchPlan(**{**fields, **changes})  # type: ignore[arg-type]


def test_every_cell_has_one_run_per_repeat_with_every_prompt() -> None:
    ticks: list[str] = []
    results = measure(engine(), PROMPTS, plan(), ticks.append)
    assert set(results) == {BenchCell(m, b, t) for m in ("none", "ngram") for b in (1, 2) for t in (0.0, 1.0)}
    for runs in results.values():
        assert len(runs) == 2
        assert all(len(run.outputs) == 3 and run.tokens == sum(map(len, run.outputs)) for run in runs)
    assert len(ticks) == 2 * 2 * 2 * (3 + 2)  # repeats x methods x temperatures x batches of the three prompts
    assert {ticks[i] for i in (0, 1)} == {"none, batch 1", "ngram, batch 1"}, "methods take turns batch by batch"


def test_all_methods_draw_with_the_same_noise() -> None:
    results = measure(engine(), PROMPTS, plan(), lambda what: None)
    texts = {tuple(map(tuple, run.outputs)) for c, runs in results.items() if c.temperature == 1.0 for run in runs}
    assert len(texts) == 1


def test_times_and_tokens_of_a_batch() -> None:
    run = BenchRun()
    wishes = [SamplingParams(max_tokens=n, temperature=0.0, seed=0, drafter="none").resolve({}) for n in (4, 6)]
    time_batch(engine(), PROMPTS[:2], wishes, run)
    assert run.tokens == 10 and run.passes == 10
    assert run.decode_tokens == 8, "the step that gave both their first token is prefill"
    assert 0 < run.decode_seconds < run.seconds
    assert run.speed == pytest.approx(10 / run.seconds)


def test_decoding_begins_when_the_last_request_has_a_token() -> None:
    """With 4 rows a step a prompt of 9 tokens needs more passes than its neighbour."""
    machine = Engine(Toy(table(0)), EngineConfig(64, block_size=4, max_requests=2, row_budget=4, prefix_cache=False))
    run = BenchRun()
    wish = SamplingParams(max_tokens=6, temperature=0.0, seed=0).resolve({})
    time_batch(machine, [[1, 2], [1, 2, 3] * 3], [wish, wish], run)
    assert run.tokens == 12 and run.decode_tokens < 10


def test_one_token_leaves_nothing_to_decode() -> None:
    run = BenchRun()
    time_batch(engine(), [[1]], [SamplingParams(max_tokens=1, temperature=0.0).resolve({})], run)
    assert run.decode_speed is None


def test_groups_and_turns() -> None:
    assert [list(g) for g in groups(5, 2)] == [[0, 1], [2, 3], [4]]
    first = Counter(rotated(["a", "b", "c"], turn)[0] for turn in range(6))
    assert first == {"a": 2, "b": 2, "c": 2}
    assert sorted(rotated(["a", "b", "c"], 1)) == ["a", "b", "c"]


def test_a_prompt_that_cannot_be_served_is_named_before_anything_runs() -> None:
    machine = engine()
    with pytest.raises(InputError, match="Prompt 2 cannot be served by 'none'"):
        measure(machine, [[1], [1] * 99], plan(), lambda what: None)
    assert not machine.busy and machine.timer.steps == 0


def test_limit() -> None:
    machine = engine()
    found = limit.measure(machine, [1, 2, 3], SamplingParams(max_tokens=4, temperature=0.0).resolve({}))
    assert found.weight_bytes == machine.model.weight_bytes
    assert found.floor_ms == pytest.approx(found.weight_bytes / found.read_gb_s / 1e6)
    assert found.fraction_of_limit == pytest.approx(found.floor_ms / found.step_ms)
    assert 0 < found.host_share < 1 and not machine.busy
