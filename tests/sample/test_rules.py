"""Rules: the native form is the processors, bit for bit, behind every path; so is the toy's."""

import ctypes
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pytest import MonkeyPatch

from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.core.warp import Warp
from paceline.native import structs
from paceline.native.build import library
from paceline.native.structs import CRules, CWarp, warped, warps_in
from paceline.sample import sampler as sampling
from paceline.sample.edited import edited
from paceline.sample.sampler import Sampler
from tests.sample.cases import PARAMS, TOKEN, V, admitted, request
from tests.toy import edited_plainly

needs_native = pytest.mark.skipif(library() is None, reason="this machine has no AVX2, or no compiler")
BEYOND_RULES = ("grammar", "processors")
RULED = PARAMS.map(lambda params: {name: value for name, value in params.items() if name not in BEYOND_RULES})
PATHS = st.lists(st.lists(TOKEN, max_size=6).map(tuple), min_size=1, max_size=5)
OUTPUT = st.lists(TOKEN, max_size=9)
EVERY_RULE = {
    "allowed_tokens": [7, 3, 3, 1, 2, 9], "bad_words": [[7], [3, 1], [9, 3, 4], [2, 2, 2, 2]], "min_tokens": 3,
    "stop_token_ids": [9], "logit_bias": {3: 1.1, 2: -float("inf"), 20: 0.3}, "repetition_penalty": 1.05,
    "presence_penalty": 0.7, "frequency_penalty": -0.3,
}  # fmt: skip


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32)


def one_by_one(sampler: Sampler, rows: list[sampling.RowRef], z: torch.Tensor) -> torch.Tensor:
    """The processors themselves."""
    slots = sampler._of(rows)
    return sampler._processed(slots, rows, z, {i for slot in slots for i in slot.live})


@needs_native
@settings(max_examples=120, deadline=None)
@given(st.lists(RULED, min_size=1, max_size=3), OUTPUT, PATHS, st.integers(0, 99))
@example([EVERY_RULE, {}], [9, 3, 3, 2], [(), (1,), (3, 1), (2, 2), (2, 2, 2, 0)], 5)
def test_rules_are_the_processors(params, output, paths, seed):
    """Several requests, each with an output, in one call; zeros, ties and what is removed already among the logits.
    Rules that are taken behind the first tokens of a path are those behind the output, too."""
    asks = [request(i, output=output, **each) for i, each in enumerate(params)]
    sampler = admitted(*asks)
    rows = [(ask, path) for ask in asks for path in paths]
    z = torch.randn(len(rows), V, generator=torch.Generator().manual_seed(seed)) * 4
    z[:, 5], z[:, 6], z[0, 8] = 0.0, -0.0, float("-inf")
    expected, before = one_by_one(sampler, rows, z), z.clone()
    warps = [sampler.warp(ask) for ask, _ in rows]
    got = edited(z, warps, [path for _, path in rows])
    assert torch.equal(bits(got), bits(expected)) and torch.equal(z, before)
    further = [sampler.warp(ask, path[:2]) for ask, path in rows]
    assert torch.equal(bits(edited(z, further, [path[2:] for _, path in rows])), bits(expected))
    assert torch.equal(bits(sampler._process(sampler._of(rows), rows, z)), bits(expected))
    for row, warp, (_, path), right in zip(z.double(), warps, rows, one_by_one(sampler, rows, z.double())):
        if warp.rules is not None:
            assert torch.equal(edited_plainly(row, warp.rules, path), right)


@needs_native
@pytest.mark.parametrize("frozen", ["path", "tail", "counts", "fresh", "left", "prompt"])
def test_each_part_of_a_rule_counts(frozen: str) -> None:
    """Mutants: each piece of what is known of a text, left out, changes some row."""
    ask = request(output=[9, 3, 5, 9], **{**EVERY_RULE, "min_tokens": 6})
    sampler, rows = admitted(ask), [(ask, path) for path in ((), (3,), (1,), (3, 1), (2, 2, 2))]
    del sampler._slots[0], ask.params
    ask.params = SamplingParams(**{**EVERY_RULE, "min_tokens": 6, "allowed_tokens": None})
    sampler.admit(ask)
    z = torch.randn(len(rows), V, generator=torch.Generator().manual_seed(2))
    warp, paths = sampler.warp(ask), [path for _, path in rows]
    assert warp is not None and warp.rules is not None
    expected = one_by_one(sampler, rows, z)
    assert torch.equal(edited(z, [warp] * len(rows), paths), expected)
    empty = {"tail": (), "counts": {}, "fresh": (), "left": 0, "prompt": None}
    if frozen == "path":
        paths = [()] * len(rows)
    else:
        warp = Warp(1.0, rules=replace(warp.rules, **{frozen: empty[frozen]}))
    assert not torch.equal(edited(z, [warp] * len(rows), paths), expected)


