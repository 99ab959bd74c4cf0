"""Runs with drafts, natively: the tokens of a run without, chains as they are drafted alone, keys and values of both
models as passes of one row leave them."""

from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

import pytest
import torch

from paceline.core.noise import TargetNoise
from paceline.core.rows import Chains, Drawn, Lookups, Straight
from paceline.draft.ngram import MEMORY, STAMINA, Index
from paceline.model.native import NativeDecoder
from paceline.native.build import Unit, library
from tests.model.test_native import checkpoints, native
from tests.oracle.cases import text
from tests.oracle.rows import Chunk, lay_out

__all__ = ["checkpoints"]
pytestmark = pytest.mark.skipif(library() is None, reason="this machine has no AVX2, or no compiler")
SIZE, PASSES, ROOM = 8, 5, 14
GIVEN = [text(20 + n, 4 + 3 * n) for n in range(3)]
TABLES = [[3 * n + 2, 3 * n, 3 * n + 1] for n in range(3)]
SHARE, SHARP = 0.5, 0.6
DRAFTING, MOST, WORTH = (0, 2), (3, 4), (0.05, 0.0)
"""The second text drafts nothing."""


def fill(model: NativeDecoder, lengths: Sequence[int]) -> None:
    """A pool with so many rows of each text."""
    model.allocate(9, SIZE)
    for table, tokens, length in zip(TABLES, GIVEN, lengths):
        if length:
            model.forward(lay_out([Chunk(table, 0, tokens[:length])], SIZE))


def run(target: NativeDecoder, texts: list[Straight], passes: int, chains: Chains | Lookups | None = None) -> Drawn:
    fill(target, [len(tokens) - 1 for tokens in GIVEN])
    last = [Chunk(table, len(tokens) - 1, tokens[-1:]) for table, tokens in zip(TABLES, GIVEN)]
    drawn = target.run(lay_out(last, SIZE, want=[0, 1, 2]), passes, texts, chains).drawn
    assert drawn is not None
    return drawn


def chain(drafter: NativeDecoder, known: list[int], how: Straight, most: int, worth: float, said: int) -> list[int]:
    """Drafted behind a text that nothing is known of."""
    if not most:
        return []
    drafter.allocate(9, SIZE)
    rows = lay_out([Chunk([*range(9)], 0, known)], SIZE, want=[len(known) - 1])
    [tokens] = drafter.chain(rows, [most], [how.temperature], [how.keys[said:]], [worth], SHARE, SHARP)
    return tokens


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("unit", Unit, ids=attrgetter("name"))
def test_a_run_with_drafts(checkpoints: dict[str, Path], unit: Unit, temperature: float, quantize: str | None) -> None:
    """Three texts; of the first the draft model lacks one row, of the third all. The first ends before the others."""
    target, drafter = native(checkpoints["qwen3"], unit, quantize), native(checkpoints["qwen3"], unit)
    weight = drafter.weights.norm.weight
    weight.mul_(1 + 0.55 * torch.randn(len(weight), generator=torch.Generator().manual_seed(4)))
    keys = [[TargetNoise(n).key(index) for index in range(ROOM)] if temperature else [] for n in range(3)]
    plain = run(target, [Straight(temperature, mine, (), ROOM) for mine in keys], ROOM)
    texts = [Straight(temperature, mine[:most], (), most) for mine, most in zip(keys, (6, ROOM, ROOM))]
    lacks = [len(GIVEN[0]) - 1, 0, 0]
    fill(drafter, lacks)
    behind = [Chunk(TABLES[n], lacks[n], GIVEN[n][lacks[n] :]) for n in DRAFTING]
    rows = lay_out(behind, SIZE, want=[0, len(GIVEN[2])])
    out = run(target, texts, PASSES, Chains(drafter, rows, [*DRAFTING], [*MOST], [*WORTH], SHARE, SHARP))
    for tokens, passes, how, alone in zip(out.tokens, out.passes, texts, plain.tokens):
        assert tokens == alone[: len(tokens)] and len(tokens) == sum(kept + 1 for _, kept in passes)
        assert len(passes) == PASSES or len(tokens) == how.most
    assert out.passes[1] == [(0, 0)] * PASSES
    whole = [mine + tokens for mine, tokens in zip(GIVEN, out.tokens)]
    reached = [(target, n, len(whole[n]) - 1) for n in range(3)] + [(drafter, n, out.reach[n]) for n in DRAFTING]
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
        for drafted, kept in out.passes[n]:
            tokens = chain(
                drafter, GIVEN[n] + out.tokens[n][:said], texts[n], min(most, texts[n].most - said - 1), worth, said
            )
            agreed = next((i for i, (a, b) in enumerate(zip(tokens, plain.tokens[n][said:])) if a != b), len(tokens))
            assert (drafted, kept) == (len(tokens), agreed)
            said += kept + 1
            kept_ever.add(kept)
    assert {0} < kept_ever


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_a_run_with_lookups(checkpoints: dict[str, Path], temperature: float) -> None:
    """The third text is told what it will say twice over, then other things; the second looks nothing up."""
    target = native(checkpoints["qwen3"], Unit.DOT)
    keys = [[TargetNoise(n).key(index) for index in range(ROOM)] if temperature else [] for n in range(3)]
    texts = [Straight(temperature, mine, (), ROOM) for mine in keys]
    plain = run(target, texts, ROOM)
    indices = {n: Index(len(GIVEN[n]) - 3) for n in DRAFTING}
    known = {0: plain.tokens[0][:5] + GIVEN[0], 2: GIVEN[2] + plain.tokens[2] + GIVEN[2][:7] + GIVEN[2]}
    for n, index in indices.items():
        index.extend(known[n])
    rates = [[x for pair in zip(index.hits, index.tries) for x in pair] for index in indices.values()]
    lookups = Lookups([*DRAFTING], [*MOST], [0.2, 0.06], [known[n] for n in DRAFTING], rates, STAMINA, MEMORY)
    out = run(target, texts, PASSES, lookups)
    assert out.passes[1] == [(0, 0)] * PASSES and out.reach == {}
    for n, most, worth in zip(DRAFTING, MOST, lookups.worth):
        said = 0
        for drafted, kept in out.passes[n]:
            tokens = indices[n].draft(known[n] + out.tokens[n][:said], min(most, ROOM - said - 1), worth)
            agreed = next((i for i, (a, b) in enumerate(zip(tokens, plain.tokens[n][said:])) if a != b), len(tokens))
            assert (drafted, kept) == (len(tokens), agreed)
            said += kept + 1
        assert out.tokens[n] == plain.tokens[n][:said]
    assert (4, 4) in out.passes[2] and {drafted for drafted, _ in out.passes[0]} > {0}


