"""The native decoder: bit for bit the same row whatever its pass, and close to its slow twin. Whatever it multiplies
with; where the CPU has no tiles, they are those of tests/native/tiles.h, and AVX2 is tried everywhere."""

from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.core.errors import RefusalError
from paceline.core.params import SamplingParams
from paceline.core.program import Program
from paceline.core.proposer import Continuation
from paceline.core.request import Request
from paceline.core.result import Round
from paceline.core.rows import Rows
from paceline.core.warp import Warp
from paceline.model import packed
from paceline.model.load import load_model
from paceline.model.native import NativeDecoder
from paceline.native.build import Unit, has_amx, library, unit
from paceline.sample.sampler import Sampler
from tests.model.units import compiled, in_software, units_here
from tests.oracle.cases import CASES, VOCAB, Case, text, write
from tests.oracle.rows import Chunk, feed, lay_out
from tests.sample.ruled import SOME_RULES
from tests.sampling import sampled

pytestmark = pytest.mark.skipif(library() is None, reason="this machine has no AVX2, or no compiler")
FORMS = {
    "llama-biases": CASES["llama-biases"],
    "mistral": Case("mistral", {"head_dim": 64}),
    "qwen3": Case("qwen3", {"head_dim": 128}),
    "phi3-partial": CASES["phi3-partial"],
    "gemma2": Case("gemma2", {"head_dim": 96}),
    "gemma3": Case("gemma3", {"head_dim": 40}),
    "starcoder2": Case("starcoder2", {"hidden_size": 40, "intermediate_size": 72}),
    "cohere2": Case("cohere2"),
    "olmo3": Case("olmo3", {"hidden_size": 48, "num_attention_heads": 6}),
    "granite": Case("granite"),
}
"""Biases and odd sizes, windows, head norms, partial rotation, caps and post norms, two rotations; heads of 6 to 128
dimensions; layer norms with biases and a feed-forward part without gates, parts side by side, post norms alone and one
norm over all heads, scaled residuals and logits."""
CELLS = [(form, unit, quantize) for form in FORMS for unit in units_here() for quantize in (None, "int8", "int4")]
"""A form, what multiplies, and the weights: each pair of two of them in every run, all three in the full one."""
BYTES = 4096
"""Slots of the pool."""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write(tmp_path_factory.mktemp(name), case) for name, case in FORMS.items()}


def native(path: Path, unit: Unit, quantize: str | None = None, kv: str | None = None) -> NativeDecoder:
    decoder = load_model(path, quantize=quantize, kv_dtype=kv)
    assert isinstance(decoder, NativeDecoder)
    decoder.model.unit, decoder.library = unit, compiled(unit)
    return decoder


def alone(decoder: NativeDecoder, tokens: list[int]) -> Tensor:
    """Logits of the last token, each token in a pass of its own, in blocks of sixteen."""
    decoder.allocate(16, 16)
    return feed(decoder, tokens, range(16), 16, range(1, len(tokens)))[-1]


@st.composite
def trees(draw: st.DrawFn) -> tuple[int, int, list[int]]:
    """(base, given, parents of the candidates)"""
    base, given = draw(st.integers(0, 40)), draw(st.integers(1, 20))
    chain = draw(st.booleans())
    nodes = draw(st.sampled_from([0, 1, 3, 7, 16, 33, 64]))
    return base, given, [n - 1 if chain else draw(st.integers(-1, n - 1)) for n in range(nodes)]


