"""Captured passes: which passes share one, what is copied, and what happens where nothing can be captured."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed; it comes with torch for CUDA")

from paceline import LLM, SamplingParams
from paceline.attend.device import tensors_on
from paceline.core.rows import Out, Rows, RowsBuilder
from paceline.model.decoder import Decoder
from paceline.model.gpu.graphs import Graphs, Repeating, StaticRows
from paceline.model.load import load_model
from tests.tiny import tiny_checkpoint

DEVICE = tensors_on("cuda")


class Recorder:
    """A device whose passes are a function of their numbers: it notes what was captured and replayed."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def capture(self, call: Callable[[], Out]) -> tuple[Out, Callable[[], None]]:
        self.log.append("capture")
        out = call()

        def replay() -> None:
            self.log.append("replay")
            again = call()
            out.logits.copy_(again.logits)
            for name, tap in again.taps.items():
                out.taps[name].copy_(tap)

        return out, replay


def told(rows: Rows) -> Out:
    """All that a pass says of a row, as its logits; its place in the pass as a tap."""
    columns = [rows.token, rows.position, rows.slot, rows.word]
    named = dict.fromkeys(rows.taps, torch.arange(rows.count)[:, None].float())
    return Out(torch.stack(columns, 1).float(), named)


def pass_(*parts: tuple[int, int], nodes: int = 0, taps: tuple[str, ...] = (), blocks: int = 3) -> Rows:
    """Texts (rows, base), the last with candidates."""
    builder = RowsBuilder()
    for number, (count, base) in enumerate(parts):
        more = nodes if number == len(parts) - 1 else 0
        tokens = [10 * number + i for i in range(count + more)]
        slots, table = [100 * number + base + i for i in range(count + more)], [7 + number] * blocks
        words = [1 << i for i in range(more)]
        builder.add(
            tokens, slots, table, base, depths=[1] * more, words=words, want=[count - 1, *range(count, len(tokens))]
        )
    return builder.build(DEVICE, taps)


def test_passes_of_a_bucket_share_a_graph() -> None:
    device = Recorder()
    graphs = Graphs(device, DEVICE)
    for parts in ([(3, 5)], [(2, 1), (1, 9)], [(4, 0)], [(3, 5)]):
        rows = pass_(*parts)
        out, expected = graphs.forward(rows, told), told(rows).logits[rows.want]
        assert torch.equal(out.logits, expected)
    assert device.log == ["capture", "replay", "replay", "replay"]
    graphs.forward(pass_((5, 5)), told)
    graphs.forward(pass_((3, 5), taps=("post_norm",)), told)
    graphs.forward(pass_((3, 5), blocks=65), told)
    assert device.log[4:] == ["capture"] * 3
    assert (graphs.counts.captured, graphs.counts.replayed, graphs.counts.eager) == (4, 3, 0)
    assert {kind[:2] for kind in graphs.kept} == {(4, 64), (8, 64), (4, 128)}


def test_what_a_pass_gives_is_its_own() -> None:
    """The next pass of the bucket does not change it; taps have its rows alone."""
    graphs = Graphs(Recorder(), DEVICE)
    first = graphs.forward(pass_((3, 5), taps=("input:0",)), told)
    before = first.logits.clone()
    second = graphs.forward(pass_((1, 30), (2, 40), taps=("input:0",)), told)
    assert torch.equal(first.logits, before) and not torch.equal(second.logits[-1], before[-1])
    assert first.taps["input:0"].shape == (3, 1)


def test_static_rows_hold_the_numbers_of_a_pass() -> None:
    static, rows = StaticRows(8, 64, (), DEVICE), pass_((2, 4), (1, 9), nodes=3)
    static.fill(pass_((8, 0)))
    static.fill(rows)
    count = rows.count
    for name in ("token", "position", "slot", "word"):
        assert torch.equal(getattr(static, name)[:count], getattr(rows, name)), name
    assert static.slot[count:].tolist() == [-1, -1] and static.bounds[2:].abs().sum() == 0
    assert torch.equal(static.tables[:2, :3], rows.tables) and static.tables[2:].abs().sum() == 0
    assert torch.equal(static.bounds[:2], rows.bounds) and static.want[: rows.wanted].tolist() == rows.want.tolist()


def test_passes_that_no_graph_fits_run_kernel_by_kernel() -> None:
    graphs = Graphs(Recorder(), DEVICE)
    joined = RowsBuilder()
    joined.add([1], [5], [0], 5, shift=2)
    adapted = RowsBuilder()
    adapted.add([1], [5], [0], 5, adapter=1)
    for rows in (pass_((65, 0)), joined.build(DEVICE), adapted.build(DEVICE)):
        assert torch.equal(graphs.forward(rows, told).logits, told(rows).logits)
    assert graphs.counts.eager == 3 and not graphs.kept


def test_a_capture_that_fails_is_tried_once(caplog: pytest.LogCaptureFixture) -> None:
    class Full:
        tries = 0

        def capture(self, call: Callable[[], Out]) -> tuple[Out, Callable[[], None]]:
            self.tries += 1
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")

    device = Full()
    graphs = Graphs(device, DEVICE)
    with caplog.at_level(logging.WARNING):
        for count in (3, 3, 9):
            rows = pass_((count, 0))
            assert torch.equal(graphs.forward(rows, told).logits, told(rows).logits)
    assert device.tries == 1 and graphs.counts.eager == 3
    assert graphs.counts.failed == "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    assert sum("kernel by kernel" in record.message for record in caplog.records) == 1


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


def test_a_decoder_gives_the_same_bits(checkpoint: Path) -> None:
    """By a graph and kernel by kernel: prompts, decodes and a tree, and the whole pool behind them."""
    if DEVICE.type == "cuda":
        pytest.skip("the interpreter's stand-in for graphs")
    found = []
    for captures in (True, False):
        model = load_model(checkpoint, dtype="float32", device="cuda")
        model.allocate(24, 4)
        assert isinstance(model.graphs, Graphs) and isinstance(model.graphs.device, Repeating)
        if not captures:
            model.graphs = None
        builder = RowsBuilder()
        builder.add([3, 4, 5], [0, 1, 2], [0, 1], 0)
        builder.add([9], [40], [10, 11], 0)
        logits = [model.forward(builder.build(DEVICE)).logits]
        tree = RowsBuilder()
        tree.add([6, 7, 8, 9], [3, 4, 5, 6], [0, 1], 3, depths=[1, 1, 2], words=[1, 2, 5], want=[0, 1, 2, 3])
        tree.add([2], [41], [10, 11], 1)
        out = model.forward(tree.build(DEVICE, taps=("input:1", "post_norm")))
        found.append([*logits, out.logits, *out.taps.values(), model.pools[0].slots])
    assert all(torch.equal(one, other) for one, other in zip(*found))


def test_an_engine_replays_and_says_the_same(checkpoint: Path) -> None:
    prompts, params = ["Tom has 3 apples", "def add"], SamplingParams(temperature=0.8, seed=1, max_tokens=6)
    llm = LLM(checkpoint, dtype="float32", device="cuda", blocks=64, block_size=4, drafter="ngram")
    texts = [o.token_ids for o in llm.generate(prompts, params)]
    model = llm.engine.model
    assert isinstance(model, Decoder) and model.graphs is not None
    assert model.graphs.counts.replayed > 0 and not model.graphs.counts.failed
    model.graphs = None
    assert [o.token_ids for o in llm.generate(prompts, params)] == texts
