"""Both forms of attention against one dense softmax per row, over random requests, trees, windows and caps."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.attend.batches import PADDED_ROWS, split
from paceline.attend.fused import Fused
from paceline.attend.guard import guarded
from paceline.attend.reference import HIDDEN_SCORE, Reference, log_sum_exp
from paceline.core.rows import Rows, Segment
from tests.oracle.rows import Chunk, lay_out

DIM = 4


@dataclass(frozen=True)
class Setting:
    block_size: int
    kv_heads: int
    group: int
    windows: tuple[int | None, ...]
    softcap: float | None
    dtype: torch.dtype


settings_ = st.builds(
    Setting,
    block_size=st.integers(1, 5),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    windows=st.lists(st.sampled_from([None, 1, 3, 7]), min_size=1, max_size=2).map(tuple),
    softcap=st.sampled_from([None, 1.5]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)


@st.composite
def chunk(draw: st.DrawFn) -> tuple[int, int, list[int]]:
    """(base, given, parents): at least one row."""
    base = draw(st.integers(0, 12))
    given = draw(st.one_of(st.integers(0, 3), st.integers(PADDED_ROWS, PADDED_ROWS + 9)))
    nodes = draw(st.integers(0 if given else 1, 9))
    return base, given, [draw(st.integers(-1, node - 1)) for node in range(nodes)]


def build(setting: Setting, chunks: list[tuple[int, int, list[int]]], seed: int) -> tuple[Rows, int]:
    """Rows of the chunks in scattered blocks, and how many blocks there are."""
    size = setting.block_size
    needs = [-(-(base + given + len(parents)) // size) for base, given, parents in chunks]
    total = sum(needs) + 2
    free = torch.randperm(total, generator=torch.Generator().manual_seed(seed)).tolist()
    made = [
        Chunk([free.pop() for _ in range(need)], base, [0] * given, [0] * len(parents), parents)
        for need, (base, given, parents) in zip(needs, chunks)
    ]
    return lay_out(made, size), total


def dense(setting: Setting, pool: Tensor, layer: int, rows: Rows, q: Tensor, scale: float) -> Tensor:
    """Continuation from the rules in core/rows.py, row by row; the pool already holds the rows' keys and values."""
    slots, out = pool[layer].double().flatten(2, 3), []
    for row, seen in enumerate(visible(setting, layer, rows)):
        keys, values = slots[:, :, seen].repeat_interleave(setting.group, 1)
        scores = torch.einsum("hd,hsd->hs", q[row].double(), keys) * scale
        if setting.softcap is not None:
            scores = setting.softcap * torch.tanh(scores / setting.softcap)
        out.append(torch.einsum("hs,hsd->hd", scores.softmax(-1), values).flatten())
    return torch.stack(out)


