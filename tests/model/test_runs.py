"""Runs with drafts, natively: the tokens of a run without, chains as they are drafted alone, keys and values of both
models as passes of one row leave them."""

import ctypes
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.core.noise import TargetNoise
from paceline.core.params import SamplingParams
from paceline.core.proposer import Continuation, Proposer, ProposerTable
from paceline.core.request import Request
from paceline.core.rows import Drawn, Rows
from paceline.core.warp import Warp
from paceline.draft.ngram import LookupProposer, NgramIndex
from paceline.model.native import NativeDecoder
from paceline.native.build import Unit, library
from paceline.native.structs import CChains, addresses, integers_in, reals_in
from paceline.sample.sampler import Sampler
from tests.model.test_native import checkpoints, native
from tests.oracle.cases import VOCAB, text
from tests.oracle.rows import Chunk, lay_out
from tests.sample.ruled import SOME_RULES

__all__ = ["checkpoints"]
pytestmark = pytest.mark.skipif(library() is None, reason="this machine has no AVX2, or no compiler")
SIZE, PASSES, ROOM = 8, 5, 14
GIVEN = [text(20 + n, 4 + 3 * n) for n in range(3)]
TABLES = [[3 * n + 2, 3 * n, 3 * n + 1] for n in range(3)]
SHARE, SHARP = 0.5, 0.6
DRAFTING, MOST, WORTH = (0, 2), (3, 4), (0.05, 0.0)
"""The second text drafts nothing."""


class Chains:
    """The native half of `draft.model.ChainProposer`, without requests. `reach`: rows that the draft model has."""

    def __init__(
        self, drafter: NativeDecoder, rows: Rows, texts: list[int], nodes: list[int], least: list[float]
    ) -> None:
        self.drafter, self.rows, self.texts, self.nodes, self.least = drafter, rows, texts, nodes, least
        self.reach = integers_in([segment.base for segment in rows.segments])

    def native(self) -> ProposerTable:
        model, behind, held = self.drafter.drafting(self.rows, 99)
        nodes, least = integers_in(self.nodes), reals_in(self.least)
        places = addresses(nodes, least, self.reach)
        state = CChains(ctypes.pointer(model), ctypes.pointer(behind), *places, SHARE, SHARP)
        return ProposerTable("paceline_chains", state, (held, nodes, least))


def pairs(drawn: Drawn) -> list[tuple[int, int]]:
    """(nodes drafted, nodes kept) of each round."""
    return [(sum(round.offered), round.depth) for round in drawn.rounds]


def fill(model: NativeDecoder, lengths: Sequence[int]) -> None:
    """Pool with a number of rows of each text."""
    model.allocate(9, SIZE)
    for table, tokens, length in zip(TABLES, GIVEN, lengths):
        if length:
            model.forward(lay_out([Chunk(table, 0, tokens[:length])], SIZE))


def run(target: NativeDecoder, texts: list[Continuation], passes: int, drafts: Any = None) -> list[Drawn]:
    fill(target, [len(tokens) - 1 for tokens in GIVEN])
    last = [Chunk(table, len(tokens) - 1, tokens[-1:]) for table, tokens in zip(TABLES, GIVEN)]
    proposer: Proposer | None = drafts
    out = target.run(lay_out(last, SIZE, want=[0, 1, 2]), passes, texts, proposer)
    assert out.error is None
    return out.drawn


def chain(drafter: NativeDecoder, known: list[int], how: Continuation, most: int, worth: float, said: int) -> list[int]:
    """Drafted behind a text that nothing is known of."""
    if not most:
        return []
    drafter.allocate(9, SIZE)
    rows = lay_out([Chunk([*range(9)], 0, known)], SIZE, want=[len(known) - 1])
    [tokens] = drafter.chain(rows, [most], [how.warp], [how.keys[said:]], [worth], SHARE, SHARP)
    return tokens


