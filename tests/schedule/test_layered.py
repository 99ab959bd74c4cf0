"""Prompts by groups of layers: one cohort, in lock-step, whose rows nobody else sees before the last layer."""

import random
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.core.errors import RefusalError
from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.engine.config import EngineConfig
from paceline.engine.loop import Engine
from paceline.model.load import load_model
from paceline.native.build import library
from paceline.schedule.layered import Layered, ends
from tests.lossless.cases import Setting, plain
from tests.schedule.population import Arrival, Population, Stairs
from tests.tiny import tiny_checkpoint
from tests.toy import LAYERS, VOCAB

native = pytest.mark.skipif(library() is None, reason="no native library here")
LONG = random.Random(5).choices(range(VOCAB), k=20)


def test_groups_are_as_equal_as_can_be_and_have_a_layer_each() -> None:
    assert [ends(6, n) for n in (1, 2, 4, 6, 99)] == [[6], [3, 6], [2, 4, 5, 6], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]]


def busy(groups: int | None = 4, **more: object) -> tuple[Engine, Request, Request]:
    """An engine in which somebody decodes and a prompt of 20 tokens has just been queued."""
    setting = Setting(schedule="layered", layer_groups=groups, row_budget=64, **more)  # type: ignore[arg-type]
    engine = setting.engine()
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=24, ignore_eos=True, drafter="ngram").resolve({})
    [chat] = engine.submit([1, 2, 3], params)
    engine.step()
    engine.step()
    [long] = engine.submit(LONG, params)
    return engine, chat, long


def finish(engine: Engine, *requests: Request) -> None:
    """All end with their own texts, and nothing is left over."""
    while engine.busy:
        engine.step()
    engine.cache.check_integrity()
    for request in requests:
        assert request.output == plain(Setting().target(), request.prompt, request.params), request.id
    assert engine.snapshot().used == 0


@pytest.mark.parametrize(("groups", "steps"), [(1, 1), (2, 2), (3, 3), (4, 4), (99, 4)])
def test_a_prompt_takes_a_step_a_group_and_decodes_go_on(groups: int, steps: int) -> None:
    engine, chat, long = busy(groups)
    for step in range(steps):
        before = len(chat.output)
        assert not long.output and long.layer == (ends(LAYERS, groups)[step - 1] if step else 0)
        engine.step()
        assert len(chat.output) > before
    assert len(long.output) == 1 and long.layer == 0
    finish(engine, chat, long)


def test_each_layer_is_run_once_for_the_prompt() -> None:
    """Rows of the prompt times layers, over all steps: those of one pass."""
    engine, chat, long = busy(4)
    seen, forward = list[tuple[int, int]](), engine.model.forward

    def noted(rows):  # type: ignore[no-untyped-def]
        last = LAYERS if rows.program.last is None else rows.program.last
        seen.extend((layer, segment.rows) for segment in rows.segments for layer in range(rows.program.first, last)
                    if segment.rows == len(LONG))  # fmt: skip
        return forward(rows)

    engine.model.forward = noted  # type: ignore[method-assign]
    while not long.output:
        engine.step()
    assert seen == [(layer, len(LONG)) for layer in range(LAYERS)]
    finish(engine, chat, long)


def test_without_decodes_the_rest_runs_at_once() -> None:
    engine, chat, long = busy(4)
    engine.step()
    assert long.layer == 1
    engine.abort(chat)
    engine.step()
    assert len(long.output) == 1
    finish(engine, long)


def test_a_second_prompt_waits_for_the_cohort_and_shares_what_it_computed() -> None:
    engine, chat, long = busy(4)
    engine.step()
    [other] = engine.submit([*LONG, 3], long.params)
    while not long.output:
        engine.step()
        assert other.length == 0 and other.layer == 0, "a second cohort, or K/V of unfinished layers was found"
    engine.step()
    engine.step()
    engine.step()
    finish(engine, chat, long, other)


def test_nothing_of_unfinished_layers_is_published() -> None:
    engine, chat, long = busy(4)
    names = engine.cache.names([*LONG, 0])
    for _ in range(3):
        engine.step()
        assert long.layer and not any(name in engine.cache.pool.index for name in names)
    engine.step()
    assert all(name in engine.cache.pool.index for name in names)
    finish(engine, chat, long)


def leave(engine: Engine, long: Request) -> None:
    engine.abort(long)


def restart(engine: Engine, long: Request) -> None:
    engine.desk._stop([long])
    engine.drafters.forget(long)


def fail(engine: Engine, long: Request) -> None:
    forward, engine.model.forward = engine.model.forward, lambda rows: 1 / 0  # type: ignore[method-assign,assignment]
    with pytest.raises(ZeroDivisionError):
        engine.step()
    engine.model.forward = forward  # type: ignore[method-assign]


@pytest.mark.parametrize("happens", [leave, restart, fail])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_what_waits_inside_the_model_goes_with_its_request(happens: Callable, steps: int) -> None:
    """Abort, pre-emption, and a pass that fails: no hidden row is left, and the text is the same."""
    engine, chat, long = busy(4)
    for _ in range(steps):
        engine.step()
    txn = long.lease.txn  # type: ignore[union-attr]
    assert txn.held.layer == long.layer == steps and len(txn.held.hidden) == long.held == len(LONG)
    happens(engine, long)
    assert long.layer == 0 and not txn.open and txn.held is None
    finish(engine, chat, *([] if long.finish else [long]))


