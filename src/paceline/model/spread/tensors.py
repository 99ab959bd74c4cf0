"""A decoder whose matrices are cut over several processes or GPUs of this machine, by outputs.

    rank 0 ──one array of whole numbers: the rows──▶ every rank
    a matrix's outputs of each rank ──gather──▶ side by side on all of them

Each rank has some heads, with their keys and values, and some outputs of every other matrix. Nothing is added up across
ranks, so an output has the bits that it has in one process, wherever a kernel computes an output alike in a part of its
matrix (`KernelMatrix.outputs`). Embeddings and norms are on every rank. Drafts are on rank 0 alone, and so is whatever
the engine does with logits and hidden states.
"""

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from paceline.attend.device import simulated, tensors_on
from paceline.core.errors import PacelineError, RefusalError
from paceline.core.rows import Out, Rows, Segment
from paceline.model.blocks import Block, FeedForward, SelfAttention
from paceline.model.decoder import Decoder
from paceline.model.linear import Linear
from paceline.model.load import load_whole
from paceline.model.norms import Norm
from paceline.model.spec import ModelSpec
from paceline.model.spread.exchange import Exchange
from paceline.model.spread.ranks import SpreadRanks

WHAT_AND_COUNT = struct.Struct("<iq")
"""Command to all processes, and how many whole numbers follow by a broadcast."""
RANK_PASS, RANK_MOVE, RANK_READ, RANK_WRITE, RANK_ALLOCATE = range(5)


@dataclass(frozen=True, slots=True)
class Cut:
    """One rank's part of every matrix."""

    rank: int
    ranks: int
    exchange: Exchange

    def mine(self, count: int) -> slice:
        """This rank's share of `count` things in a row."""
        each = count // self.ranks
        return slice(self.rank * each, (self.rank + 1) * each)

    def outputs(self, matrix: Any, *blocks: int) -> Any:
        """This rank's outputs of a matrix: its share of each of these blocks, which lie side by side."""
        at, first = list[Tensor](), 0
        for count in blocks:
            own = self.mine(count)
            at.append(torch.arange(first + own.start, first + own.stop))
            first += count
        return matrix.outputs(torch.cat(at).to(matrix.weight.device))

    def behind(self, matrix: Any, outputs: int) -> "Between":
        """A matrix whose inputs are cut, too."""
        return Between(self.outputs(matrix, outputs), self.exchange)


@dataclass(frozen=True, slots=True)
class Between:
    """A matrix by outputs: gathers its inputs, and what it gives."""

    matrix: Linear
    exchange: Exchange
    inputs: bool = True

    def __call__(self, x: Tensor) -> Tensor:
        return self.exchange.gather(self.matrix(self.exchange.gather(x) if self.inputs else x))


def check_cut(spec: ModelSpec, ranks: int, where: Path) -> None:
    """RefusalError unless this model can be cut into `ranks` parts."""
    kinds = [type(layer.mixer).__name__ for layer in spec.layers if layer.attends is None or layer.recurs is not None]
    if kinds or not spec.uniform or spec.mixtures or spec.whole_norm or spec.gated_attention or spec.sinks:
        raise RefusalError(
            f"tensor_parallel cuts layers of plain attention and dense feed-forward parts, but {where} "
            f"({spec.family}) has others; leave it out."
        )
    for what, count in (("heads", spec.heads), ("heads of keys", spec.kv_heads), ("hidden numbers", spec.hidden),
                        ("inner numbers", spec.ffn), ("logits", spec.vocab)):  # fmt: skip
        if count % ranks:
            raise RefusalError(f"tensor_parallel is {ranks}, but {where} has {count} {what}; use a divisor of that.")