def behind(warp: Warp, rules: bool, n: int, said: Sequence[int] = ()) -> Warp:
    """The warp of one of the texts behind these tokens of its output, with rules or without."""
    if not rules:
        return warp
    filters = {"temperature": warp.temperature, "top_k": warp.top_k, "top_p": warp.top_p, "min_p": warp.min_p}
    request = Request(n, list(GIVEN[n]), SamplingParams(**{**SOME_RULES, **filters}), seed=n, output=list(said))
    sampler = Sampler(VOCAB)
    sampler.admit(request)
    found = sampler.warp(request)
    assert found is not None and found.rules is not None
    return found


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
@pytest.mark.parametrize(
    ("warp", "rules"),
    [(Warp(0.0), False), (Warp(0.0), True), (Warp(0.7), False), (Warp(0.7, 40, 0.97), True)],
    ids=["greedy", "greedy rules", "temperature", "filters and rules"],
)
@pytest.mark.parametrize("unit", Unit, ids=attrgetter("name"))
def test_a_run_with_drafts(
    checkpoints: dict[str, Path], unit: Unit, warp: Warp, rules: bool, quantize: str | None
) -> None:
    """Three texts; of the first the draft model lacks one row, of the third all. The first ends before the others."""
    target, drafter = native(checkpoints["qwen3"], unit, quantize), native(checkpoints["qwen3"], unit)
    weight = drafter.weights.norm.weight
    weight.mul_(1 + 0.55 * torch.randn(len(weight), generator=torch.Generator().manual_seed(4)))
    keys = [[TargetNoise(n).key(index) for index in range(ROOM)] if not warp.greedy else [] for n in range(3)]
    warps = [behind(warp, rules, n) for n in range(3)]
    plain = run(target, [Continuation(it, mine, (), ROOM) for it, mine in zip(warps, keys)], ROOM)
    mosts = 6, ROOM, ROOM
    texts = [Continuation(it, mine[:most], (), most) for it, mine, most in zip(warps, keys, mosts)]
    lacks = [len(GIVEN[0]) - 1, 0, 0]
    fill(drafter, lacks)
    late = [Chunk(TABLES[n], lacks[n], GIVEN[n][lacks[n] :]) for n in DRAFTING]
    chains = Chains(drafter, lay_out(late, SIZE, want=[0, len(GIVEN[2])]), [*DRAFTING], [*MOST], [*WORTH])
    out = run(target, texts, PASSES, chains)
    for drawn, how, alone in zip(out, texts, plain):
        assert drawn.tokens == alone.tokens[: len(drawn.tokens)]
        assert len(drawn.tokens) == sum(kept + 1 for _, kept in pairs(drawn))
        assert len(drawn.rounds) == PASSES or len(drawn.tokens) == how.most
    assert pairs(out[1]) == [(0, 0)] * PASSES
    whole = [mine + drawn.tokens for mine, drawn in zip(GIVEN, out)]
    reached = [(target, n, len(whole[n]) - 1) for n in range(3)]
    reached += [(drafter, n, rows) for n, rows in zip(DRAFTING, chains.reach)]
    logits = [
        model.forward(lay_out([Chunk(TABLES[n], reach, whole[n][reach:])], SIZE)).logits[-1]
        for model, n, reach in reached
    ]
    for (model, n, reach), z in zip(reached, logits):
        assert len(GIVEN[n]) < reach < len(whole[n])
        model.allocate(9, SIZE)
        assert torch.equal(z, model.forward(lay_out([Chunk([*range(9)], 0, whole[n])], SIZE)).logits[-1])
    kept_ever = set()
    for n, most, worth in zip(DRAFTING, MOST, WORTH):
        said = 0
        for drafted, kept in pairs(out[n]):
            deep = min(most, texts[n].most - said - 1)
            how = texts[n]._replace(warp=behind(warp, rules, n, out[n].tokens[:said]))
            tokens = chain(drafter, GIVEN[n] + out[n].tokens[:said], how, deep, worth, said)
            agreed = next((i for i, (a, b) in enumerate(zip(tokens, plain[n].tokens[said:])) if a != b), len(tokens))
            assert (drafted, kept) == (len(tokens), agreed)
            said += kept + 1
            kept_ever.add(kept)
    assert {0} < kept_ever


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_a_run_with_lookups(checkpoints: dict[str, Path], temperature: float) -> None:
    """The third text is told what it will say twice over, then other things; the second looks nothing up."""
    target = native(checkpoints["qwen3"], Unit.DOT)
    keys = [[TargetNoise(n).key(index) for index in range(ROOM)] if temperature else [] for n in range(3)]
    texts = [Continuation(Warp(temperature), mine, (), ROOM) for mine in keys]
    plain = run(target, texts, ROOM)
    indices = {n: NgramIndex(len(GIVEN[n]) - 3) for n in DRAFTING}
    known = {0: plain[0].tokens[:5] + GIVEN[0], 2: GIVEN[2] + plain[2].tokens + GIVEN[2][:7] + GIVEN[2]}
    for n, index in indices.items():
        index.extend(known[n])
    texts_known = [known[n] for n in DRAFTING]
    lookups = LookupProposer([*DRAFTING], [*MOST], [0.2, 0.06], texts_known, [*indices.values()])
    out = run(target, texts, PASSES, lookups)
    assert pairs(out[1]) == [(0, 0)] * PASSES
    for n, most, least in zip(DRAFTING, MOST, lookups.least):
        said = 0
        for drafted, kept in pairs(out[n]):
            tokens = indices[n].draft(known[n] + out[n].tokens[:said], min(most, ROOM - said - 1), least)
            agreed = next((i for i, (a, b) in enumerate(zip(tokens, plain[n].tokens[said:])) if a != b), len(tokens))
            assert (drafted, kept) == (len(tokens), agreed)
            said += kept + 1
        assert out[n].tokens == plain[n].tokens[:said]
    assert (4, 4) in pairs(out[2]) and {drafted for drafted, _ in pairs(out[0])} > {0}


