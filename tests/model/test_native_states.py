"""Recurrences in the native decoder: what PyTorch computes of the same weights, and a row's bits by its path alone."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from paceline import LLM, SamplingParams
from paceline.attend.fused import Fused
from paceline.core.errors import RefusalError
from paceline.model.decoder import Decoder
from paceline.model.linear import alone
from paceline.model.load import form, load_model, read, read_config
from paceline.model.lora import read_lora
from paceline.model.native import NativeDecoder
from paceline.native.build import Unit, library, unit
from tests.lora import make_adapter
from tests.oracle.rows import Chunk, lay_out
from tests.tiny import tiny_checkpoint

pytestmark = pytest.mark.skipif(library() is None, reason="this machine has no AVX2, or no compiler")
SHAPE = [-1, 0, 0, 1, 2, 2, 4, -1, 7, 3]
TEXT = [int(token) for token in torch.arange(9, 49) ** 2 % 90 + 3]
TREE = [int(token) for token in torch.arange(10) * 37 % 90 + 3]
FEW = ["lfm2", "bamba", "qwen3_5_text"]
FAMILIES = [*FEW, *(pytest.param(it, marks=pytest.mark.full) for it in ("mamba2", "granitemoehybrid", "qwen3_next"))]


def checkpoint(path: Path, family: str) -> Path:
    changes = {"linear_num_value_heads": 4, "linear_num_key_heads": 2} if "qwen" in family else {}
    return tiny_checkpoint(path, family, seed=1, layers=2 if "granite" in family else 3, **changes)


def native(path: Path, quantize: str | None = None, kv: str | None = None) -> NativeDecoder:
    made = load_model(path, quantize=quantize, kv_dtype=kv, cache=False)
    assert isinstance(made, NativeDecoder)
    made.allocate(32, 16)
    return made


def twin(path: Path, quantize: str | None = None) -> Decoder:
    """PyTorch, with the same packed matrices."""
    spec, packing = read_config(path), alone(form("bfloat16", quantize, "cpu"))
    weights, fitted, *_ = read(path, spec, packing, torch.device("cpu"), None, False)
    made = Decoder(fitted, weights, packing, Fused)
    made.allocate(32, 16)
    return made


def passes(decoder: Decoder) -> Tensor:
    """Logits of chunks, of a tree, of what follows one that was refused in part, and of two texts together."""
    table, made = [3, 1, 5, 7], list[Tensor]()

    def go(*chunks: Chunk) -> None:
        made.append(decoder.forward(lay_out(chunks, 16)).logits)

    go(Chunk(table, 0, TEXT[:20]))
    go(Chunk(table, 20, TEXT[20:30]))
    go(Chunk(table, 30, TEXT[30:31], TREE, SHAPE))
    slots = [table[place // 16] * 16 + place % 16 for place in range(31, 41)]
    decoder.move([slots[0], slots[2], slots[5]], slots[:3])
    decoder.keep([slots[2]])
    go(Chunk(table, 34, TEXT[34:36]), Chunk([9, 10], 0, TEXT[:9], TREE[:3], [-1, -1, 1]))
    go(Chunk(table, 36, TEXT[36:37], TREE, SHAPE))
    return torch.cat(made)


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_pytorch(family: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path, family)
    rounds = unit() in (Unit.DOT, Unit.TILES)  # activations to bfloat16
    for quantize, slack in ((None, 0.1 if rounds else 1e-3), ("int8", 0.3)):  # on an edge it is rounded to either side
        got, expected = passes(native(path, quantize)), passes(twin(path, quantize))
        assert float((got - expected).abs().max()) < slack
        assert float((got - expected).abs().mean()) < slack / 10


@pytest.mark.parametrize("family", FAMILIES)
def test_bits_depend_on_the_path_alone(family: str, tmp_path: Path) -> None:
    """However the text is cut into passes, in whatever tree, next to whom, by however many threads, replayed or not."""
    decoder, text = native(checkpoint(tmp_path, family)), TEXT[:37]
    whole = decoder.forward(lay_out([Chunk([0, 1, 2], 0, text)], 16)).logits
    for first, last in ((0, 5), (5, 33), (33, 37)):
        cut = decoder.forward(lay_out([Chunk([3, 4, 5], first, text[first:last])], 16)).logits
        assert torch.equal(cut, whole[first:last])
    for threads in (1, 2):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            decoder.forward(lay_out([Chunk([6, 7, 8], 0, text[:29])], 16))
            # the text's own tokens among others: nodes 1, 3, 4, and then 6 behind the second of them
            tree, shape = [7, text[30], 9, text[31], text[32], 11, text[32]], [-1, -1, 1, 1, 3, 0, 3]
            rows = lay_out([Chunk([9, 10], 0, TREE), Chunk([6, 7, 8], 29, text[29:30], tree, shape)], 16)
            logits = decoder.forward(rows).logits[len(TREE) :]
        finally:
            torch.set_num_threads(before)
        assert torch.equal(logits[[0, 2, 4, 5, 7]], whole[[29, 30, 31, 32, 32]])
    slots = [[6, 7, 8][place // 16] * 16 + place % 16 for place in range(29, 37)]
    decoder.move([slots[2], slots[4], slots[5]], slots[1:4])  # row 31 is the end of a block
    decoder.keep([slots[3]])
    after = decoder.forward(lay_out([Chunk([6, 7, 8], 33, text[33:37])], 16)).logits
    assert torch.equal(after, whole[33:])


@pytest.mark.parametrize("family", FEW)
def test_states_as_bytes(family: str, tmp_path: Path) -> None:
    """A refused round leaves them; another decoder goes on from them; bytes of another size are refused."""
    path = checkpoint(tmp_path, family)
    decoder, other = native(path, kv="int8"), native(path, kv="int8")
    decoder.forward(lay_out([Chunk([2, 3], 0, TEXT[:16])], 16))
    slots = list(range(32, 48))
    bytes_of_16 = decoder.read(slots)
    decoder.forward(lay_out([Chunk([2, 3], 16, [], TREE, SHAPE)], 16))
    assert decoder.read(slots) == bytes_of_16
    other.write(list(range(80, 96)), bytes_of_16)
    mine, theirs = (
        it.forward(lay_out([Chunk(table, 16, TEXT[16:20])], 16)).logits
        for it, table in ((decoder, [2, 3]), (other, [5, 6]))
    )
    assert torch.equal(mine, theirs)


def test_a_state_that_goes_on_from_elsewhere_is_seen(tmp_path: Path) -> None:
    """The mutant: a pass begins with zeros."""
    decoder = native(checkpoint(tmp_path, "qwen3_5_text"))
    whole = decoder.forward(lay_out([Chunk([0, 1], 0, TEXT[:20])], 16)).logits
    for pool in decoder.states.pools:
        for parts in pool.tips:
            parts[1].zero_()
    again = decoder.forward(lay_out([Chunk([0, 1], 16, TEXT[16:20])], 16)).logits
    assert float((again - whole[16:]).abs().max()) > 1e-3


@pytest.mark.parametrize("family", ["qwen3_5_text", pytest.param("bamba", marks=pytest.mark.full)])
def test_one_text_whoever_drafts(family: str, tmp_path: Path) -> None:
    """Bit for bit: in a cache for two texts, with a shared prefix, pre-emption and forks, and parked in the middle."""
    target, draft = (checkpoint(tmp_path / name, family) for name in ("target", "draft"))
    prompts = [[*range(3, 23), last] for last in (5, 9, 23)]

    def asked(drafter: str) -> SamplingParams:
        return SamplingParams(temperature=0.8, seed=4, n=2, max_tokens=12, drafter=drafter, ignore_eos=True)

    plain = LLM(target, blocks=64, block_size=4, prefix_cache=False, drafter="none")
    texts = [[s.token_ids for s in it.outputs] for it in plain.generate(prompts, asked("none"), progress=False)]
    llm = LLM(target, draft, blocks=24, block_size=4, check=True, max_requests=6, row_budget=32)
    for drafter in ("none", "ngram", "topk", "dyspec", "ngram+topk"):
        made = llm.generate(prompts, asked(drafter), progress=False)
        assert [[s.token_ids for s in it.outputs] for it in made] == texts, drafter
    assert llm.engine.drafters.errors == []
    assert llm.engine.cache.pool.hits > 0 and llm.engine.desk.totals.preemptions > 0


def test_kv_dtype_of_a_model_without_keys(tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match="keeps none"):
        load_model(checkpoint(tmp_path, "mamba2"), kv_dtype="int8")


@pytest.mark.parametrize("family", ["lfm2", "qwen3_5_text"])
def test_adapters_of_their_projections(family: str, tmp_path: Path) -> None:
    """As PyTorch adds them; a row without one is not changed by a bit."""
    path, made = checkpoint(tmp_path / "base", family), list[Tensor]()
    adapter = read_lora(make_adapter(tmp_path / "a", path, 0), read_config(path))
    rows = lay_out([Chunk([2, 3], 0, TEXT[:16]), Chunk([4, 5], 0, TEXT[:16])], 16)
    for decoder in (native(path), twin(path)):
        plain = decoder.forward(rows).logits
        decoder.adapt().install(1, adapter)
        segments = [rows.segments[0]._replace(adapter=1), rows.segments[1]]
        logits = decoder.forward(replace(rows, segments=segments)).logits
        assert float((logits[:16] - plain[:16]).abs().max()) > 0.01
        assert torch.equal(logits[16:], plain[16:]) or made
        made.append(logits)
    change = float((made[0] - plain)[:16].abs().mean())  # natively what lies between the factors is rounded to bfloat16
    assert float((made[0] - made[1]).abs().mean()) < 0.05 * change