def cut_decoder(decoder: Decoder, cut: Cut) -> None:
    """Keep this rank's part of each matrix."""
    spec = decoder.spec
    local = replace(spec, heads=spec.heads // cut.ranks, kv_heads=spec.kv_heads // cut.ranks)
    for block in decoder.weights.blocks:
        cut_block(block, spec, local, cut)
    weights = decoder.weights
    weights.head = Between(cut.outputs(weights.head, spec.vocab), cut.exchange, inputs=False)
    decoder.spec, decoder.graphs = local, None  # what gloo does is not recorded
    decoder.abilities = frozenset({"embed"})


def cut_block(block: Block, spec: ModelSpec, local: ModelSpec, cut: Cut) -> None:
    attention, ffn = block.mixer, block.ffn
    assert isinstance(attention, SelfAttention) and isinstance(ffn, FeedForward)
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    attention.qkv, attention.spec = cut.outputs(attention.qkv, q, kv, kv), local
    attention.out = cut.behind(attention.out, spec.hidden)
    if attention.head_norm is not None:
        attention.head_norm = cut_norm(attention.head_norm, spec, cut)
    widths = [spec.ffn] * (2 if spec.gated else 1)
    ffn.gate_up, ffn.down = cut.outputs(ffn.gate_up, *widths), cut.behind(ffn.down, spec.hidden)


def cut_norm(norm: Norm, spec: ModelSpec, cut: Cut) -> Norm:
    """Norms of its heads: those of queries, then those of keys."""
    q, k = torch.split(norm.weight, [spec.heads, spec.kv_heads])
    made = type(norm).__new__(type(norm))
    made.__dict__.update(norm.__dict__)
    made.weight = torch.cat((q[cut.mine(spec.heads)], k[cut.mine(spec.kv_heads)])).contiguous()
    return made


def packed(rows: Rows) -> "array[int]":
    """A pass as whole numbers: how many of each kind, the numbers of `Rows`, and each segment's first four."""
    flat = array("q", [len(rows.numbers), rows.width, len(rows.segments)])
    flat.extend(rows.numbers)
    for segment in rows.segments:
        flat.extend(segment[:4])
    return flat


def opened(numbers: Sequence[int], device: torch.device) -> Rows:
    """What `packed` packed."""
    count, width, texts = numbers[:3]
    own, rest = numbers[3 : 3 + count], numbers[3 + count :]
    fours = (rest[4 * i : 4 * i + 4] for i in range(texts))
    segments = [Segment(start, given, nodes, base) for start, given, nodes, base in fours]
    return Rows(array("q", own), width, segments, device)


class TensorDecoder(Decoder):
    """The decoder of rank 0: every call that reads or changes what the ranks hold is theirs, too."""

    group: "TensorGroup"

    def share(self, what: int, numbers: Sequence[int]) -> None:
        """Tell the others what is to be done."""
        group = self.group
        group.tell(WHAT_AND_COUNT.pack(what, len(numbers)))
        assert group.exchange is not None
        group.exchange.spread(torch.tensor(numbers, dtype=torch.int64).to(group.place))

    def allocate(self, blocks: int, block_size: int) -> None:
        with self.group.guarded():
            self.share(RANK_ALLOCATE, [blocks, block_size])
        super().allocate(blocks, block_size)

    def forward(self, rows: Rows) -> Out:
        self.check(rows)
        with self.group.guarded(), torch.inference_mode():
            self.share(RANK_PASS, packed(rows))
            return self.eager(rows)

    def move(self, source: list[int], target: list[int]) -> None:
        if source:
            with self.group.guarded():
                self.share(RANK_MOVE, [*source, *target])
            super().move(source, target)

    def read(self, slots: list[int]) -> bytes:
        with self.group.guarded():
            self.share(RANK_READ, slots)
            assert self.group.exchange is not None
            return whole_kv(self, slots, self.group.exchange)

    def write(self, slots: list[int], packed: bytes) -> None:
        padded = packed + bytes(-len(packed) % 8)
        whole = self.group.cut.ranks * self.kv_bytes(slots)
        if len(packed) != whole:
            super().write(slots, packed)  # says what is wrong
        with self.group.guarded():
            self.share(RANK_WRITE, [len(slots), len(packed), *slots, *array("q", padded)])
        super().write(slots, own_kv(self, slots, packed, self.group.cut))

    def kv_bytes(self, slots: list[int]) -> int:
        """Bytes of this rank's keys and values in these slots."""
        return self.pools[0].slots[:, :, :, :1].nbytes * len(slots)


def whole_kv(decoder: Decoder, slots: list[int], exchange: Exchange) -> bytes:
    """Keys and values of all ranks, as one process packs them."""
    own = decoder.pools[0].slots.index_select(3, torch.tensor(slots, device=decoder.device, dtype=torch.int64))
    joined = exchange.gather(own.permute(0, 1, 3, 2, 4).flatten(3))  # heads are side by side there
    heads = joined.view(*joined.shape[:3], -1, own.shape[4]).permute(0, 1, 3, 2, 4)
    found: bytes = heads.cpu().contiguous().view(torch.uint8).numpy().tobytes()
    return found


def own_kv(decoder: Decoder, slots: list[int], packed: bytes, cut: Cut) -> bytes:
    """This rank's part of keys and values that one process packed."""
    pool = decoder.pools[0].slots
    shape = (pool.shape[0], 2, pool.shape[2] * cut.ranks, len(slots), pool.shape[4])
    whole = torch.frombuffer(bytearray(packed), dtype=pool.dtype).view(shape)
    found: bytes = whole[:, :, cut.mine(shape[2])].contiguous().view(torch.uint8).numpy().tobytes()
    return found


class TensorGroup(SpreadRanks):
    """The processes of a model that is cut; `place`: where rank 0 computes."""

    option = "tensor_parallel"
    cut: Cut

    def __init__(self, path: Path, ranks: int, form: dict[str, Any]) -> None:
        device = str(form["device"])
        self.place = tensors_on(placed(device, 0))
        about = {"kind": "tensors", "path": str(path.absolute()), "form": form}
        super().__init__(ranks, about, "model", "cpu" if simulated(device) else device)


def placed(device: str, rank: int) -> str:
    """The device of a rank: the GPUs in turn."""
    return f"cuda:{rank}" if device == "cuda" and not simulated(device) else device


def cut_model(path: Path, ranks: int, form: dict[str, Any]) -> Decoder:
    """Load a checkpoint over `ranks` processes. `form`: of `load_whole`. Raises RefusalError for a model that cannot be
    cut, LostError where a process ends."""
    group = None
    try:
        group = TensorGroup(path, ranks, form)
        decoder = load_whole(path, TensorDecoder, **{**form, "device": placed(str(form["device"]), 0)})
        check_cut(decoder.spec, ranks, path)
        group.join()
    except BaseException as error:
        if group is not None:
            group.close()
        if isinstance(error, BrokenPipeError) and group is not None:
            raise group.lost() from None
        raise
    assert group.exchange is not None
    group.cut = Cut(0, ranks, group.exchange)
    with torch.inference_mode():
        cut_decoder(decoder, group.cut)
    decoder.group = decoder.spread = group
    return decoder


def work(about: dict[str, Any], source: BinaryIO) -> int:
    """A rank other than 0, until its input ends. Its exit code is 1 where the others are gone."""
    rank, ranks, form = about["rank"], about["devices"], about["form"]
    path, device = Path(about["path"]), placed(str(form["device"]), about["rank"])
    try:
        decoder = load_whole(path, Decoder, **{**form, "device": device})
        check_cut(decoder.spec, ranks, path)
    except PacelineError as error:
        print("error", " ".join(str(error).split()), flush=True)
        return 2
    print("ready", flush=True)
    if not source.readline():
        return 0
    exchange = Exchange(Path(about["meeting"]), rank, ranks, "cpu" if simulated(device) else device)
    try:
        with torch.inference_mode():
            serve(decoder, Cut(rank, ranks, exchange), source)
    except RuntimeError:  # one of the others has ended: the first process says so
        return 1
    return 0


def serve(decoder: Decoder, cut: Cut, source: BinaryIO) -> None:
    """Do what rank 0 does."""
    cut_decoder(decoder, cut)
    while len(head := source.read(WHAT_AND_COUNT.size)) == WHAT_AND_COUNT.size:
        what, count = WHAT_AND_COUNT.unpack(head)
        numbers = torch.empty(count, dtype=torch.int64, device=decoder.device)
        told: list[int] = cut.exchange.spread(numbers).tolist()
        if what == RANK_PASS:
            decoder.eager(opened(told, decoder.device))
        elif what == RANK_ALLOCATE:
            decoder.allocate(*told)
        elif what == RANK_MOVE:
            decoder.move(told[: count // 2], told[count // 2 :])
        elif what == RANK_READ:
            whole_kv(decoder, told, cut.exchange)
        else:
            slots, raw = told[2 : 2 + told[0]], array("q", told[2 + told[0] :]).tobytes()
            decoder.write(slots, own_kv(decoder, slots, raw[: told[1]], cut))
