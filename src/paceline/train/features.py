"""`FeatureSource`: batches of token ids and the target's hidden states, computed when they are asked for or kept on
disk.

The states are those of the decoder that will serve, read by taps in a pass over whole texts. A cache is a directory
with one file a tap, in bfloat16, within a limit of bytes: texts beyond it are computed each time. It belongs to one
target and one set of texts, and refuses another.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from paceline.core.errors import InputError
from paceline.core.rows import RowsBuilder
from paceline.train.data import Sample
from paceline.train.files import directory, discard, put
from paceline.train.target import TrainingTarget

FEATURE_BLOCK_ROWS = 16


@dataclass(slots=True)
class FeatureBatch:
    """See train/__init__.py."""

    ids: Tensor
    learn: Tensor
    length: Tensor
    hidden: dict[str, Tensor] = field(default_factory=dict)
    names: list[int] = field(default_factory=list)
    """The texts in it, by number."""


class FeatureSource:
    """Batches of these texts. `taps`: the states that they bring; `cache`, `limit`: a directory and its bytes."""

    def __init__(
        self, target: TrainingTarget, samples: Sequence[Sample], taps: Sequence[str], cache: Path | None = None,
        limit: int = 2 << 30,
    ) -> None:  # fmt: skip
        missing = [tap for tap in taps if tap not in target.decoder.places]
        if missing:
            raise InputError(f"The target has no hidden state {missing[0]!r}; use another method or target.")
        self.target, self.samples, self.taps = target, list(samples), tuple(taps)
        longest = max(len(sample.ids) for sample in samples)
        self.blocks = -(-longest // FEATURE_BLOCK_ROWS) + 1
        self.kept = None if cache is None or not taps else FeatureStore(cache, target, self.samples, self.taps, limit)

    def batch(self, names: Sequence[int]) -> FeatureBatch:
        """Batch of the texts with these numbers, padded at the end with zeros."""
        samples = [self.samples[name] for name in names]
        length = max(len(sample.ids) for sample in samples)
        ids, learn = torch.zeros(len(samples), length, dtype=torch.int64), torch.zeros(len(samples), length)
        width = self.target.decoder.width
        hidden = {tap: torch.zeros(len(samples), length, width) for tap in self.taps}
        for row, (name, sample) in enumerate(zip(names, samples)):
            ids[row, : len(sample.ids)] = torch.tensor(sample.ids)
            learn[row, sample.start : len(sample.ids)] = 1
            if self.taps:
                for tap, states in self.states(name).items():
                    hidden[tap][row, : len(sample.ids)] = states
        lengths = torch.tensor([len(sample.ids) for sample in samples])
        return FeatureBatch(ids, learn, lengths, hidden, list(names))

    def states(self, name: int) -> dict[str, Tensor]:
        """{tap: [T, H]} of one text."""
        found = None if self.kept is None else self.kept.read(name)
        if found is None:
            found = self.computed(self.samples[name].ids)
            if self.kept is not None:
                self.kept.write(name, found)
                found = {tap: states.bfloat16() for tap, states in found.items()}  # as it will be read the next time
        return found

    @torch.no_grad()
    def computed(self, ids: Sequence[int]) -> dict[str, Tensor]:
        self.target.reserve(self.blocks, FEATURE_BLOCK_ROWS)
        builder = RowsBuilder()
        builder.add(list(ids), list(range(len(ids))), list(range(self.blocks)), 0, want=[len(ids) - 1])
        return self.target.decoder.forward(builder.build(self.target.decoder.device, taps=self.taps)).taps


class FeatureStore:
    """A cache of hidden states on disk."""

    def __init__(
        self, path: Path, target: TrainingTarget, samples: Sequence[Sample], taps: Sequence[str], limit: int
    ) -> None:
        directory(path)
        self.taps, width = taps, target.decoder.width
        self.at, rows = list[tuple[int, int]](), 0
        texts = hashlib.sha256()
        for sample in samples:
            self.at.append((rows, len(sample.ids)))
            rows += len(sample.ids)
            texts.update(json.dumps([sample.ids, sample.start]).encode())
        own = {
            "target": target.fingerprint, "dtype": target.dtype, "width": width, "texts": texts.hexdigest()[:16],
        }  # fmt: skip
        index = path / "cache.json"
        if index.is_file():
            other = json.loads(index.read_text(encoding="utf-8"))
            differ = [name for name in own if other.get(name) != own[name]]
            if differ:
                of = "target" if {"target", "width", "dtype"} & set(differ) else "data"
                raise InputError(f"The cache {path} holds hidden states of another {of}; give another directory.")
        else:
            put(index, json.dumps(own) + "\n")
        self.rows = min(rows, limit // (2 * width * len(taps)))
        """Rows that the limit leaves room for."""
        self.files: dict[str, Tensor] = {}
        self.done: dict[str, Tensor] = {}
        fresh = list[Path]()
        try:
            for tap in taps:
                states, done = (path / f"{tap.replace(':', '-')}.{kind}" for kind in ("bin", "done"))
                if not states.is_file():
                    discard(done)  # the states were deleted to make room
                fresh += [file for file in (states, done) if not file.is_file()]
                self.files[tap] = mapped(states, max(1, self.rows) * width, torch.bfloat16).view(-1, width)
                self.done[tap] = mapped(done, len(samples), torch.uint8)
        except InputError:
            for file in fresh:
                discard(file)
            raise

    def read(self, name: int) -> dict[str, Tensor] | None:
        start, count = self.at[name]
        if start + count > self.rows or not all(self.done[tap][name] for tap in self.taps):
            return None
        return {tap: self.files[tap][start : start + count] for tap in self.taps}

    def write(self, name: int, states: dict[str, Tensor]) -> None:
        start, count = self.at[name]
        if start + count <= self.rows:
            for tap in self.taps:
                self.files[tap][start : start + count] = states[tap].bfloat16()
                self.done[tap][name] = 1


def mapped(file: Path, count: int, dtype: torch.dtype) -> Tensor:
    """A file of numbers, mapped. Its room is taken from the disk at once: a write into a map that the disk has no room
    for would end the process. Raises InputError where there is none."""
    size = count * dtype.itemsize
    new = not file.is_file()
    try:
        with file.open("r+b" if not new else "w+b") as handle:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle.fileno(), 0, size)
    except OSError as error:
        if new:
            file.unlink(missing_ok=True)
        raise InputError(
            f"The cache {file.parent} has no room for {size:,} bytes ({error.strerror}); give another directory, or a "
            "smaller --cache-size."
        ) from None
    return torch.from_file(str(file), shared=True, size=count, dtype=dtype)
