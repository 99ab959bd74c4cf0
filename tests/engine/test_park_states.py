"""Requests of models with states, through everything that moves them: parked and resumed elsewhere, rewound, forked,
replaced and found again in the prefix cache, each text is what it is alone."""

from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.core.errors import InputError
from paceline.core.operations import Fork, Park, Peek, Reserve, Resume, Rewind, Settle
from paceline.core.request import Request
from paceline.native.build import library
from tests.tiny import tiny_checkpoint

PROMPT = [5, 9, 70, 5, 9, 70, 5, 9, 70, 5, 11, 12, 5, 9, 70, 5, 9, 70, 5]
FAMILIES = ("lfm2", "qwen3_5_text", "falcon_h1", "nemotron_h", "mamba2")
QUICK = {("mamba2", "bfloat16"), ("falcon_h1", "float32")}


def wish(drafter: str) -> SamplingParams:
    return SamplingParams(temperature=0.8, seed=3, max_tokens=24, drafter=drafter, ignore_eos=True).resolve({})


def load(path: Path, dtype: str, **options: Any) -> LLM:
    return LLM(path, path, dtype=dtype, drafter="none", blocks=96, block_size=4, nodes=8, check=True, **options)


def states_of(llm: LLM) -> Any:
    """States of the target."""
    return llm.engine.model.states  # type: ignore[attr-defined]


def until(llm: LLM, request: Request, length: int) -> None:
    for _ in range(200):
        if len(request.output) >= length or not llm.engine.busy:
            return
        llm.engine.step()
    pytest.fail(f"{len(request.output)} tokens after 200 steps")


CASES = [
    pytest.param(family, dtype, kept, marks=[] if (family, dtype) in QUICK and kept in (None, 2) else pytest.mark.full)
    for family in FAMILIES
    for dtype in ("float32", "bfloat16")
    for kept in (None, 1, 2)
]


@pytest.mark.parametrize(("family", "dtype", "kept"), CASES)
def test_moved_about(family: str, dtype: str, kept: int | None, tmp_path: Path) -> None:
    """`kept`: states that a budget has room for, of target and draft together."""
    if dtype == "bfloat16" and library() is None:
        pytest.skip("the native decoder is not available here")
    path = tiny_checkpoint(tmp_path, family, seed=1, vocab=320)
    plain = load(path, dtype, prefix_cache=False)
    budget = {} if kept is None else {"state_memory": kept * 2 * sum(it.bytes for it in states_of(plain).pools)}
    other = load(path, dtype)
    texts = [plain.generate([PROMPT], wish(it), progress=False)[0].token_ids for it in ("none", "ngram", "topk")]
    want = texts[0]
    assert texts == [want] * 3
    here = load(path, dtype, **budget)
    assert kept is None or here.engine.cache.pool.snapshots.limit == kept  # type: ignore[union-attr]
    for drafter, length in (("ngram", 7), ("topk", 2), ("none", 12)):
        [request] = here.engine.submit(PROMPT, wish(drafter))
        until(here, request, length)
        number = other.engine.apply(Reserve(30))
        assert not kept or not other.engine.apply(Settle(number, here.engine.apply(Peek(request.id))))
        other.engine.apply(Settle(number, None))
        packed = here.engine.apply(Park(request.id))
        for place in (other, here):
            [again] = place.engine.apply(Resume(packed))
            until(place, again, 24)
            assert again.output == want, (drafter, length)
    [request] = other.engine.submit(PROMPT, wish("ngram"))
    until(other, request, 9)
    [again] = here.engine.apply(Resume(other.engine.apply(Park(request.id))))
    until(here, again, 24)
    assert again.output == want
    [found] = here.generate([PROMPT], wish("ngram"), progress=False)
    assert found.token_ids == want and (kept is not None or found.stats.cached == 16)
    [request] = here.engine.submit(PROMPT, wish("topk"))
    until(here, request, 15)
    for length in (13, 5, 0):  # amid a block, at the end of one, all of it
        here.engine.apply(Rewind(request.id, length))
        until(here, request, 15)
        assert request.output[:15] == want[:15], length
    [child] = here.engine.apply(Fork(request.id))
    own = [*child.output]
    until(here, request, 24)
    until(here, child, 24)
    assert request.output == want and child.output[: len(own)] == own
    with pytest.raises(InputError):
        here.engine.apply(Resume(packed[:-1]))
    if kept is not None:
        assert len(here.engine.cache.pool.snapshots) <= kept  # type: ignore[arg-type]
        anchors = len(states_of(here).pools[0].tips)
        assert anchors <= kept + 5, "of two texts each its last row, and what it replays from; one for scratch"
    for each in (plain, other, here):
        each.close()