def test_what_rules_cannot_say_has_none(monkeypatch: MonkeyPatch) -> None:
    """A grammar or a callable anywhere in a batch leaves it to the processors; ids beyond the logits are nobody's."""
    own = request(1, repetition_penalty=1.3, processors=[lambda prompt, output, z: z])
    plain = request(2, temperature=0.5)
    sampler = admitted(own, plain)
    assert sampler.warp(own) is None and sampler.warp(plain) == Warp(0.5)
    beyond = Request(3, [1, V + 3], SamplingParams(repetition_penalty=2.0), seed=1)
    sampler.admit(beyond)
    if library() is not None:
        z = torch.ones(1, V)
        assert edited(z, [sampler.warp(beyond)], [(V + 9,)])[0].tolist() == [1, 0.5, *[1] * (V - 2)]


def test_the_arrays_of_a_structure_live_as_long_as_it() -> None:
    """ctypes keeps what a structure points to; whoever makes an array of them needs no list beside it."""
    ask = request(output=[4, 4, 5], **EVERY_RULE)
    warp = admitted(ask).warp(ask)
    structures = warps_in([warp] * 3)
    copies = (CWarp * 2)(*(warped(warp) for _ in range(2)))
    junk = [(ctypes.c_int64 * 4)(*[-7] * 4) for _ in range(2000)]
    for it in (*structures, *copies):
        rules = it.rules.contents
        assert [rules.token[i] for i in range(rules.counted)] == [4, 5]
        assert [rules.times[i] for i in range(rules.counted)] == [2, 1]
        assert (ctypes.c_int64 * 3).from_address(rules.word)[1] == 3
    assert len(junk) == 2000


@needs_native
def test_rows_of_a_request_share_one_structure(monkeypatch: MonkeyPatch) -> None:
    """However many rows and calls a step has; the next token makes another one, and what never changes stays."""
    made, rules_in = list[CRules](), structs.rules_in
    monkeypatch.setattr(structs, "rules_in", lambda rules: made.append(it := rules_in(rules)) or it)  # type: ignore[func-returns-value]
    asks = [request(i, output=[4, 4, 5], **EVERY_RULE) for i in range(2)]
    sampler = admitted(*asks)
    rows = [(ask, path) for ask in asks for path in ((), (3,), (3, 1))]
    z = torch.randn(len(rows), V, generator=torch.Generator().manual_seed(3))
    for length in range(1, 4):
        for _ in range(2):
            assert torch.equal(bits(sampler._process(sampler._of(rows), rows, z)), bits(one_by_one(sampler, rows, z)))
            warps = warps_in([sampler.warp(ask) for ask, _ in rows])
            assert len({ctypes.addressof(it.rules.contents) for it in warps}) == 2
            assert len(made) == 2 * length
        for ask in asks:
            sampler.commit(ask, (2,))
    for name in ("word", "size", "bias", "allow", "prompt"):
        assert len({getattr(it, name) for it in made[::2]}) == 1, name


@needs_native
def test_long_outputs_and_many_words() -> None:
    """Beyond what an example above has: arrays of thousands of numbers."""
    width, rng = 5000, torch.Generator().manual_seed(4)
    ids = torch.randperm(width, generator=rng).tolist()
    words = [[a, b] for a, b in zip(ids[:2000], ids[2000:])]
    params = {"bad_words": words, "repetition_penalty": 1.3, "presence_penalty": 0.2, "frequency_penalty": 0.1}
    ask = Request(0, ids[:50], SamplingParams(**params), seed=1, output=ids[::2])
    sampler = Sampler(width)
    sampler.admit(ask)
    rows = [(ask, path) for path in ((), (ids[7],), (ids[1], ids[2], ids[2]))]
    z = torch.randn(len(rows), width, generator=rng)
    assert torch.equal(bits(sampler._process(sampler._of(rows), rows, z)), bits(one_by_one(sampler, rows, z)))