@pytest.mark.parametrize(
    ("form", "unit", "quantize"),
    sampled(CELLS, lambda cell: cell[:2], lambda cell: cell[1:], lambda cell: (cell[0], cell[2])),
    ids=lambda it: it.name if isinstance(it, Unit) else str(it),
)
@given(data=st.data())
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_row_has_the_same_bits_in_any_pass(
    checkpoints: dict[str, Path], form: str, unit: Unit, quantize: str | None, data: st.DataObject
) -> None:
    """Random trees of several requests, prefixes cut at random, scattered pages of any size: every row equals, to the
    bit, the last of its own path fed token by token."""
    decoder = native(checkpoints[form], unit, quantize, data.draw(st.sampled_from([None, "int8"]), "K/V"))
    size = data.draw(st.sampled_from([1, 3, 5, 16, 32]), "block size")
    shapes = data.draw(st.lists(trees(), min_size=1, max_size=2), "requests")
    free = torch.randperm(BYTES // size, generator=torch.Generator().manual_seed(1)).tolist()
    decoder.allocate(BYTES // size, size)
    chunks, texts = [], []
    for number, (base, given_, parents) in enumerate(shapes):
        table = [free.pop() for _ in range(-(-(base + given_ + len(parents)) // size))]
        tokens, tree = text(number, base + given_), text(number + 9, len(parents) or 1)[: len(parents)]
        cut = data.draw(st.integers(0, base), "cut")
        if base:
            feed(decoder, tokens[:base], table, size, [cut] if 0 < cut < base else [])
        chunks.append(Chunk(table, base, tokens[base:], tree, parents))
        texts.append(tokens)
    rows = lay_out(chunks, size)
    logits = decoder.forward(rows).logits
    for chunk, tokens, segment in zip(chunks, texts, rows.segments):
        picked = {0, segment.given - 1, segment.rows - 1, segment.rows * 2 // 3}
        for row in sorted(picked):
            path: list[int] = []
            node = row - segment.given
            while node >= 0:
                path.insert(0, chunk.tree[node])
                node = chunk.parents[node]
            prefix = tokens[: chunk.base + min(row + 1, segment.given)]
            torch.testing.assert_close(logits[segment.start + row], alone(decoder, prefix + path), rtol=0, atol=0)


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
@pytest.mark.parametrize("unit", Unit, ids=attrgetter("name"))
@pytest.mark.parametrize("form", ["llama-biases", "gemma3"])
def test_a_long_text_has_the_same_bits_however_it_is_shared_out(
    checkpoints: dict[str, Path], form: str, unit: Unit, quantize: str | None
) -> None:
    """Keys are merged every 1,024 positions: by one thread for many rows, span by span for few. A tree lies across the
    border, and every thread count shares the work out in its own way."""
    decoder = native(checkpoints[form], unit, quantize, "int8" if quantize == "int4" else None)
    tokens, nodes = text(11, 2042), 24
    parents = [max(-1, n - 1 - (n % 5 == 4)) for n in range(nodes)]
    tree = text(12, nodes)
    decoder.allocate(160, 16)
    before = torch.get_num_threads()
    found = []
    try:
        for threads, cuts in (1, []), (2, [2000, 2030, 2041]), (3, [1023, 1024, 2031]):
            torch.set_num_threads(threads)
            feed(decoder, tokens[:-1], range(160), 16, cuts)
            chunk = Chunk(range(160), len(tokens) - 1, tokens[-1:], tree, parents)
            found.append(decoder.forward(lay_out([chunk], 16)).logits)
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
        for last in nodes - 1, nodes // 2:
            path, node = list[int](), last
            while node >= 0:
                path, node = [tree[node], *path], parents[node]
            whole = feed(decoder, tokens + path, range(160), 16, [])
            assert torch.equal(whole[-1], found[0][1 + last])
    finally:
        torch.set_num_threads(before)


def feed_one(decoder: NativeDecoder, tokens: list[int], place: int) -> Tensor:
    return decoder.forward(lay_out([Chunk(range(70), place, [tokens[place]])], 16)).logits


@pytest.mark.parametrize("unit", Unit, ids=attrgetter("name"))
def test_rows_that_share_keys_have_the_bits_of_one_alone(tmp_path: Path, unit: Unit) -> None:
    """Six queries of a row under each head: several rows share what is widened once (AVX2), in pieces of at most 64
    queries, smaller where threads would have nothing to do."""
    heads = {"num_attention_heads": 12, "num_key_value_heads": 2, "head_dim": 128}
    decoder = native(write(tmp_path, Case("qwen3", heads)), unit)
    decoder.allocate(70, 16)
    base, most, before = 1010, 24, torch.get_num_threads()  # the first rows see one span of 1,024 keys, the last two
    tokens = text(15, base + most)
    try:
        feed(decoder, tokens[:base], range(70), 16, [])
        alone = [feed_one(decoder, tokens, base + n) for n in range(most)]
        for threads, rows in (1, 2), (2, 3), (1, 11), (2, most), (5, 8):
            torch.set_num_threads(threads)
            for first in range(0, most - rows + 1, rows):
                chunk = Chunk(range(70), base + first, tokens[base + first : base + first + rows])
                found = decoder.forward(lay_out([chunk], 16)).logits
                assert torch.equal(found, torch.cat(alone[first : first + rows]))
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not has_amx(), reason="this CPU has no AMX to compare with")
@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
def test_tiles_in_software_are_those_of_the_cpu(checkpoints: dict[str, Path], quantize: str | None) -> None:
    decoder = native(checkpoints["llama-biases"], Unit.TILES, quantize)
    decoder.allocate(160, 16)
    rows = lay_out([Chunk(range(160), 0, text(13, 1060), text(14, 30), [n - 1 - n % 2 for n in range(30)])], 16)
    ours = decoder.forward(rows).logits
    decoder.library = in_software()
    assert torch.equal(decoder.forward(rows).logits, ours)


@pytest.mark.parametrize(
    ("form", "unit", "length"),
    sampled(
        [(f, u, n) for f in FORMS for u in units_here() for n in (90, 1100)],
        lambda cell: cell[:2],
        lambda cell: cell[1:],
    ),
    ids=lambda it: it.name if isinstance(it, Unit) else str(it),
)
def test_slow_twin(checkpoints: dict[str, Path], form: str, unit: Unit, length: int) -> None:
    """No further from float32 than the PyTorch decoder in bfloat16 is."""
    tokens = text(5, length + 60)
    parents = [max(-1, n - 1 - n % 3) for n in range(60)]
    rows = lay_out([Chunk(range(300), 0, tokens[:length], tokens[length:], parents)], 4)

    def logits(decoder: object) -> Tensor:
        decoder.allocate(300, 4)  # type: ignore[attr-defined]
        return decoder.forward(rows).logits[-100:]  # type: ignore[attr-defined,no-any-return]

    exact = logits(load_model(checkpoints[form], dtype="float32"))
    twin = (logits(load_model(checkpoints[form], fast=False)) - exact).abs()
    ours = (logits(native(checkpoints[form], unit)) - exact).abs()
    assert ours.mean() < 1.2 * twin.mean() and ours.max() < 3 * twin.max()


@pytest.mark.parametrize("unit", Unit, ids=attrgetter("name"))
def test_scores_far_apart_leave_every_logit_finite(tmp_path: Path, unit: Unit) -> None:
    """Biases of queries and keys like those of Qwen 2.5: scores of one row differ by 0 to some thousands, and e^-180 is
    further from 1 than a float32 can say in one factor."""
    path, tokens = write(tmp_path, CASES["llama-biases"]), text(5, 300)
    weights = load_file(path / "model.safetensors")
    for name in (name for name in weights if name.endswith(("q_proj.bias", "k_proj.bias"))):
        weights[name] = torch.randn(weights[name].shape, generator=torch.Generator().manual_seed(1)) * 15
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    decoder, spread = native(path, unit), load_model(path, dtype="float32")
    for model in (decoder, spread):
        model.allocate(100, 4)
    rows = lay_out([Chunk(range(100), 0, tokens)], 4)
    ours, exact = decoder.forward(rows).logits, spread.forward(rows).logits
    assert ours.isfinite().all() and exact.isfinite().all()
    assert (ours - exact).abs().median() < 0.2 * exact.abs().median()


@pytest.mark.parametrize("size", [16, 5])
@pytest.mark.parametrize("kv", [None, "int8"])
@pytest.mark.parametrize("unit", Unit, ids=attrgetter("name"))
def test_numbers_that_are_not_finite_reach_those_alone_who_see_them(
    tmp_path: Path, unit: Unit, kv: str | None, size: int
) -> None:
    """A text of a token whose embedding is NaN leaves its blocks to the next one, whose passes end at any lane, and a
    candidate that is one spoils neither the row that it follows nor its siblings."""
    path, tokens, bad = write(tmp_path, CASES["llama-biases"]), text(7, 60), VOCAB - 1
    weights = load_file(path / "model.safetensors")
    weights["model.embed_tokens.weight"][bad] = float("nan")
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    tokens = [token % bad for token in tokens]
    decoder = native(path, unit, kv=kv)
    tree = tokens[20:24]
    passes = [Chunk(range(16), 0, tokens[:5]), Chunk(range(16), 5, tokens[5:11], tree, [-1, 0, -1, 2])]
    passes += [Chunk(range(16), 11, tokens[11:12], [bad, tree[0]], [-1, -1])]
    passes += [Chunk(range(16), 12, tokens[12:40])]

    def logits(left: int, candidate: int) -> list[Tensor]:
        decoder.allocate(16, size)
        spoiled = decoder.forward(lay_out([Chunk(range(16), 0, [left] * 60)], size)).logits[:, :bad]
        assert spoiled.isfinite().all() == (left != bad)
        passes[2].tree[0] = candidate
        found = [decoder.forward(lay_out([chunk], size)).logits[:, :bad] for chunk in passes]
        assert found[2][1].isfinite().all() == (candidate != bad)
        found[2] = found[2][[0, 2]]
        return found

    clean = logits(1, 1)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(logits(bad, bad), clean, strict=True))


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
@pytest.mark.parametrize("unit", Unit, ids=attrgetter("name"))
def test_a_row_that_sees_a_number_that_is_not_finite_has_no_finite_logit(
    tmp_path: Path, unit: Unit, quantize: str | None
) -> None:
    """Neither a soft cap, nor the rounding to 8 bits, nor a bound of an exponential takes NaN for a number: a text that
    has met one would go on with words that mean nothing."""
    for form, end in ("llama-biases", "v_proj.bias"), ("gemma2", "v_proj.weight"):
        if end == "v_proj.weight" and quantize == "int4":
            continue  # rounding a weight makes it finite
        path = write(tmp_path / form, FORMS[form])
        weights = load_file(path / "model.safetensors")
        for name in (name for name in weights if name.endswith(end)):
            weights[name].view(-1)[0] = float("inf")  # of one number of one head: most of a row stays finite
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
        decoder = native(path, unit, quantize)
        decoder.allocate(16, 16)
        assert not decoder.forward(lay_out([Chunk(range(16), 0, text(7, 20))], 16)).logits.isfinite().any()


@pytest.mark.parametrize("unit", Unit, ids=attrgetter("name"))
def test_int8_layer(monkeypatch: pytest.MonkeyPatch, unit: Unit) -> None:
    """Exactly the product of the rounded matrices: integers add up without rounding."""
    monkeypatch.setattr(packed, "unit", lambda: unit)
    monkeypatch.setattr(packed, "library", lambda: compiled(unit))
    stream = torch.Generator().manual_seed(3)
    for outputs, inputs in (200, 96), (33, 130), (640, 1728):
        weight, bias = torch.randn(outputs, inputs, generator=stream), torch.randn(outputs, generator=stream)
        x = torch.randn(19, inputs, generator=stream)
        w_scale, x_scale = weight.abs().amax(1) / 127, x.abs().amax(1) / 127
        whole = (x / x_scale[:, None]).round().double() @ (weight / w_scale[:, None]).round().double().T
        expected = whole * x_scale[:, None] * w_scale + bias
        torch.testing.assert_close(packed.pack_int8(weight, bias)(x).double(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("kv", [None, "int8"])
@pytest.mark.parametrize("unit", (Unit.TILES, Unit.SHORT), ids=attrgetter("name"))
def test_moved_slots_are_read_where_they_went(checkpoints: dict[str, Path], unit: Unit, kv: str | None) -> None:
    decoder = native(checkpoints["llama-biases"], unit, kv=kv)
    decoder.allocate(40, 4)
    tokens = text(6, 30)
    feed(decoder, tokens[:29], range(8), 4, [])
    decoder.move(list(range(29)), list(range(64, 93)))
    last = lay_out([Chunk(range(16, 24), 29, tokens[29:])], 4)
    assert torch.equal(decoder.forward(last).logits[0], alone(decoder, tokens))


@pytest.mark.parametrize("unit", (Unit.TILES, Unit.SHORT), ids=attrgetter("name"))
@pytest.mark.parametrize("form", ["qwen3", "gemma3"])
def test_keys_and_values_in_8_bits(checkpoints: dict[str, Path], form: str, unit: Unit) -> None:
    """The first layer's are those of bfloat16 to half a step of their 32 numbers; logits change little."""
    tokens, found, pools = text(9, 60), [], []
    for kv in None, "int8":
        decoder = native(checkpoints[form], unit, kv=kv)
        decoder.allocate(16, 16)
        found.append(feed(decoder, tokens, range(16), 16, []))
        keys = decoder.keys[0, 0].float().permute(0, 1, 3, 2, 4).flatten(3)[:, :4].flatten(1, 2)[:, :60]
        values = decoder.values[0, 0].float().permute(0, 1, 2, 4, 3).flatten(2, 3)[:, :4].flatten(1, 2)[:, :60]
        steps = [torch.ones(1)] * 2
        if kv:
            each = [s[0, 0].float().transpose(2, 3)[:, :4].flatten(1, 2)[:, :60] for s in decoder.scales]
            steps = [step.repeat_interleave(32, 2) for step in each]
            assert decoder.kv_bytes_per_token == decoder.spec.kv_width * 17 // 16
        pools.append((keys * steps[0], values * steps[1], *steps))
    (keys, values, *_), (own_keys, own_values, *steps) = pools
    for ours, theirs, step in (own_keys, keys, steps[0]), (own_values, values, steps[1]):
        assert theirs.abs().max() > 0 and ((ours - theirs).abs() <= 0.51 * step + theirs.abs() / 256).all()
    assert 0 < (found[1] - found[0]).abs().mean() < 0.05 * found[0].std()


def test_layer_ranges_and_taps(checkpoints: dict[str, Path]) -> None:
    decoder = native(checkpoints["gemma2"], unit())
    decoder.allocate(16, 16)
    tokens = text(7, 21)
    taps = ("input:0", "input:2", "pre_norm", "post_norm")
    whole = decoder.forward(lay_out([Chunk(range(2), 0, tokens)], 16, taps=taps))
    first = lay_out([Chunk(range(2), 0, tokens)], 16)
    first.program = Program(0, 2, head=False)
    left = decoder.forward(first).leave
    assert left is not None and torch.equal(left, whole.taps["input:2"])
    rest = lay_out([Chunk(range(2), 0, tokens)], 16)
    rest.program, rest.hidden = Program(2, 3), left
    assert torch.equal(decoder.forward(rest).logits, whole.logits)
    assert not torch.equal(whole.taps["pre_norm"], whole.taps["post_norm"])
    head = decoder.weights.head(whole.taps["post_norm"])
    torch.testing.assert_close((head / 5).tanh() * 5, whole.logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("unit", (Unit.TILES, Unit.SHORT), ids=attrgetter("name"))
def test_a_pass_may_want_nothing(checkpoints: dict[str, Path], unit: Unit) -> None:
    decoder = native(checkpoints["qwen3"], unit)
    decoder.allocate(16, 16)
    tokens = text(8, 40)
    assert decoder.forward(lay_out([Chunk(range(3), 0, tokens[:39])], 16, want=[])).logits.shape == (0, VOCAB)
    last = decoder.forward(lay_out([Chunk(range(3), 39, tokens[39:])], 16)).logits[0]
    assert torch.equal(last, alone(decoder, tokens))


def one_by_one(decoder: NativeDecoder, rows: Rows, most: int, worth: float) -> list[int]:
    """The greedy chain that `chain` should draft, by passes of one row."""
    drawn: list[int] = []
    (segment,), chance = rows.segments, 1.0
    logits = decoder.forward(rows).logits[-1]
    while True:
        chance *= float((logits / 0.7).softmax(-1).amax())
        drawn.append(int(logits.argmax()))
        if len(drawn) == most or chance < worth:
            return drawn
        at = segment.base + segment.given + len(drawn) - 1
        logits = decoder.forward(lay_out([Chunk(rows.tables[0].tolist(), at, drawn[-1:])], 16)).logits[-1]


@pytest.mark.parametrize("unit", (Unit.TILES, Unit.SHORT), ids=attrgetter("name"))
@pytest.mark.parametrize("worth", [[0.0] * 3, [0.02, 0.0, 0.001], [0.0, 0.5, 0.02]])
def test_a_chain_is_its_passes_one_by_one(checkpoints: dict[str, Path], unit: Unit, worth: list[float]) -> None:
    decoder = native(checkpoints["llama-biases"], unit)
    decoder.allocate(32, 16)
    chunks = [Chunk(range(4 * n, 4 * n + 4), 0, text(20 + n, 5 + 9 * n)) for n in range(3)]
    most = [6, 1, 4]
    ends = [sum(len(c.given) for c in chunks[: n + 1]) - 1 for n in range(3)]
    together = decoder.chain(lay_out(chunks, 16, want=ends), most, [Warp(0.0)] * 3, [[]] * 3, worth, 0.5, 0.7)
    for chunk, n, least, drawn in zip(chunks, most, worth, together):
        assert drawn == one_by_one(decoder, lay_out([chunk], 16, want=[len(chunk.given) - 1]), n, least)


@pytest.mark.parametrize("unit", (Unit.TILES, Unit.SHORT), ids=attrgetter("name"))
@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
@pytest.mark.parametrize(
    ("warp", "rules"),
    [(Warp(0.0), {}), (Warp(0.7), SOME_RULES), (Warp(1.3, 8, 0.9, 0.01), {}), (Warp(0.0), SOME_RULES)],
    ids=["greedy", "rules", "filters", "greedy rules"],
)
def test_a_run_is_its_passes_one_by_one(
    checkpoints: dict[str, Path], unit: Unit, warp: Warp, quantize: str | None, rules: dict[str, Any]
) -> None:
    """Tokens to the bit, the keys and values of all but the last, and the ends: of the texts one ends early; nothing is
    drawn from what is not finite."""
    decoder = native(checkpoints["qwen3"], unit, quantize)
    sampler, passes, size = Sampler(VOCAB), 7, 8
    chunks = [Chunk([5 - n, 8 + n], 0, text(20 + n, 2 + 3 * n)) for n in range(2)]
    temperature = warp.temperature
    filters = {"top_k": warp.top_k, "top_p": warp.top_p, "min_p": warp.min_p}
    params = SamplingParams(temperature=temperature, seed=3, **filters, **rules).resolve({})

    def last() -> Rows:
        """The last row of each, behind the others."""
        decoder.allocate(16, size)
        decoder.forward(lay_out([Chunk(c.table, 0, c.given[:-1]) for c in chunks], size))
        return lay_out([Chunk(c.table, len(c.given) - 1, c.given[-1:]) for c in chunks], size)

    logits, expected, nexts = list(decoder.forward(last()).logits), [], []
    requests = [Request(n, chunk.given, params, 3) for n, chunk in enumerate(chunks)]
    for request, chunk, z in zip(requests, chunks, logits):
        sampler.admit(request)
        drawn: list[int] = []
        for index in range(passes):
            row = [(request, tuple(drawn))]
            drawn += sampler.draw(row, sampler.scores(row, z[None]), [request.target_noise.key(index)])
            z = decoder.forward(lay_out([Chunk(chunk.table, len(chunk.given) + index, drawn[-1:])], size)).logits[0]
        expected.append(drawn)
        nexts.append(z)
    assert len({*expected[0]}) > 1
    keys = [[request.target_noise.key(index) for index in range(passes)] for request in requests]
    warps = [sampler.warp(it) or warp for it in requests]
    for ends in ([()] * 2, [(VOCAB + 1, expected[0][2]), ()]):
        drawn_by = [
            Continuation(it, mine if temperature else [], last, passes) for it, mine, last in zip(warps, keys, ends)
        ]
        out = decoder.run(last(), passes, drawn_by).drawn
        stop = expected[0].index(ends[0][1]) + 1 if ends[0] else passes
        assert [drawn.tokens for drawn in out] == [expected[0][:stop], expected[1]]
        assert [drawn.rounds for drawn in out] == [[Round([], [])] * len(drawn.tokens) for drawn in out]
        for chunk, drawn, z in list(zip(chunks, expected, nexts))[stop < passes :]:
            at = len(chunk.given) + passes - 1
            after = decoder.forward(lay_out([Chunk(chunk.table, at, drawn[-1:])], size)).logits[0]
            torch.testing.assert_close(after, z, rtol=0, atol=0)
    if quantize is None:  # in int8 what is no number is rounded to one
        decoder.weights.norm.weight.fill_(float("nan"))
        texts = [Continuation(warp, mine, (), passes) for mine in keys]
        nothing = decoder.run(last(), passes, texts).drawn
        assert [drawn.tokens for drawn in nothing] == [[-1], [-1]]


def test_int8_is_refused_where_it_cannot_run(checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusalError, match="bfloat16"):
        load_model(checkpoints["qwen3"], quantize="int8", dtype="float32")
    with pytest.raises(RefusalError, match="int3"):
        load_model(checkpoints["qwen3"], quantize="int3")
    with pytest.raises(RefusalError, match="native decoder"):
        load_model(checkpoints["qwen3"], kv_dtype="int8", dtype="float32")
    with pytest.raises(RefusalError, match="fp8"):
        load_model(checkpoints["qwen3"], kv_dtype="fp8")
    monkeypatch.setattr("paceline.model.linear.library", lambda: None)
    with pytest.raises(RefusalError, match="AVX2"):
        load_model(checkpoints["qwen3"], quantize="int8")
