"""Sixty-four requests under a K/V budget that holds ten: everyone finishes, each equal to its solo run."""

import dataclasses
import random
from pathlib import Path

import pytest

from paceline import LLM, SamplingParams
from paceline.core.errors import CapacityError


def wishes(rng: random.Random) -> list[tuple[list[int], SamplingParams]]:
    out = []
    for i in range(64):
        prompt = [rng.randrange(5, 300) for _ in range(rng.randrange(4, 60))]
        params = SamplingParams(
            temperature=rng.choice([0.0, 0.7, 1.0]), top_k=rng.choice([0, 20]), top_p=rng.choice([1.0, 0.9]),
            repetition_penalty=rng.choice([1.0, 1.2]), frequency_penalty=rng.choice([0.0, 0.3]), seed=i,
            max_tokens=rng.randrange(8, 60), drafter=rng.choice(["none", "ngram", "model"]), ignore_eos=True,
            stop_token_ids=rng.choice([(), (17,)]),
        )  # fmt: skip
        out.append((prompt, params))
    return out


def test_pre_emption_loses_nothing(pair: tuple[Path, Path]) -> None:
    cases = wishes(random.Random(5))
    probe = LLM(*pair, dtype="float32", memory="100M")
    longest = max(len(p) + (w.max_tokens or 0) for p, w in cases)
    small = LLM(*pair, dtype="float32", block_size=4, check=True, blocks=160)
    assert small.engine.config.blocks * 4 >= longest
    together = small.generate([p for p, _ in cases], [w for _, w in cases], progress=False)
    preempted = sum(o.stats.preempted for o in together)
    print(f"\n{preempted} pre-emptions among 64 requests, {small.engine.config.blocks * 4} slots")
    assert preempted > 20
    assert small.engine.drafters.errors == []
    for (prompt, wish), output in zip(cases, together):
        solo = probe.generate(prompt, dataclasses.replace(wish, drafter="none"), progress=False)[0]
        assert output.token_ids == solo.token_ids
        assert output.finish_reason == solo.finish_reason
    assert small.engine.cache.room() == small.engine.config.blocks


def test_a_request_that_names_no_length_gets_what_the_cache_holds(pair: tuple[Path, Path]) -> None:
    """As many clients do: the context is longer than the cache."""
    with LLM(*pair, dtype="float32", block_size=4, blocks=12) as llm:
        assert llm.engine.session.longest == 48 < llm.engine.model.max_len
        params = SamplingParams(temperature=0, ignore_eos=True, seed=1)
        for prompt in ([5, 6, 7], list(range(5, 50))):
            [output] = llm.generate([prompt], params, progress=False)
            assert (len(prompt) + len(output.token_ids), output.finish_reason) == (48, "length")
        long = dataclasses.replace(params, max_tokens=60)
        with pytest.raises(CapacityError, match="can grow to 63"):
            llm.generate([[5, 6, 7]], long, progress=False)
        with pytest.raises(CapacityError):
            llm.generate([list(range(5, 60))], params, progress=False)
