"""What a model takes of memory, from its config and the form its weights will lie in, before one is read.

Upper bounds, by the code that takes it: `Loader` (loader.py) for the weights, native/decoder.cpp for the scratch of a
native pass, blocks.py and attend/ for that of one in PyTorch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Protocol

from paceline.model.spec import Attends, Delta, Experts, Latent, Layer, Mamba, ModelSpec, ShortConv

SOFTMAX_KEYS = 1024
"""Keys of one softmax of the native attention; a longer text's are merged (base.h)."""
PIECE_QUERIES = 64
"""Queries of one piece of it, at most."""
GATHERED = 65 + 6 * PIECE_QUERIES
"""Groups of 16 keys that a thread may copy for one piece: of a span, and of the path of each row of a tree."""
UNIT_SLOTS = 512
"""Slots that the native pool is made of: 16 lie side by side, and 32 times as many of each layer and head (base.h)."""
PADDED_REQUEST_ROWS = 16
"""Rows up to which a request is padded (attend/batches.py)."""
STATES = 3
"""States alive at once for each text of a pass: the one that it begins with, and those behind its last given rows."""
RECORDS = 4
"""Copies of a row's record: kept, with twice as many places as were ever needed, and at work."""
SCAN_ROWS = 64
"""Rows that a scan computes at once (scan.py), and that a tree has at most."""
NATIVE_STATE_ROWS = 32
"""Rows of a head's state that a thread takes at a time (recurrence.h)."""
PAIRS = 1 << 22
"""Row, head and key triples of a padded batch in PyTorch (attend/reference.py: SCORES)."""


