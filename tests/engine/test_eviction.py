"""What is forgotten costs time, never text: conversations under a cache that holds a few of them, and each policy."""

import random
from pathlib import Path

import pytest

from paceline import LLM, SamplingParams
from paceline.cache.policies import EVICTION_POLICIES
from paceline.core.errors import InputError

TALKS, TURNS = 6, 4


def converse(llm: LLM) -> list[list[int]]:
    """Every turn's answer; three requests at a time, conversations in changing order."""
    rng = random.Random(3)
    texts = [[rng.randrange(5, 300) for _ in range(9)] for _ in range(TALKS)]
    answers = []
    for turn in range(TURNS):
        order = rng.sample(range(TALKS), TALKS)
        for some in (order[:3], order[3:]):
            params = [SamplingParams(temperature=0.8, seed=i, max_tokens=8, ignore_eos=True) for i in some]
            for i, output in zip(some, llm.generate([texts[i] for i in some], params, progress=False)):
                texts[i] += [*output.token_ids, turn + 5]
                answers.append(output.token_ids)
    return answers


@pytest.fixture(scope="module")
def wanted(pair: tuple[Path, Path]) -> list[list[int]]:
    return converse(LLM(*pair, dtype="float32", memory="100M", drafter="none", prefix_cache=False))


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
def test_no_policy_changes_a_text(pair: tuple[Path, Path], wanted: list[list[int]], eviction: str) -> None:
    llm = LLM(*pair, dtype="float32", block_size=4, blocks=38, eviction=eviction, check=True)
    assert converse(llm) == wanted
    pool = llm.engine.cache.pool
    assert pool.evictions > 20 and pool.hits > 5
    assert llm.engine.cache.room() == llm.engine.config.blocks == 38


def test_an_unknown_policy_is_refused_before_anything_loads() -> None:
    with pytest.raises(InputError, match="Unknown eviction policy 'fifo'; known are det, lru"):
        LLM("nowhere", eviction="fifo")
