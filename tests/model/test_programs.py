"""Programs in both decoders: sub-layers left out, early exits, layers that read one input; taps and Python's own
proposers inside native runs; K/V that leaves one pool and enters another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.core.errors import InputError
from paceline.core.noise import TargetNoise
from paceline.core.program import Program
from paceline.core.proposer import Continuation, Draft, Turn
from paceline.core.warp import Warp
from paceline.model.decoder import Decoder
from paceline.model.load import load_model
from paceline.model.native import NativeDecoder
from paceline.native.build import library, unit
from tests.model.test_native import checkpoints, native
from tests.model.test_runs import GIVEN, ROOM, SIZE, TABLES, fill
from tests.oracle.cases import text
from tests.oracle.rows import Chunk, lay_out

__all__ = ["checkpoints"]
needs_native = pytest.mark.skipif(library() is None, reason="this machine has no AVX-512 BF16 or no compiler")
TOKENS = text(7, 21)
LAYERS = 3


def by_hand(model: Decoder, program: Program) -> torch.Tensor:
    """Logits of TOKENS, layer by layer, by the definition."""
    model.allocate(16, 16)
    rows = lay_out([Chunk(range(2), 0, TOKENS)], 16)
    x = model.embed(rows.token)
    for pool in model.pools:
        pool.prepare(rows)
    turns = [rotary(rows.position, len(TOKENS)) for rotary in model.rotaries]
    last = LAYERS if program.last is None else program.last
    entries = {group[0]: group for group in program.groups}
    inside = {index: group[0] for group in program.groups for index in group}
    held: dict[int, torch.Tensor] = {}
    for index in range(program.first, last):
        if index in entries:
            held[index] = x.clone()
        block, entry = model.weights.blocks[index], held.get(inside.get(index, -1))
        if (index, "attention") not in program.skip:
            block.attend(x, entry, turns[model.rotary_of[index]], model.pools[model.pool_of[index]])
        if (index, "ffn") not in program.skip:
            block.feed(x)
    return model.head(model.weights.norm(x))


PROGRAMS = {
    "exit": Program(last=2),
    "skip": Program(skip=frozenset({(0, "ffn"), (1, "attention"), (2, "attention")})),
    "groups": Program(groups=((0, 1),)),
    "all": Program(last=3, skip=frozenset({(1, "ffn")}), groups=((1, 2),)),
}


def run_of(model: Decoder, program: Program) -> torch.Tensor:
    model.allocate(16, 16)
    rows = lay_out([Chunk(range(2), 0, TOKENS)], 16)
    rows.program = program
    return model.forward(rows).logits


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_a_program_is_its_layers_one_by_one(checkpoints: dict[str, Path], family: str, name: str) -> None:
    model = load_model(checkpoints[family], dtype="float32")
    whole, mine = run_of(model, Program()), run_of(model, PROGRAMS[name])
    torch.testing.assert_close(mine, by_hand(model, PROGRAMS[name]))
    assert not torch.allclose(mine, whole, atol=1e-3)


@needs_native
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_the_native_decoder_runs_the_same_program(checkpoints: dict[str, Path], family: str, name: str) -> None:
    fast = native(checkpoints[family], unit())
    slow = load_model(checkpoints[family], dtype="float32")
    mine, twin, whole = run_of(fast, PROGRAMS[name]), run_of(slow, PROGRAMS[name]), run_of(fast, Program())
    error = (mine - twin).abs().max()
    assert error < 0.1 * (mine - whole).abs().max(), "closer to its twin than to the whole model"


@needs_native
def test_groups_of_one_layer_change_no_bit(checkpoints: dict[str, Path]) -> None:
    model = native(checkpoints["qwen3"], unit())
    assert torch.equal(run_of(model, Program(groups=((0,), (1,), (2,)))), run_of(model, Program()))


@pytest.mark.parametrize(
    ("program", "taps", "message"),
    [
        (Program(0, 9), (), "does not fit a model of 3"),
        (Program(skip=frozenset({(7, "ffn")})), (), "layer 7"),
        (Program(groups=((0, 2),)), (), "runs of neighbouring"),
        (Program(groups=((0, 1), (1, 2))), (), "disjoint"),
        (Program(), ("input:5",), "no hidden state 'input:5'"),
        (Program(0, 2, head=False), ("post_norm",), "not in a pass"),
        (Program(2, 3), ("input:0",), "not in a pass"),
    ],
)
def test_what_no_model_can_do_is_refused(
    checkpoints: dict[str, Path], program: Program, taps: tuple[str, ...], message: str
) -> None:
    for model in [load_model(checkpoints["qwen3"], dtype="float32"), load_model(checkpoints["qwen3"])]:
        model.allocate(16, 16)
        rows = lay_out([Chunk(range(2), 0, TOKENS)], 16, taps=taps)
        rows.program = program
        with pytest.raises(InputError, match=message):
            model.forward(rows)


# -- inside runs -------------------------------------------------------------------------------------------------------


@dataclass
class Oracle:
    """Drafts trees that have the right tokens in them (told beforehand), beside wrong ones, from Python."""

    said: list[list[int]]
    texts: list[int]
    nodes: list[int]
    told: list[tuple[int, list[int]]] = field(default_factory=list)
    fail: bool = False

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        if self.fail:
            raise RuntimeError("no draft today")
        return [self.tree(self.said[self.texts[t.place]][len(t.said) :][: min(2, t.room)]) for t in turns]

    @staticmethod
    def tree(right: list[int]) -> Draft:
        """Wrong, right, below the right one wrong and right: the accepted rows are not the first ones."""
        tokens, parents, above = list[int](), list[int](), -1
        for token in right:
            tokens += [(token + 1) % 50, token]
            parents += [above, above]
            above = len(tokens) - 1
        return tokens, parents

    def kept(self, turns: Sequence[Turn], paths: Sequence[Sequence[int]]) -> None:
        self.told += [(turn.place, list(path)) for turn, path in zip(turns, paths)]

    def native(self) -> None:
        return None


def texts_of(temperature: float) -> list[Continuation]:
    keys = [[TargetNoise(n).key(i) for i in range(ROOM)] if temperature else [] for n in range(3)]
    return [Continuation(Warp(temperature), mine, (), ROOM) for mine in keys]


def run_all(model: NativeDecoder, texts: list[Continuation], passes: int, proposer: Any = None, taps: Any = ()) -> Any:
    fill(model, [len(tokens) - 1 for tokens in GIVEN])
    last = [Chunk(table, len(tokens) - 1, tokens[-1:]) for table, tokens in zip(TABLES, GIVEN)]
    return model.run(lay_out(last, SIZE, want=[0, 1, 2], taps=taps), passes, texts, proposer)


@needs_native
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_trees_from_python_in_a_run(checkpoints: dict[str, Path], temperature: float) -> None:
    """The text is that of plain passes, so are keys and values, and every round keeps the right path."""
    model = native(checkpoints["qwen3"], unit())
    texts = texts_of(temperature)
    plain = [drawn.tokens for drawn in run_all(model, texts, ROOM).drawn]
    proposer = Oracle(plain, [0, 2], [4, 4])
    out = run_all(model, texts, 4, proposer)
    assert out.error is None and out.drafting > 0
    for n, drawn in enumerate(out.drawn):
        assert drawn.tokens == plain[n][: len(drawn.tokens)]
        assert [round.depth for round in drawn.rounds] == ([2] * 4 if n != 1 else [0] * 4)
        whole = GIVEN[n] + drawn.tokens
        after = model.forward(lay_out([Chunk(TABLES[n], len(whole) - 1, whole[-1:])], SIZE)).logits[-1]
        model_again = native(checkpoints["qwen3"], unit())
        model_again.allocate(9, SIZE)
        assert torch.equal(after, model_again.forward(lay_out([Chunk([*range(9)], 0, whole)], SIZE)).logits[-1])
    assert proposer.told == [(place, [1, 3]) for _ in range(4) for place in (0, 1)]


@needs_native
def test_a_proposer_that_raises_ends_its_drafts_alone(checkpoints: dict[str, Path]) -> None:
    model = native(checkpoints["qwen3"], unit())
    plain = [drawn.tokens for drawn in run_all(model, texts_of(0.0), 4).drawn]
    bad: list[Callable[[], Oracle]] = [
        lambda: Oracle(plain, [0, 2], [4, 4], fail=True),
        lambda: Oracle(plain, [0, 2], [1, 1]),  # more nodes than it may
    ]
    for make in bad:
        out = run_all(model, texts_of(0.0), 4, make())
        assert out.error is not None and [drawn.tokens for drawn in out.drawn] == plain


@needs_native
def test_hidden_states_of_a_run_are_those_of_its_rows(checkpoints: dict[str, Path]) -> None:
    model, taps = native(checkpoints["qwen3"], unit()), ("input:1", "pre_norm", "post_norm")
    texts = texts_of(0.0)
    plain = [drawn.tokens for drawn in run_all(model, texts, ROOM).drawn]
    out = run_all(model, texts, 3, Oracle(plain, [0, 2], [4, 4]), taps)
    start = 0
    for n, drawn in enumerate(out.drawn):
        whole, count = GIVEN[n] + drawn.tokens, len(drawn.tokens)
        model.allocate(9, SIZE)
        alone = model.forward(lay_out([Chunk([*range(9)], 0, whole[:-1])], SIZE, taps=taps))
        for tap in taps:
            assert torch.equal(out.taps[tap][start : start + count], alone.taps[tap][-count:])
        start += count


# -- K/V as bytes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["native", "float32"])
def test_kv_goes_from_pool_to_pool(checkpoints: dict[str, Path], form: str) -> None:
    if form == "native" and library() is None:
        pytest.skip("this machine has no AVX-512 BF16 or no compiler")
    path, tokens = checkpoints["gemma3"], text(3, 30)
    one, two = (load_model(path) if form == "native" else load_model(path, dtype="float32") for _ in range(2))
    for model in (one, two):
        model.allocate(16, 4)
    one.forward(lay_out([Chunk(range(8), 0, tokens[:-1])], 4))
    places = range(29)
    mine, theirs = list(places), [4 * (15 - place // 4) + place % 4 for place in places]
    packed = one.read(mine)
    two.write(theirs, packed)
    table = [15 - block for block in range(8)]
    expected = one.forward(lay_out([Chunk(range(8), 29, tokens[29:])], 4)).logits
    assert torch.equal(two.forward(lay_out([Chunk(table, 29, tokens[29:])], 4)).logits, expected)
    assert len(packed) == two.kv_bytes_per_token * 29 or form == "native"  # whose heads are padded
    with pytest.raises(InputError, match="bytes"):
        two.write(theirs, packed[:-1])