class PackingForm(Protocol):
    """The part of `linear.Packing` that is needed."""

    @property
    def native(self) -> bool: ...
    @property
    def kernels(self) -> bool: ...
    @property
    def working(self) -> int: ...
    @property
    def head(self) -> "PackingForm | None": ...
    def size(self, outputs: int, inputs: int, /) -> int: ...
    def slot(self, heads: int, head_dim: int, /) -> int: ...


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one model."""

    weights: int
    """Bytes of everything loaded, the embedding included."""
    loading: int
    """Maximum bytes taken in addition to them while they are loaded."""
    slot: int
    """Keys and values of one slot of the pool."""
    unit: int
    """Slots that the pool is rounded up to."""
    vocab: int
    fixed: int
    """Scratch of a pass whatever it computes."""
    row: int
    """More for each of its rows."""
    key: int
    """More for each token of the longest text, which is rotated."""
    mask: int
    """More for each pair of a (padded) row and a key that it may see."""
    pair: int
    """More for each such pair of the batch at work, of at most `pairs`."""
    copy: int
    """More for each key that this batch reads."""
    pairs: int
    state: int = 0
    """The state of one text: one lies with each block."""
    record: int = 0
    """What one row brings to it, in all layers."""

    def kv(self, blocks: int, block_size: int) -> int:
        return -(-blocks * block_size // self.unit) * self.unit * self.slot

    def scratch(self, rows: int, requests: int, length: int) -> int:
        """Maximum bytes that a pass takes in addition to logits, if no text is longer than `length`."""
        padded = (rows + PADDED_REQUEST_ROWS * min(requests, rows)) * length
        at_work = min(padded, max(self.pairs, PADDED_REQUEST_ROWS * length))
        read = max(length, min(requests * length, self.pairs // 4))
        of_keys = length * self.key + padded * self.mask + at_work * self.pair + read * self.copy
        states = STATES * requests * self.state + RECORDS * rows * self.record
        return self.fixed + rows * self.row + of_keys + states


def footprint(spec: ModelSpec, form: PackingForm, itemsize: int, stored: int, threads: int) -> Footprint:
    """`itemsize`: bytes of a number in the K/V cache and the embedding; `stored`: the widest of the checkpoint's."""
    each = [list(layer_matrices(spec, layer)) for layer in spec.layers]
    packed = sum(form.size(outputs, inputs) for matrices in each for outputs, inputs in matrices)
    layers = len(spec.layers)
    norms = 4 * (4 * spec.hidden + (spec.heads + spec.kv_heads) * spec.head_dim)
    if not spec.uniform:
        norms = 4 * (8 * spec.hidden + 2 * widest_heads(spec))
    of_tokens = token_numbers(spec) * itemsize
    if form.head is not None and spec.token_width:
        of_tokens = form.head.size(spec.token_vocab, layers * spec.token_width)
    absorbed = absorbed_numbers(spec) * max(itemsize, 4)
    of_head = form.head or form
    head = of_head.size(spec.vocab, spec.hidden)
    embedding = spec.vocab * spec.hidden * itemsize if form.head is None or form.kernels else 0 if spec.tied else head
    layer = max(sum(o * i for o, i in matrices) for matrices in each)
    largest = max(o * i for matrices in each for o, i in matrices)
    whole = spec.vocab * spec.hidden  # the head, which is not fused
    loading = max(stored * layer + form.working * largest, (stored + max(of_head.working - 4, 2)) * whole)
    slot = sum(len(own) * form.slot(kept.heads, kept.width) * kept.parts // 2 for kept, own in spec.pools.items())
    turned = 3 * 2 * 4 * sum({it.rope: len(it.rope.inverse) for it in spec.attentions}.values())
    wide = 8 if itemsize == 8 else 4
    state, record = spec.state_bytes(wide), spec.record_bytes(wide)
    routers = sum(4 * (it.count * (spec.hidden + 2) + spec.hidden) for it in spec.mixtures)
    weights = packed + layers * norms + norms + head + embedding + routers + of_tokens + absorbed
    fixed, row, mask, pair, copy, pairs = (
        native_scratch(spec, threads) if form.native else torch_scratch(spec, itemsize)
    )
    unit = UNIT_SLOTS if form.native else 1
    return Footprint(
        weights,
        loading,
        slot,
        unit,
        spec.vocab,
        fixed,
        row,
        turned,
        mask,
        pair,
        copy,
        pairs,
        state=state,
        record=record,
    )


def token_numbers(spec: ModelSpec) -> int:
    """Numbers of the table of what layers have of a token's own."""
    return spec.token_vocab * len(spec.layers) * spec.token_width


def absorbed_numbers(spec: ModelSpec) -> int:
    """Numbers of the matrices of MLA that are multiplied into queries and results."""
    mixers = [it for it in spec.attentions if isinstance(it, Latent)]
    return sum(spec.heads * (it.head_dim + it.value_dim) * it.rank for it in mixers)


def layer_matrices(spec: ModelSpec, layer: Layer) -> Iterator[tuple[int, int]]:
    """(outputs, inputs) of a layer's matrices, as they are fused; gates and ups by 16. Routers are no such matrices."""
    yield from attention_matrices(spec, layer.attends)
    if spec.token_width:
        yield spec.token_width, spec.hidden
        yield spec.hidden, spec.token_width
        yield spec.token_width, spec.hidden  # its part of the projection of all layers
    if isinstance(layer.recurs, Mamba | Delta):
        yield layer.recurs.width + layer.recurs.record, spec.hidden
        yield spec.hidden, layer.recurs.width
    elif layer.recurs is not None:
        yield 3 * spec.hidden, spec.hidden
        yield spec.hidden, spec.hidden
    feed = layer.feed
    if feed is None:
        return
    widths = [feed.width]
    if isinstance(feed, Experts):
        widths = [feed.width] * feed.count + [width for width in (feed.shared, feed.beside) if width]
    for width in widths:
        yield (2 if spec.gated else 1) * (-(-width // 16) * 16), spec.hidden
        yield spec.hidden, width


def attention_matrices(spec: ModelSpec, mixer: Attends | None) -> Iterator[tuple[int, int]]:
    """As of `layer_matrices`; what is absorbed in MLA is no such matrix."""
    if mixer is None:
        return
    if isinstance(mixer, Latent):
        each = mixer.head_dim + 2 * len(mixer.rope.inverse)
        if mixer.query_rank is not None:
            yield mixer.query_rank, spec.hidden
        yield spec.heads * each, mixer.query_rank or spec.hidden
        yield mixer.width, spec.hidden
        yield spec.hidden, spec.heads * mixer.value_dim
        return
    kept = spec.kept(mixer)
    q, kv = spec.heads * kept.width, kept.heads * kept.width
    own = 0 if mixer.shares is not None else (2 - mixer.same) * kv
    yield q * (1 + spec.gated_attention) + own, spec.hidden
    yield spec.hidden, q


def widest_heads(spec: ModelSpec) -> int:
    """Numbers of all heads of queries, keys and values of the widest layer."""
    made = [(spec.heads + 2 * it.heads) * it.width for it in map(spec.kept, spec.attentions)]
    return max(made, default=(spec.heads + 2 * spec.kv_heads) * spec.head_dim)


Scratch = tuple[int, int, int, int, int, int]
"""fixed, row, mask, pair, copy, pairs of `Footprint`."""


def native_scratch(spec: ModelSpec, threads: int) -> Scratch:
    """decoder.cpp: lay_out, and what each thread keeps (`Scratch`, the bounds of two races, its stack)."""
    dims, mixed = -(-spec.head_dim // 32) * 32, spec.heads * spec.head_dim
    recurs, inner, brought, out, of_states = native_recurrences(spec)
    widest = max((spec.heads + 2 * spec.kv_heads) * spec.head_dim, spec.hidden, spec.ffn, inner)
    activations = 4 * (spec.hidden + max(mixed, out) + spec.ffn) + 3 * (128 + 4)
    spans = -(-spec.max_len // SOFTMAX_KEYS) if spec.max_len > SOFTMAX_KEYS else 0
    parts = 4 * (16 + dims) * spans
    rows = 4 * (2 * spec.hidden + widest) + activations + 4 * spec.heads * dims
    rows += 4 * (recurs * spec.hidden + out + brought + spec.gated_attention * mixed)
    scores = (4 + 2) * PIECE_QUERIES * (SOFTMAX_KEYS + 112)
    each = 4 * ((2 * PIECE_QUERIES + 16) * dims + 4096 + 2 * widest) + scores
    each += 2 * 2 * 16 * dims * GATHERED + 8 * spec.vocab + (1 << 18) + of_states
    apart = 4 * PIECE_QUERIES * threads  # heads of rows up to which a text's spans are shared out to the threads
    fixed = threads * each + 32 * (4 * widest + activations) + max(apart, spec.heads) * parts
    fixed += 2 * SCAN_ROWS * brought  # what a text's candidates left, replayed in a pass of one row
    mixed = max((mixture_row(spec.hidden, it) for it in spec.mixtures), default=0)
    return fixed + 64 * mixed, rows + 80 * spec.kv_heads * (spans + 1) + mixed, 0, 0, 0, 0


def native_recurrences(spec: ModelSpec) -> tuple[int, int, int, int, int]:
    """recurrence.h: is there one; numbers of a row's projections, of what is convolved of it and of a row that is
    replayed, and of what comes out; bytes of the states where a tree's paths part, of one thread."""
    inner = brought = out = states = 0
    for it in spec.recurrences:
        if isinstance(it, ShortConv):
            inner, brought, out = max(inner, 3 * spec.hidden), max(brought, spec.hidden), max(out, spec.hidden)
            continue
        inner, out = max(inner, it.width + it.record), max(out, it.width)
        brought = max(brought, it.channels + 2 * it.heads)
        states = max(states, 4 * (SCAN_ROWS + 1) * NATIVE_STATE_ROWS * it.matrix[-1])
    return int(spec.recurrent), inner, 2 * brought, out, states


def mixture_row(hidden: int, it: Experts) -> int:
    """Bytes of a row of a mixture, natively: routed and gated for each expert, floats of both, and what is added."""
    routed = it.active * (5 * (hidden + it.width) + 4 * it.width + 3 * (128 + 4) + 12)
    return routed + 9 * it.shared + 8 * hidden


def torch_scratch(spec: ModelSpec, itemsize: int) -> Scratch:
    """blocks.py: what is alive at once of a layer's rows, in float32; attend/: masks, scores and shares, and the
    wide copies of keys and values that a batch reads."""
    wide = 8 if itemsize == 8 else 4
    mixed = widest_heads(spec)
    row = wide * (6 * spec.hidden + 5 * mixed + 5 * spec.ffn + 3 * len(spec.layers) * spec.token_width)
    scans = [it for it in spec.recurrences if isinstance(it, Mamba | Delta)]
    row += 8 * wide * max((it.width + it.record for it in scans), default=0)
    fixed = 4 * wide * max((it.heads * SCAN_ROWS**2 + prod(it.matrix) for it in scans), default=0)
    mask = wide * spec.heads * len({mixer.window for mixer in spec.attentions})
    copy = max((kept.numbers for kept in spec.pools), default=0) * (wide + itemsize)
    return fixed, row, mask, 4 * wide * spec.heads, copy, PAIRS // spec.heads