def test_a_lookup_is_the_index_of_ngram(checkpoints: dict[str, Path]) -> None:
    """Over texts of few tokens, where ends of every length are found, and right or wrong by chance; the drafts of a
    run of one pass, which the target need not agree with."""
    target = native(checkpoints["qwen3"], Unit.DOT)
    sizes = set()
    for seed in range(40):
        g = torch.Generator().manual_seed(seed)
        tokens = [torch.randint(2 + seed % 3, (40,), generator=g).tolist() for _ in range(2)]
        indices = [NgramIndex(10 * i) for i in range(2)]
        for index, mine in zip(indices, tokens):
            index.extend(mine)
        worth = [0.3, 0.05]
        lookups = LookupProposer([2, 0], [6, 6], worth, tokens, indices)
        out = run(target, [Continuation(Warp(0.0), [], (), 30)] * 3, 1, lookups)
        drafts = [index.draft(mine, 6, least) for index, mine, least in zip(indices, tokens, worth)]
        assert [pairs(out[2])[0][0], pairs(out[0])[0][0]] == [*map(len, drafts)]
        sizes |= {*map(len, drafts)}
    assert sizes >= {0, 1, 2, 6}


def test_what_a_lookup_copies(checkpoints: dict[str, Path]) -> None:
    """The latest of two matches; and a match that reaches the end of the text goes on into what it has drafted."""
    target = native(checkpoints["qwen3"], Unit.DOT)
    for seed in range(60):
        keys = [[TargetNoise(3 * seed + n).key(i) for i in range(ROOM)] for n in range(3)]
        texts = [Continuation(Warp(0.3), mine, (), ROOM) for mine in keys]
        said = run(target, texts, ROOM)[0].tokens
        period = next((n for n in range(2, 6) if said[n] == said[0] and len({*said[:n]}) == n), 0)
        if period:
            break
    assert period
    other = max(said) + 1
    for tokens, most in (([other, 0, other, *said[:2], other], 2), ([said[period - 1], *said[:period]], period + 1)):
        index = NgramIndex(len(tokens))
        index.extend(tokens)
        lookups = LookupProposer([0], [most], [0.0], [tokens], [index])
        assert index.draft(tokens, most, 0.0) == said[:most]
        assert pairs(run(target, texts, 1, lookups)[0]) == [(most, most)]
