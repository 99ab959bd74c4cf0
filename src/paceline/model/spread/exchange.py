"""Exchange of rows between the processes of a model on this machine, over gloo, or between GPUs over NCCL, with every
byte counted by kind."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

TRAFFIC_KINDS = ("shuffle", "routes", "dispatch", "combine", "gather")
"""Rows to their homes; the experts that were chosen; rows to experts elsewhere; what these computed; rows back."""
SILENCE_S = 60.0
"""How long an exchange waits for a process that is alive and says nothing."""


class Exchange:
    """All processes of a model; each calls the same methods in the same order, or RuntimeError ends them all."""

    def __init__(self, meeting: Path, rank: int, devices: int, device: str = "cpu") -> None:
        """`meeting`: a file, of which all know the name, where they find one another."""
        self.rank, self.devices = rank, devices
        self.sent: Counter[str] = Counter()
        """Bytes that went from this process to others."""
        store = torch._C._distributed_c10d.FileStore(str(meeting), devices)
        if device.startswith("cuda"):
            nccl: Any = dist.ProcessGroupNCCL
            self.group = nccl(store, rank, devices)
            return
        gloo: Any = dist.ProcessGroupGloo  # whose methods torch's stubs do not name
        options = gloo._Options()
        options._timeout = timedelta(seconds=SILENCE_S)
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        self.group = gloo(store, rank, devices, options)

    def swap(self, kind: str, parts: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
        """Send `parts[d]` [n, ...] to process d; the rows of all processes in turn, `counts[d]` from process d."""
        out = torch.cat(list(parts))
        size = out[:1].numel() * out.itemsize if len(out) else row_bytes(out)
        got = out.new_empty(sum(counts), *out.shape[1:])
        work = self.group.alltoall_base(
            got.view(-1).view(torch.uint8), out.view(-1).view(torch.uint8),
            [count * size for count in counts], [len(part) * size for part in parts],
        )  # fmt: skip
        self.sent[kind] += sum(len(part) * size for d, part in enumerate(parts) if d != self.rank)
        work.wait()
        return got

    def gather(self, part: Tensor) -> Tensor:
        """[T, w] of each process -> [T, w * processes], side by side in their order, on all of them."""
        got = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(self.devices)]
        self.group.allgather([got], [part.contiguous()]).wait()
        self.sent["outputs"] += part.nbytes * (self.devices - 1)
        return torch.cat(got, -1)

    def spread(self, numbers: Tensor) -> Tensor:
        """Whole numbers [N] of process 0, on all."""
        self.group.broadcast([numbers]).wait()
        return numbers


def row_bytes(rows: Tensor) -> int:
    """Bytes of one row."""
    return rows.new_empty(1, *rows.shape[1:]).nbytes