def visible(setting: Setting, layer: int, rows: Rows) -> list[list[int]]:
    """The slots that each row sees."""
    window, found = setting.windows[layer], list[list[int]]()
    for request, segment in enumerate(rows.segments):
        table = rows.tables[request].tolist()
        size, end = setting.block_size, segment.base + segment.given
        where = [table[s // size] * size + s % size for s in range(end + segment.nodes)]
        nodes = range(segment.start + segment.given, segment.start + segment.rows)
        positions = [*range(end), *rows.position[list(nodes)].tolist()]
        for row in range(segment.start, segment.start + segment.rows):
            candidate, position = row - segment.start - segment.given, int(rows.position[row])
            word = int(rows.word[row])
            seen = [s for s in range(end) if candidate >= 0 or s < position + 1]
            seen += [end + j for j in range(segment.nodes) if word >> j & 1]
            found.append([where[s] for s in seen if window is None or position - positions[s] < window])
    return found


@pytest.mark.parametrize("form", [Reference, Fused])
@given(setting=settings_, chunks=st.lists(chunk(), min_size=1, max_size=4), seed=st.integers(0, 1000))
@settings(max_examples=80, deadline=None)
def test_equals_dense(
    form: type[Reference], setting: Setting, chunks: list[tuple[int, int, list[int]]], seed: int
) -> None:
    torch.manual_seed(seed)
    rows, blocks = build(setting, chunks, seed)
    layers, heads, total = len(setting.windows), setting.kv_heads * setting.group, len(rows.token)
    compute = torch.float64 if setting.dtype == torch.float64 else torch.float32
    pool = torch.randn(layers, 2, setting.kv_heads, blocks, setting.block_size, DIM).to(setting.dtype)
    attend = form(pool, setting.windows, heads, 0.7, setting.softcap)
    attend.prepare(rows)
    for layer in range(layers):
        q = torch.randn(total, heads, DIM, dtype=compute)
        kv = torch.randn(total, 2, setting.kv_heads, DIM, dtype=compute)
        out = attend.forward(layer, q, kv)
        torch.testing.assert_close(attend.slots[layer][:, :, rows.slot], kv.permute(1, 2, 0, 3).to(setting.dtype))
        expected = dense(setting, pool, layer, rows, q, 0.7)
        tolerance = 1e-9 if compute == torch.float64 else 2e-5
        torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("form", [Reference, Fused])
def test_stale_slots_do_not_matter(form: type[Reference]) -> None:
    """Whatever other requests left in the padding, huge numbers included, leaves no trace."""
    setting = Setting(4, 1, 2, (None, 3), None, torch.float32)
    rows, blocks = build(setting, [(0, 3, []), (9, 1, [-1, 0, 0])], 1)
    kv, q = torch.randn(len(rows.token), 2, 1, DIM), torch.randn(len(rows.token), 2, DIM)
    outs = []
    for filling in (0.0, 1e18):
        pool = torch.full((2, 2, 1, blocks, 4, DIM), filling)
        attend = form(pool, setting.windows, 2, 1.0, None)
        attend.slots[:, :, :, used_slots(rows, 4)] = torch.ones(DIM)
        attend.prepare(rows)
        outs.append(torch.stack([attend.forward(layer, q, kv) for layer in range(2)]))
    torch.testing.assert_close(outs[0], outs[1])


@pytest.mark.parametrize("form", [Reference, Fused])
@pytest.mark.parametrize("parts", [1, 2])
@given(setting=settings_, chunks=st.lists(chunk(), min_size=1, max_size=3), seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_numbers_that_are_not_finite_reach_those_who_see_them(
    form: type[Reference], parts: int, setting: Setting, chunks: list[tuple[int, int, list[int]]], seed: int
) -> None:
    """Some tokens, and all slots of no text, have a number that is not finite; a row is NaN if it sees one, and else
    what it is with finite ones in their place."""
    stream = torch.Generator().manual_seed(seed)
    rows, blocks = build(setting, chunks, seed)
    layers, size, total = len(setting.windows), setting.block_size, len(rows.token)
    kv = torch.randn(blocks * size, layers, parts, setting.kv_heads, DIM, generator=stream)
    q = torch.randn(layers, total, setting.kv_heads * setting.group, DIM, generator=stream)
    bad, wrong = torch.rand(blocks * size, setting.kv_heads, generator=stream) < 0.1, kv.clone()
    bad[[slot for slot in range(blocks * size) if slot not in {*used_slots(rows, size), *rows.slot.tolist()}]] = True
    for slot, head in bad.nonzero().tolist():
        wrong[slot, :, seed % parts, head, slot % DIM] = (math.nan, math.inf, -math.inf)[slot % 3]

    def outs(kv: Tensor) -> Tensor:
        """[layers, T, kv_heads, group * DIM]"""
        pool = torch.zeros(layers, parts, setting.kv_heads, blocks, size, DIM).to(setting.dtype)
        attend = form(pool, setting.windows, q.shape[2], 0.7, setting.softcap)
        attend.slots.copy_(torch.stack([guarded(each.permute(1, 2, 0, 3)) for each in kv.unbind(1)]))
        attend.prepare(rows)
        found = [attend.forward(layer, q[layer], kv[rows.slot, layer]) for layer in range(layers)]
        return torch.stack(found).view(layers, total, setting.kv_heads, -1)

    clean, spoilt = outs(kv), outs(wrong)
    sees = [[bad[slots].any(0) for slots in visible(setting, layer, rows)] for layer in range(layers)]
    expected = clean.masked_fill(torch.stack([torch.stack(each) for each in sees])[..., None], math.nan)
    torch.testing.assert_close(spoilt, expected, rtol=0, atol=0, equal_nan=True)


def used_slots(rows: Rows, size: int) -> list[int]:
    used = []
    for request, segment in enumerate(rows.segments):
        table = rows.tables[request].tolist()
        used += [table[s // size] * size + s % size for s in range(segment.base)]
    return used


def test_reads_no_block_beyond_the_longest() -> None:
    setting = Setting(4, 1, 1, (None, 5), None, torch.float32)
    rows, blocks = build(setting, [(17, 1, []), (2, 1, [])], 1)
    attend = Reference(torch.zeros(2, 2, 1, blocks, 4, DIM), setting.windows, 1, 1.0, None)
    attend.prepare(rows)
    parts = attend.batches[0].parts
    assert parts[None].mask.shape[-1] == 20  # 18 slots are five blocks
    assert parts[5].mask.shape[-1] == 8  # slots 13 to 17 are in the last two


def test_blocks_in_a_run_are_read_in_place() -> None:
    for table, kind in ([3, 4, 5], tuple), ([3, 5, 4], Tensor):
        rows = lay_out([Chunk(table, 8, [0])], 4)
        attend = Reference(torch.zeros(1, 2, 1, 6, 4, DIM), (None,), 1, 1.0, None)
        attend.prepare(rows)
        assert isinstance(attend.batches[0].parts[None].blocks, kind)


def test_prompts_are_cut_so_that_scores_stay_bounded() -> None:
    segments = [Segment(0, 1, 3, 50), Segment(4, 100, 2, 900), Segment(106, 16, 0, 0)]
    pieces = list(split(segments, 32 * 1002))
    assert [[(p.request, p.first, p.count) for p in batch] for batch in pieces] == [
        [(0, 0, 4), (2, 0, 16)],
        [(1, 0, 32)],
        [(1, 32, 32)],
        [(1, 64, 32)],
        [(1, 96, 6)],
    ]
    assert [(batch[0].end, batch[0].nodes) for batch in pieces[1:]] == [(932, 0), (964, 0), (996, 0), (1000, 2)]


def test_log_sum_exp() -> None:
    scores = torch.randn(3, 5, dtype=torch.float64) * 30
    torch.testing.assert_close(log_sum_exp(scores, scores.softmax(-1)), scores.logsumexp(-1, True))
    scores[0, 1:] = HIDDEN_SCORE
    torch.testing.assert_close(log_sum_exp(scores, scores.softmax(-1))[0], scores[0, :1])
