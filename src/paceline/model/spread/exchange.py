"""Exchange of rows between the processes of a mixture, over gloo on this machine, with every byte counted by kind."""

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
    """All processes of a mixture; each calls the same methods in the same order, or RuntimeError ends them all."""

    def __init__(self, meeting: Path, rank: int, devices: int) -> None:
        """`meeting`: a file, of which all know the name, where they find one another."""
        self.rank, self.devices = rank, devices
        self.sent: Counter[str] = Counter()
        """Bytes that went from this process to others."""
        gloo: Any = dist.ProcessGroupGloo  # whose methods torch's stubs do not name
        options = gloo._Options()
        options._timeout = timedelta(seconds=SILENCE_S)
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        store = torch._C._distributed_c10d.FileStore(str(meeting), devices)
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


def row_bytes(rows: Tensor) -> int:
    """Bytes of one row."""
    return rows.new_empty(1, *rows.shape[1:]).nbytes
