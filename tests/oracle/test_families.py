"""Every family equals transformers, however the text is cut into passes."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from paceline.core.program import Program
from paceline.model.decoder import Decoder
from tests.oracle.cases import BLOCK, BLOCKS, CASES, Oracle, load, text, write
from tests.oracle.rows import Chunk, feed, lay_out

TOLERANCE = 1e-4


@dataclass
class Pair:
    ours: Decoder
    oracle: Oracle


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    case = CASES[request.param]
    path = write(tmp_path_factory.mktemp("checkpoint"), case)
    yield Pair(load(path, case), Oracle(path))


def shuffled(seed: int, *sizes: int) -> list[list[int]]:
    """Disjoint block tables in no order."""
    blocks = random.Random(seed).sample(range(BLOCKS), sum(sizes))
    return [[blocks.pop() for _ in range(size)] for size in sizes]


def random_tree(seed: int, nodes: int) -> list[int]:
    stream = random.Random(seed)
    return [stream.randrange(-1, node) for node in range(nodes)]


def path_to(node: int, parents: list[int]) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    return path


@pytest.mark.parametrize("cuts", [[], [1, 2, 9, 12, 31], list(range(1, 40))], ids=["whole", "chunks", "tokens"])
def test_chunks(pair: Pair, cuts: list[int]) -> None:
    tokens, (table,) = text(1), shuffled(2, 10)
    torch.testing.assert_close(
        feed(pair.ours, tokens, table, BLOCK, cuts), pair.oracle.logits(tokens), rtol=TOLERANCE, atol=TOLERANCE
    )


@pytest.mark.parametrize("given", [0, 1, 22])
def test_tree(pair: Pair, given: int) -> None:
    """Given rows, then every path of a random tree, reads as if it were the text. 22: more rows than one batch's."""
    tokens, (table,) = text(3, 37), shuffled(4, 13)
    parents, tree = random_tree(5, 14), text(6, 14)
    base = len(tokens) - given
    if base:
        feed(pair.ours, tokens[:base], table, BLOCK, [])
    logits = pair.ours.forward(lay_out([Chunk(table, base, tokens[base:], tree, parents)], BLOCK)).logits
    for node in range(len(tree)):
        path = path_to(node, parents)
        expected = pair.oracle.logits(tokens + [tree[i] for i in path])
        rows = [*range(given), *(given + i for i in path)]
        torch.testing.assert_close(logits[rows], expected[base:], rtol=TOLERANCE, atol=TOLERANCE)


def test_batch(pair: Pair) -> None:
    """Requests of different lengths, one with a tree, one in a long chunk, together in one pass."""
    texts = [text(7, 33), text(8, 9), text(9, 40)]
    tables = shuffled(10, 12, 5, 10)
    feed(pair.ours, texts[0][:30], tables[0], BLOCK, [])
    feed(pair.ours, texts[2][:10], tables[2], BLOCK, [])
    chunks = [
        Chunk(tables[0], 30, texts[0][30:], [5, 6], [-1, 0]),
        Chunk(tables[1], 0, texts[1]),
        Chunk(tables[2], 10, texts[2][10:]),
    ]
    logits = pair.ours.forward(lay_out(chunks, BLOCK)).logits
    expected = [
        pair.oracle.logits([*texts[0], 5, 6])[30:],
        pair.oracle.logits(texts[1]),
        pair.oracle.logits(texts[2])[10:],
    ]
    torch.testing.assert_close(logits, torch.cat(expected), rtol=TOLERANCE, atol=TOLERANCE)


def test_taps_and_layer_ranges(pair: Pair) -> None:
    tokens, (table,) = text(11), shuffled(12, 10)
    rows = lay_out([Chunk(table, 0, tokens)], BLOCK, taps=("input:0", "input:1", "input:2", "pre_norm", "post_norm"))
    whole = pair.ours.forward(rows)
    hidden = pair.oracle.hidden(tokens)
    for name, expected in zip(("input:0", "input:1", "input:2", "post_norm"), hidden, strict=True):
        torch.testing.assert_close(whole.taps[name], expected, rtol=TOLERANCE, atol=TOLERANCE)

    rows.program, rows.taps = Program(0, 2, head=False), ()
    first = pair.ours.forward(rows)
    assert first.leave is not None and first.logits.shape == (0, pair.ours.vocab_size)
    rows.program, rows.hidden, rows.taps = Program(2, 3), first.leave.clone(), ("pre_norm",)
    second = pair.ours.forward(rows)
    torch.testing.assert_close(second.logits, whole.logits)
    torch.testing.assert_close(second.taps["pre_norm"], whole.taps["pre_norm"])
    torch.testing.assert_close(rows.hidden, whole.taps["input:2"], msg="the caller's hidden states were changed")


def test_move(pair: Pair) -> None:
    """Moved slots serve as if they had been written there, also when ranges overlap."""
    tokens = text(13, 24)
    old, new = list(range(6)), [1, 2, 3, 4, 5, 6]
    feed(pair.ours, tokens[:23], old, BLOCK, [])
    pair.ours.move(list(range(23)), [slot + BLOCK for slot in range(23)])
    logits = pair.ours.forward(lay_out([Chunk(new, 23, tokens[23:])], BLOCK)).logits
    torch.testing.assert_close(logits, pair.oracle.logits(tokens)[23:], rtol=TOLERANCE, atol=TOLERANCE)


def test_wanted_rows(pair: Pair) -> None:
    tokens, (table,) = text(14), shuffled(15, 10)
    chunk = Chunk(table, 0, tokens)
    every = pair.ours.forward(lay_out([chunk], BLOCK)).logits
    some = pair.ours.forward(lay_out([chunk], BLOCK, want=[3, 39])).logits
    torch.testing.assert_close(some, every[[3, 39]])
    assert pair.ours.forward(lay_out([chunk], BLOCK, want=[])).logits.shape == (0, pair.ours.vocab_size)
