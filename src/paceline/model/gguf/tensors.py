"""The tensors of a GGUF file under the names of a Hugging Face checkpoint, decoded as they are taken."""

import math
import mmap
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paceline.core.errors import CheckpointError, memory_ended, no_room_for
from paceline.model.families import FAMILIES
from paceline.model.family import MTP_PREFIX
from paceline.model.gguf.config import arch_of
from paceline.model.gguf.header import Header, TensorEntry, read_header
from paceline.model.gguf.hybrid import EXPERT_PARTS
from paceline.model.gguf.reader import ConfigReader, whole_or_none
from paceline.model.gguf.types import DECODERS, FLOAT_KINDS, PACKED, SERVED, decode
from paceline.model.groups import Groups

EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(\w+)\.(\w+)")
HALF_EXPERTS = re.compile(r"_(gate|up)_exps\.")
"""In names of tensors that newer files may have as one."""
VARIED_NAMES = {
    "experts.gate_proj": "ffn_gate_exps", "experts.up_proj": "ffn_up_exps",
    "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
}  # fmt: skip
"""Names of Gemma 4's experts that the `gguf` package does not have."""
BLOCK_NAME = re.compile(r"blk\.(\d+)\.")
SHARD_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
NEXT_NAMES = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head_norm",
    "embed_tokens": "embed_tokens",
}
"""Tensors `mtp.*` of a layer for further tokens, and what they are called below `blk.N.nextn.`."""
LATENT_MATRIX = ".kv_b_proj.weight"
DECAY, OFFSET, THROUGH, SPREAD_NORM = ".A_log", ".dt_bias", ".D", ("mamba.norm.weight", "mixer.norm.weight")
"""Ends of names of a recurrence's numbers: decay rates, which GGUF has as -exp(A); what is added to time steps; factors
of what passes by the state; a norm."""
DECODED_WEIGHTS = 1 << 22
"""Weights that are decoded at once: about 40 MB of working memory."""
FREQUENCIES, FREQUENCY_SETS = "rope_freqs.weight", ("rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that go into the config, and those of two rotations, of which phi3 has one for short texts."""


def parts_of(path: Path) -> list[Path]:
    """All files of a model that is split, the first one first; else the one."""
    found = SHARD_NAME.fullmatch(path.name)
    if not found:
        return [path]
    count = int(found[3])
    return [path.with_name(f"{found[1]}-{i:05}-of-{found[3]}.gguf") for i in range(1, count + 1)]


def load_header(path: Path) -> Header:
    """The header of a model in one file or several; what was read once is kept while the files stay as they are."""
    files = parts_of(path)
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise CheckpointError(f"{missing} is not there; all {len(files)} parts of a split model are needed.")
    facts = [(file, file.stat()) for file in files]
    return merged(tuple((file, it.st_ino, it.st_size, it.st_mtime_ns) for file, it in facts))


@lru_cache(maxsize=4)
def merged(files: tuple[tuple[Path, int, int, int], ...]) -> Header:
    first, *others = [read_header(file) for file, *_ in files]
    count = first.metadata.get("split.count", 1)
    if not isinstance(count, int):
        raise CheckpointError(f"split.count in {first.path} is {str(count)[:40]}, no number; convert the model again.")
    if count > 1 and count != len(files):
        raise CheckpointError(
            f"{first.path} is a part of {count}, but its name does not end in -00001-of-{count:05}.gguf; give the "
            "parts their names back."
        )
    for number, other in enumerate(others, 1):
        if other.metadata.get("split.no") != number:
            raise CheckpointError(f"{other.path} is not part {number + 1} of {first.path.name}; download it again.")
        if twice := next((name for name in other.tensors if name in first.tensors), None):
            raise CheckpointError(f"tensor {twice} is in two parts of {first.path}; download them again.")
        first.tensors.update(other.tensors)
    expected = first.metadata.get("split.tensors.count")
    if others and expected is not None and expected != len(first.tensors):
        raise CheckpointError(
            f"the parts of {first.path} hold {len(first.tensors)} tensors, but {expected} are promised; download them "
            "again."
        )
    for entry in first.tensors.values():
        if entry.kind not in SERVED:
            raise CheckpointError(
                f"tensor {entry.name} in {entry.file} is stored as {entry.kind.name}, which is not served; served are "
                f"{', '.join(kind.name for kind in SERVED)}."
            )
    return first


@cache
def names_of(architecture: str, layers: int) -> dict[str, str]:
    """GGUF's name of each weight by Hugging Face's, without `.weight`."""
    import gguf

    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    pairs = gguf.get_tensor_name_map(kinds[architecture], layers).mapping
    names = {theirs: found[1] for theirs, found in pairs.items()}
    outside = {f"model.{theirs}": name for theirs, name in names.items() if theirs.startswith("layers.")}
    return {"lm_head": "output", **outside, **names}


def within(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without axes of one number."""
    return tuple(it for it in shape if it != 1)


class GgufTensors:
    """As `checkpoint.Tensors`: a file's tensors by the names that its family has in Hugging Face checkpoints."""

    word = ""

    def __init__(self, path: Path) -> None:
        self.path, self.header = path, load_header(path)
        arch = arch_of(self.header)
        self.interleaved, self.renamed, self.curved = arch.interleaved, arch.names, arch.curved
        pair = arch.model_type == "phi3" and all(name in self.header.tensors for name in FREQUENCY_SETS)
        self.configured = {FREQUENCIES, *(FREQUENCY_SETS if pair else ())}
        architecture, read = self.header.metadata["general.architecture"], ConfigReader(self.header)
        self.blocks = read.whole("block_count")
        self.layers = self.blocks - whole_or_none(read, "nextn_predict_layers")
        self.names = names_of(architecture, self.blocks)
        if arch.varied:
            more = {
                f"model.layers.{n}.{ours}": f"blk.{n}.{it}"
                for n in range(self.blocks)
                for ours, it in VARIED_NAMES.items()
            }
            self.names = {**self.names, **more}
        if arch.apart:
            parts = EXPERT_PARTS.items()
            more = {f"backbone.layers.{n}.{ours}": f"blk.{n}.{it}" for n in range(self.blocks) for ours, it in parts}
            self.names = {**self.names, **more}
        family = FAMILIES[arch.model_type]
        self.predicts = family.mtp and self.blocks == self.layers + 1
        if self.predicts:
            at, own = f"model.layers.{self.layers}.", MTP_PREFIX + "layers.0."
            more = {own + name.removeprefix(at): it for name, it in self.names.items() if name.startswith(at)}
            more |= {MTP_PREFIX + name: f"blk.{self.layers}.nextn.{it}" for name, it in NEXT_NAMES.items()}
            self.names = {**self.names, **more}
        self.maps = {file: mapped(file) for file in parts_of(path)}
        self.taken: set[str] = set()
        self.experts: dict[str, int] = {}
        """How many experts were taken of a tensor that holds several."""
        self.read: list[TensorEntry] = []

    @property
    def place(self) -> dict[str, TensorEntry]:
        return self.header.tensors

    def named(self, name: str) -> tuple[str, int | None]:
        """The file's name of a tensor, and the number of the part that is meant: experts lie one behind the other."""
        whole = self.names.get(name, "").endswith(".scale") or (name.endswith(".weight") and name in self.names)
        if whole or name.endswith((DECAY, THROUGH)):
            return self.names.get(name, name), None
        if name.endswith(OFFSET):
            return f"{self.names.get(name.replace(OFFSET, '.dt_proj'), name)}.bias", None
        if name in self.names:  # it has no end
            theirs = self.names[name]
            return f"{theirs}.{'bias' if f'{theirs}.bias' in self.header.tensors else 'weight'}", None
        expert = EXPERT.fullmatch(name)
        stem, _, end = name.rpartition(".") if expert is None else (f"{expert[1]}.{expert[3]}", ".", expert[4])
        if end.endswith("_bias"):
            stem, end = f"{stem}.{end.removesuffix('_bias')}", "bias"
        return f"{self.names.get(stem, stem)}.{end}", None if expert is None else int(expert[2])

    def found(self, name: str) -> TensorEntry | None:
        """The tensor of a name, or the part of one."""
        theirs, number = self.named(name)
        whole, turn = self.header.tensors.get(theirs), None
        if whole is None and number is not None and (part := HALF_EXPERTS.search(theirs)):
            whole = self.header.tensors.get(theirs.replace(part[0], "_gate_up_exps."))
            turn = ("gate", "up").index(part[1])
        if whole is None or number is None:
            return whole
        if len(whole.shape) < 2 or number >= whole.shape[0]:
            raise CheckpointError(f"tensor {theirs} in {whole.file} has shape {whole.shape} and no expert {number}.")
        each, shape, at = whole.bytes // whole.shape[0], whole.shape[1:], number
        if turn is not None:  # gates before ups
            if shape[0] % 2:
                raise CheckpointError(
                    f"tensor {whole.name} in {whole.file} has no two halves; convert the model again."
                )
            each, shape, at = each // 2, (shape[0] // 2, *shape[1:]), 2 * number + turn
        return replace(whole, shape=shape, offset=whole.offset + at * each, bytes=each)

    def entry(self, name: str, shape: tuple[int, ...]) -> TensorEntry:
        found = self.found(name)
        if found is None:
            raise CheckpointError(f"tensor {self.named(name)[0]} is missing from {self.path}; download it again.")
        if found.shape != shape and within(found.shape) == within(shape):  # of one row, or an axis of one is left out
            found = replace(found, shape=shape)
        if name.endswith(SPREAD_NORM) and len(shape) == 1 and prod(found.shape) == shape[0]:  # group by group
            found = replace(found, shape=shape)
        if found.shape != shape:
            raise CheckpointError(
                f"tensor {found.name} in {found.file} has shape {found.shape} where the metadata imply {shape}; "
                "the file is damaged or made by a broken converter."
            )
        if (number := self.named(name)[1]) is not None:
            self.experts[found.name] = max(self.experts.get(found.name, 0), number + 1)
        self.taken.add(found.name)
        self.read.append(found)
        return found

    def raw(self, entry: TensorEntry) -> Tensor:
        """Its bytes, where the file lies in memory."""
        return torch.frombuffer(self.maps[entry.file], dtype=torch.uint8, count=entry.bytes, offset=entry.offset)

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """The tensor as floats: float32, or `dtype`, rounded once."""
        if name.endswith(LATENT_MATRIX) and self.found(name) is None:
            return self.from_latent(name, shape, dtype)
        entry = self.entry(name, shape)
        raw = self.raw(entry)
        if entry.kind in FLOAT_KINDS:
            kind = FLOAT_KINDS[entry.kind]
            aligned = raw if raw.data_ptr() % kind.itemsize == 0 else raw.clone()
            found = aligned.view(kind).view(shape)
            return (torch.log(-found) if name.endswith(DECAY) else found).to(dtype or kind)
        out = torch.empty(shape, dtype=dtype or torch.float32)
        rows, lines = out.view(-1, shape[-1]), raw.view(-1, entry.bytes * shape[-1] // out.numel())
        step = max(1, DECODED_WEIGHTS // shape[-1])
        for into, bytes_ in zip(torch.split(rows, step), torch.split(lines, step)):
            into.copy_(decode(bytes_.reshape(-1), entry.kind, *into.shape).floats())
        return out

    def from_latent(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> Tensor:
        """What makes keys and values of a latent vector: by head, rows of keys and then of values. The file has each in
        a tensor of its own, those of keys transposed."""
        keys, values = (name.replace("kv_b_proj", f"{it}_b_proj") for it in "kv")
        place = self.found(values)
        if place is None or len(place.shape) != 3:
            raise CheckpointError(f"tensor {self.named(values)[0]} is missing from {self.path}; download it again.")
        heads, width, rank = place.shape
        of_values = self.take(values, place.shape, dtype)
        of_keys = self.take(keys, (heads, rank, shape[0] // heads - width), dtype)
        return torch.cat((of_keys.transpose(1, 2), of_values), 1).reshape(shape)

    def groups(self, name: str, shape: tuple[int, ...]) -> Groups | None:
        """A matrix as whole numbers with a scale for each group, exactly; None: it is stored as floats."""
        entry = self.entry(name, shape)
        if entry.kind not in DECODERS:
            return None
        return decode(self.raw(entry), entry.kind, *shape)

    def bits(self, name: str) -> float | None:
        """Bits per weight, its scales included, if the matrix is kept as packed groups; None: it is stored as
        floats."""
        found = self.found(name)
        return None if found is None or found.kind not in DECODERS else PACKED[found.kind]

    def file_bits(self, name: str) -> int | None:
        """Bits that a quantised matrix takes in the file; None: it is stored as floats, or is not there."""
        found = self.found(name)
        return None if found is None or found.kind not in DECODERS else 8 * found.bytes

    def let_go(self) -> None:
        """Give back the memory of the pages that tensors taken so far were read from."""
        for entry in self.read:
            first = -(-entry.offset // mmap.PAGESIZE) * mmap.PAGESIZE
            size = entry.offset + entry.bytes - first
            if size >= mmap.PAGESIZE and hasattr(mmap, "MADV_DONTNEED"):
                self.maps[entry.file].madvise(mmap.MADV_DONTNEED, first, size // mmap.PAGESIZE * mmap.PAGESIZE)
        self.read.clear()

    def leftover(self) -> Iterator[str]:
        for name, count in self.experts.items():
            if self.place[name].shape[0] > count:
                yield f"{name}, expert {count}"
        for name in self.header.tensors:
            if name not in self.taken and name not in self.configured and not self.further(name):
                yield name

    def ahead(self) -> set[str]:
        """Names of the tensors of a layer for further tokens (draft/mtp.py)."""
        return {name for name in self.header.tensors if self.predicts and self.further(name)}

    def further(self, name: str) -> bool:
        """Does a tensor belong to the layers behind the last, which predict further tokens?"""
        found = BLOCK_NAME.match(name)
        return found is not None and self.layers <= int(found[1]) < self.blocks

    def says_nothing(self, name: str) -> bool:
        """Whether a tensor that nothing took is a bias of zeros alone."""
        return name.endswith(".bias") and not bool(self.raw(self.place[name]).any())

    def widest(self) -> int:
        """Bytes of a number while it is taken: those of a quantised one are decoded to float32, some at a time."""
        return max(
            (FLOAT_KINDS[e.kind].itemsize if e.kind in FLOAT_KINDS else 2 for e in self.place.values()), default=2
        )

    def paths(self) -> list[Path]:
        return [*self.maps]

    def bytes(self) -> int:
        return sum(len(file) for file in self.maps.values())

    def shape(self, name: str) -> tuple[int, ...]:
        found = self.found(name) or self.place.get(name)
        if found is None:
            raise CheckpointError(f"tensor {self.named(name)[0]} is missing from {self.path}; download it again.")
        return found.shape

    def told(self, name: str) -> float | None:
        """A number of a layer's own activation, which the metadata hold."""
        place, _, key = name.rpartition(".act_fn.")
        if not place or not self.curved:
            return None
        value = self.header.metadata.get(f"xielu.{key}")
        each = value.tolist() if isinstance(value, np.ndarray) else value
        found = each[int(place.split(".")[2])] if isinstance(each, list) and len(each) == self.layers else each
        if not isinstance(found, float) or not math.isfinite(found):
            raise CheckpointError(f"xielu.{key} in {self.path} is no number for each layer; convert the model again.")
        return found

    def kind(self, name: str) -> str:
        """Name of the form in which it is stored."""
        return self.place[name].kind.name


def mapped(path: Path) -> mmap.mmap:
    """Copy on write: nothing writes, but PyTorch asks for writable memory."""
    with path.open("rb") as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise (no_room_for(path) if memory_ended(error) else error) from None