def test_a_long_prompt_is_computed_in_cohorts_of_the_row_budget() -> None:
    done = Population(
        [Arrival(0, 3, 200), Arrival(2, 150, 4)], "layered", budget=64, blocks=200, nodes=0, target=0.0
    ).run()
    assert isinstance(done.policy, Layered)
    rows = [given for items, _ in done.log for number, given, _ in items if number == 1 and given > 1]
    assert sum(rows) == 150 and max(rows) == 63


@pytest.mark.parametrize(
    ("measured", "target", "groups"), [(True, 2.0, 3), (True, 3.0, 2), (True, 0.0, 1), (False, 2.0, 2)]
)
def test_a_step_takes_no_longer_than_a_chunk(measured: bool, target: float, groups: int) -> None:
    """Steps of a second for each 16 rows, one that decodes, and a prompt of 60: beside it, all layers take 3 seconds
    more than the decode alone, and a chunk within the target 1 or 2. Unmeasured, rows alone say how many."""
    done = Population([Arrival(0, 3, 60), Arrival(2, 60, 2)], "layered", budget=64, blocks=200, nodes=0, target=target)
    done.policy.chunked.forecast = Stairs(measured=measured)  # type: ignore[attr-defined]
    done.run()
    steps = [[given for number, given, _ in items if number == 1] for items, _ in done.log]
    assert [given for each in steps for given in each if given > 1] == [60] * groups


def test_a_model_that_keeps_states_is_refused() -> None:
    with pytest.raises(RefusalError, match="schedule layered needs a model whose rows can wait between two layers"):
        Setting(schedule="layered", recurrent=frozenset({"target"})).engine()


EXPERTS, ACTIVE = 6, 3


@pytest.mark.parametrize("fast", [pytest.param(True, marks=native), False])
def test_a_mixture_has_the_same_logits_and_reads_each_expert_once(fast: bool, tmp_path: Path) -> None:
    """A prompt of 96 tokens beside two that decode, in any number of groups: raw logits bit for bit (in PyTorch up to
    rounding), and loads between those of the fewest and the most experts that the decodes can need meanwhile."""
    layers = 4
    where = tiny_checkpoint(tmp_path, "qwen3_moe", vocab=96, layers=layers, hidden=64, with_tokenizer=False,
                            decoder_sparse_step=1)  # fmt: skip
    found: dict[int, tuple[torch.Tensor, int]] = {}
    for groups in (1, 2, 3, layers):
        model = load_model(where, cache=False, fast=fast)
        config = EngineConfig(blocks=40, row_budget=128, max_requests=4, schedule="layered", layer_groups=groups)
        engine = Engine(model, config)
        params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True, prompt_logprobs=0).resolve({})
        for start in (1, 2):
            engine.submit([start, 5, 7], params)
        engine.step()
        [long] = engine.submit([random.Random(7).randrange(96) for _ in range(96)], params)
        before = model.expert_loads
        while not long.output:
            engine.step()
        assert engine.desk.totals.preemptions == 0
        kept = [entry.logprob for entry in long.prompt_logprobs if entry is not None]
        found[groups] = torch.tensor(kept, dtype=torch.float64), model.expert_loads - before
        least, most = layers * ACTIVE * (groups - 1), layers * EXPERTS * (groups - 1)
        whole = found[1][1]
        assert whole <= layers * EXPERTS and whole + least <= found[groups][1] <= whole + most
        same = torch.equal if fast else torch.allclose
        assert len(kept) == 95 and same(found[groups][0], found[1][0])


DRAFTERS = ("none", "ngram", "model", "topk", "ngram+topk", "ngram|model")


@pytest.mark.full
@pytest.mark.parametrize("kv", [None, "int8"])
@pytest.mark.parametrize("family", ["qwen3_moe", "llama", "gemma3_text", "gpt_oss", "mixtral"])
def test_layers_change_no_text_whoever_drafts_however_keys_are_packed(
    family: str, kv: str | None, tmp_path: Path
) -> None:
    """Prompts that arrive while others decode, in a cache that does not hold all: texts as in chunks, with prefix hits,
    pre-emptions and samples that share a prompt."""
    target, draft = (
        tiny_checkpoint(tmp_path / name, family, seed=seed, layers=3) for seed, name in enumerate(("target", "draft"))
    )
    prompts = [[*range(3, 23), last, *range(5, 5 + 3 * last)] for last in (5, 9, 2, 7)]
    found = {}
    for schedule in ("chunked", "layered"):
        own = {"layer_groups": 2, "blocks": 34} if schedule == "layered" else {"blocks": 90}
        llm = LLM(
            target, draft, dtype="bfloat16" if kv else "float32", kv_dtype=kv, schedule=schedule, block_size=4,
            check=True, row_budget=64, max_requests=4, drafter="ngram", tbt_target_ms=0.0, **own,  # type: ignore[arg-type]
        )  # fmt: skip
        made, waited = llm.engine.desk.plan, 0

        def noted(now: float, held: Collection[int] = (), made: Callable = made) -> Plan:
            nonlocal waited
            plan = made(now, held)
            waited += sum(item.partial for item in plan.items)
            return plan

        llm.engine.desk.plan = noted  # type: ignore[method-assign]
        for drafter in DRAFTERS if schedule == "layered" else ("none",):
            wish = SamplingParams(temperature=0.8, seed=4, max_tokens=12, drafter=drafter, ignore_eos=True)
            wishes = [replace(wish, max_tokens=6 + 4 * i, n=2 - i % 2) for i in range(len(prompts))]
            outs = llm.generate(prompts, wishes, progress=False)
            found[drafter, schedule] = [sample.token_ids for out in outs for sample in out.outputs]
        assert llm.engine.snapshot().used == 0 and (waited > 0) == (schedule == "layered")
    assert all(texts == found["none", "chunked"] for texts in found.values())
