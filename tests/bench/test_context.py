import pytest

from paceline.bench import context
from paceline.bench.context import (
    FEWEST_TURNS,
    LONG_TEXT_TOKENS,
    SHORT_TEXT_TOKENS,
    TURN_TOKENS,
    Context,
    measure,
    turns_in_time,
)
from paceline.core.params import SamplingParams
from paceline.engine.config import EngineConfig
from paceline.engine.loop import Engine
from tests.toy import Toy, table

GREEDY = SamplingParams(temperature=0.0, seed=0).resolve({})


def machine(max_len: int, blocks: int) -> Engine:
    model = Toy(table(0))
    model.max_len = max_len
    return Engine(model, EngineConfig(blocks, max_requests=1, row_budget=512))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine takes for a prompt."""
    monkeypatch.setattr(context, "LONG_PROMPT_S", 1e9)


def test_steps_behind_both_texts_are_timed() -> None:
    engine, seen = machine(8192, 400), list[int]()
    forward = engine.model.forward
    engine.model.forward = lambda rows: seen.append(rows.segments[0].base) or forward(rows)  # type: ignore[method-assign,func-returns-value]
    found = measure(engine, GREEDY, turns=2)
    assert found is not None and (found.short, found.tokens) == (SHORT_TEXT_TOKENS, LONG_TEXT_TOKENS)
    assert found.kv_bytes == (LONG_TEXT_TOKENS - SHORT_TEXT_TOKENS) * engine.model.kv_bytes_per_token
    for length in SHORT_TEXT_TOKENS, LONG_TEXT_TOKENS:
        assert all(seen.count(length + i) >= 3 for i in range(TURN_TOKENS)), "the warm-up and two turns"
    assert not engine.busy
    engine.cache.check_integrity()


@pytest.mark.parametrize("max_len, blocks, tokens", [(1000, 400, 975), (8192, 50, 775), (400, 400, None)])
def test_the_longer_text_is_as_long_as_it_can_be(max_len: int, blocks: int, tokens: int | None) -> None:
    found = measure(machine(max_len, blocks), GREEDY, turns=1)
    assert (found.tokens if found else None) == tokens


def test_a_slow_machine_makes_fewer_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(turns_in_time(24)) == list(range(25)), "within the time"
    monkeypatch.setattr(context, "PROFILED_S", 0.0)
    assert list(turns_in_time(24)) == list(range(FEWEST_TURNS + 1))
    assert list(turns_in_time(2)) == [0, 1, 2]
    monkeypatch.setattr(context, "LONG_PROMPT_S", 0.0)
    found = measure(machine(8192, 400), GREEDY, turns=1)
    assert found is not None and found.tokens == 2 * SHORT_TEXT_TOKENS, "and has a shorter text"


def test_what_is_said() -> None:
    told = Context(300, 3900, 2.0, 1.5, 2.5, 50_000_000, 50.0).summary()
    assert "3,900 tokens" in told and "2.00 times what reading their 50.0 MB takes at 50.0 GB/s" in told