def test_a_lookup_is_the_index_of_ngram(checkpoints: dict[str, Path]) -> None:
    """Over texts of few tokens, where ends of every length are found, and right or wrong by chance; the drafts of a
    run of one pass, which the target need not agree with."""
    target = native(checkpoints["qwen3"], Unit.DOT)
    sizes = set()
    for seed in range(40):
        g = torch.Generator().manual_seed(seed)
        tokens = [torch.randint(2 + seed % 3, (40,), generator=g).tolist() for _ in range(2)]
        indices = [Index(10 * i) for i in range(2)]
        for index, mine in zip(indices, tokens):
            index.extend(mine)
        rates = [[x for pair in zip(index.hits, index.tries) for x in pair] for index in indices]
        worth = [0.3, 0.05]
        lookups = Lookups([2, 0], [6, 6], worth, tokens, rates, STAMINA, MEMORY)
        out = run(target, [Straight(0.0, [], (), 30)] * 3, 1, lookups)
        drafts = [index.draft(mine, 6, least) for index, mine, least in zip(indices, tokens, worth)]
        assert [out.passes[2][0][0], out.passes[0][0][0]] == [*map(len, drafts)]
        sizes |= {*map(len, drafts)}
    assert sizes >= {0, 1, 2, 6}


def test_what_a_lookup_copies(checkpoints: dict[str, Path]) -> None:
    """The latest of two matches; and a match that reaches the end of the text goes on into what it has drafted."""
    target = native(checkpoints["qwen3"], Unit.DOT)
    for seed in range(60):
        texts = [Straight(0.3, [TargetNoise(3 * seed + n).key(i) for i in range(ROOM)], (), ROOM) for n in range(3)]
        said = run(target, texts, ROOM).tokens[0]
        period = next((n for n in range(2, 6) if said[n] == said[0] and len({*said[:n]}) == n), 0)
        if period:
            break
    assert period
    other = max(said) + 1
    for tokens, most in (([other, 0, other, *said[:2], other], 2), ([said[period - 1], *said[:period]], period + 1)):
        index = Index(len(tokens))
        index.extend(tokens)
        rates = [x for pair in zip(index.hits, index.tries) for x in pair]
        lookups = Lookups([0], [most], [0.0], [tokens], [rates], STAMINA, MEMORY)
        assert index.draft(tokens, most, 0.0) == said[:most]
        assert run(target, texts, 1, lookups).passes[0] == [(most, most)]
