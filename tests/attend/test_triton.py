"""The GPU's kernels against one dense softmax per row, by Triton's interpreter where there is no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import LLM, SamplingParams
from paceline.attend import agree
from paceline.attend.fused import Fused
from paceline.attend.reference import Reference
from paceline.core.rows import RowsBuilder
from paceline.model.decoder import Decoder
from tests.attend.test_attention import DIM, Setting, build, chunk, dense, settings_, used_slots
from tests.tiny import tiny_checkpoint

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="Triton is not installed; it comes with torch for CUDA")

from paceline.attend import triton as kernels  # noqa: E402


@given(
    setting=settings_.filter(lambda it: it.dtype is not torch.float64),
    chunks=st.lists(chunk(), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
    span=st.sampled_from([32, 256]),
    apart=st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_equals_dense(
    setting: Setting, chunks: list[tuple[int, int, list[int]]], seed: int, span: int, apart: bool
) -> None:
    """Cut into spans or not, each by a program of its own or one after the other."""
    torch.manual_seed(seed)
    rows, blocks = build(setting, chunks, seed)
    rows.device = DEVICE
    heads = setting.kv_heads * setting.group
    pool = torch.randn(len(setting.windows), 2, setting.kv_heads, blocks, setting.block_size, DIM, device=DEVICE)
    pool = pool.to(setting.dtype)
    attend = kernels.Triton(pool, setting.windows, heads, 0.7, setting.softcap)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "SPAN", span)
        patch.setattr(kernels, "KEYS", 16)
        patch.setattr(kernels, "MAX_APART_BYTES", 1 << 30 if apart else 0)
        attend.prepare(rows)
        assert (attend.spans > 1) == (apart and rows.width * setting.block_size > span)
        for layer in range(len(setting.windows)):
            q = torch.randn(rows.count, heads, DIM, device=DEVICE)
            kv = torch.randn(rows.count, 2, setting.kv_heads, DIM, device=DEVICE)
            out = attend.forward(layer, q, kv)
            expected = dense(setting, pool, layer, rows, q, 0.7)
            torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=2e-5)


def test_bits_do_not_depend_on_batch_mates_or_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text's last rows as a tree beside another text, as a chain, one by one, and as a prompt."""
    monkeypatch.setattr(kernels, "SPAN", 32)
    setting, heads = Setting(4, 2, 3, (None, 7), None, torch.float32), 6
    text = torch.randn(40, heads + 4, DIM, generator=torch.Generator().manual_seed(1)).to(DEVICE)

    def pass_(pool: torch.Tensor, *parts: tuple[int, list[int], list[int], list[int]]) -> list[torch.Tensor]:
        """Each part: base, numbers of its rows in `text`, depths and words of its candidates."""
        builder, tables = RowsBuilder(), ([*range(12)], [*range(12, 24)])
        for (base, numbers, depths, words), table in zip(parts, tables):
            slots = [table[(base + i) // 4] * 4 + (base + i) % 4 for i in range(len(numbers))]
            builder.add([0] * len(numbers), slots, table, base, depths=depths, words=words)
        rows = builder.build(DEVICE)
        attend = kernels.Triton(pool, setting.windows, heads, 0.5, None)
        attend.prepare(rows)
        x = text[[number for part in parts for number in part[1]]]
        kv = x[:, heads:].reshape(-1, 2, 2, DIM)
        return [attend.forward(layer, x[:, :heads], kv) for layer in (0, 1)]

    def fresh(apart: bool = True) -> torch.Tensor:
        monkeypatch.setattr(kernels, "MAX_APART_BYTES", 1 << 30 if apart else 0)
        return torch.zeros(2, 2, 2, 24, 4, DIM, device=DEVICE)

    whole = pass_(fresh(), (0, [*range(40)], [], []))
    again = pass_(fresh(apart=False), (0, [*range(40)], [], []))
    pool = fresh()
    pass_(pool, (0, [*range(36)], [], []))
    mate = (0, [5, 6], [], [])
    tree = pass_(pool, (36, [36, 3, 37, 4, 38, 39], [1, 1, 2, 2, 3], [1, 2, 5, 10, 26]), mate)
    chain = pass_(pool, (36, [36, 37, 38, 39], [1, 2, 3], [1, 3, 7]))
    alone = pass_(fresh(), mate)
    single = [pass_(pool, (place, [place], [], [])) for place in range(36, 40)]
    for layer in (0, 1):
        last = whole[layer][36:]
        assert torch.equal(whole[layer], again[layer])
        assert torch.equal(tree[layer][[0, 2, 4, 5]], last)
        assert torch.equal(tree[layer][6:], alone[layer])
        assert torch.equal(chain[layer], last)
        assert torch.equal(torch.cat([out[layer] for out in single]), last)


@pytest.mark.parametrize("turned", [False, True])
def test_numbers_that_are_not_finite_reach_those_who_see_them(turned: bool) -> None:
    """A candidate, a text of the pass, and what is left in other slots."""
    setting, heads, stream = Setting(4, 2, 2, (None,), None, torch.float32), 4, torch.Generator().manual_seed(1)
    rows, blocks = build(setting, [(9, 1, [-1, 0, -1]), (0, 3, [])], 3)
    rows.device, left = DEVICE, torch.randn(1, 2, 2, blocks, 4, DIM, generator=stream)
    fused, outs = torch.randn(rows.count, heads + 4, DIM, generator=stream).to(DEVICE), list[torch.Tensor]()
    unused = [slot for slot in range(blocks * 4) if slot not in used_slots(rows, 4)]
    for number in (0.0, torch.nan):
        pool, x = left.clone().to(DEVICE), fused.clone()
        pool.view(2, 2, -1, DIM)[0, :, unused] += number
        x[[1, 5], -1, 2] += number  # values of the first candidate, and of the other text's second row
        attend = kernels.Triton(pool, setting.windows, heads, 0.5, None)
        attend.prepare(rows)
        if turned:
            turn = torch.ones(rows.count, 1, DIM, device=DEVICE), torch.zeros(rows.count, 1, DIM, device=DEVICE)
            outs.append(attend.turned(0, x, turn))
        else:
            outs.append(attend.forward(0, x[:, :heads], x[:, heads:].view(-1, 2, 2, DIM)))
    clean, spoilt = (out.view(rows.count, 2, 2 * DIM) for out in outs)
    expected = clean.clone()
    expected[[1, 2, 5, 6], 1] = torch.nan
    assert torch.equal(spoilt.isnan(), expected.isnan()) and torch.equal(spoilt.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("nodes", [1, 64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_trees_up_to_the_last_bit_in_half_precision(nodes: int, dtype: torch.dtype) -> None:
    """A comb and its teeth; q is a view of the fused projection, as in the decoder."""
    if dtype is torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16 as integers")
    setting = Setting(16, 2, 2, (None,), None, dtype)
    rows, blocks = build(setting, [(70, 1, [max(-1, n - 2) for n in range(nodes)]), (5, 20, [])], 3)
    rows.device, heads = DEVICE, 4
    pool = torch.randn(1, 2, 2, blocks, 16, DIM, device=DEVICE).to(dtype)
    fused = torch.randn(rows.count, heads + 4, DIM, device=DEVICE).to(dtype)
    q, kv = fused.narrow(1, 0, heads), fused.narrow(1, heads, 4).view(rows.count, 2, 2, DIM)
    outs = []
    for form in (kernels.Triton, Fused):
        attend = form(pool.clone(), setting.windows, heads, 0.5, None)
        attend.prepare(rows)
        outs.append(attend.forward(0, q, kv).float())
    torch.testing.assert_close(*outs, rtol=0.02, atol=0.02)


def test_a_device_on_which_kernels_are_wrong_is_found_out() -> None:
    class Wrong(kernels.Triton):
        def forward(self, layer: int, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
            out = super().forward(layer, q, kv)
            out[3] = out[2]  # a candidate that does not see its parent
            return out

    device = torch.device(DEVICE)
    assert agree(kernels.Triton, Fused, device, torch.float16)
    assert not agree(Wrong, Fused, device, torch.float16)


def test_an_engine_says_the_same(tmp_path: Path) -> None:
    """Prompts, decodes and trees of several requests; windows and soft caps."""
    model = tiny_checkpoint(tmp_path, "gemma2")
    texts, greedy = [], SamplingParams(temperature=0, max_tokens=6)
    for form in (kernels.Triton, Reference):
        llm = LLM(model, model, drafter="topk", dtype="float32", device=DEVICE, blocks=64, block_size=4)
        for decoder in (llm.engine.model, llm.engine.components["draft"]):
            assert isinstance(decoder, Decoder)
            decoder.attend_type = form
            if form is Reference:
                decoder.graphs = None  # its slots of a graph's missing rows are real ones
            decoder.allocate(64, 4)
        prompts = ["Tom has 3 apples", "def add(a, b):\n"]
        texts.append([o.token_ids for o in llm.generate(prompts, greedy)])
    assert texts[0] == texts[1]


COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from paceline.attend import triton as kernels
from paceline.attend.turn_kernel import turn_rows

def compiled(kernel, types, fixed):
    source = ASTSource(kernel, {**types, **dict.fromkeys(fixed, "constexpr")}, fixed)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False}).asm["ptx"]

whole = dict.fromkeys(["pieces", "bounds", "tables", "path", "limits"], "*i64")
sizes = dict.fromkeys(["stride", "width", "slots", "window", "heads"], "i32")
shape = dict(GROUP=4, DIM=80, LANES=128, QUERIES=32, KEYS=64, SPAN=256, SIZE=16, PATH=65, WIDE=False)
kinds = [("bf16", False, False, True), ("bf16", True, True, False), ("fp16", False, True, True), ("fp32", 0, 0, False)]
for half, capped, windowed, apart in kinds[: int(sys.argv[1])]:
    floats = dict.fromkeys(["q", "keys", "values"], f"*{half}")
    outs = dict.fromkeys(["out", "levels"], "*fp32" if apart else f"*{half}")
    how = dict(CAPPED=bool(capped), WINDOWED=bool(windowed), APART=apart)
    types = {**floats, **outs, **whole, **sizes, "scale": "fp32", "softcap": "fp32"}
    assert "mma" in compiled(kernels._attend, types, shape | how) or half == "fp32"
types = {"parts": "*fp32", "levels": "*fp32", "out": "*bf16", "limits": "*i64", "spans": "i32", "heads": "i32"}
compiled(kernels._join, types, dict(DIM=80, LANES=128, SPAN=256))
types = dict.fromkeys(["qkv", "cos", "sin", "pool"], "*bf16") | {"slot": "*i64"}
types |= dict.fromkeys(["stride", "cos_stride", "sin_stride", "slots", "heads", "kv_heads"], "i32")
assert "bar.sync" in compiled(turn_rows, types, dict(DIM=80, LANES=128, TURNED=40)), "warps wait for one another"
print("compiled")
"""


@pytest.mark.parametrize("kinds", [1, pytest.param(4, marks=pytest.mark.full)])
def test_compiles_for_a_gpu_that_is_not_here(kinds: int) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, str(kinds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "compiled", done.stderr[-2000:]
