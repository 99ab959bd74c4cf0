"""From recorded routes to a table of routes, and what a table is worth on other routes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.cluster.experts.cocluster import cocluster, local
from paceline.cluster.experts.routes import RouteRecord
from paceline.model.spread.table import RouteTable

PRIOR = 1.0
"""Routes at the average of all tokens that a token's own are mixed with: a token seen once is not certain."""


def counted(record: RouteRecord, layer: int) -> tuple[Tensor, Tensor]:
    """The ids [U] that occur, and how often each used each expert [U, count]."""
    ids, at = torch.unique(record.tokens, return_inverse=True)
    count, chosen = record.counts[layer], record.chosen[layer]
    flat = (at[:, None] * count + chosen).flatten()
    return ids, torch.bincount(flat, minlength=len(ids) * count).view(len(ids), count).float()


def table_of(
    record: RouteRecord,
    vocab: int,
    devices: int,
    capacity: float = 1.0,
    place: Callable[[Tensor, int], Tensor] = cocluster,
) -> RouteTable:
    """The table for these routes; `place(counts, devices)` puts the experts of a layer somewhere."""
    places, tokens, follows = dict[int, Tensor](), dict[int, Tensor](), dict[int, Tensor]()
    labels: list[Tensor] = []
    for layer in sorted(record.chosen):
        ids, counts = counted(record, layer)
        places[layer] = place(counts, devices)
        shares = smoothed(local(counts, places[layer], devices))
        tokens[layer] = torch.zeros(vocab, devices, dtype=torch.float16).index_copy_(0, ids, shares.half())
        by_row = torch.nn.functional.one_hot(places[layer][record.chosen[layer]], devices).sum(1).float()
        if len(labels) > 1:
            route = labels[-1] * devices + labels[-2]
            seen = torch.zeros(devices**2, devices).index_add_(0, route, by_row)
            follows[layer] = smoothed(seen).half().view(devices, devices, devices)
        labels.append(by_row.argmax(1))
    return RouteTable(devices, capacity, places, tokens, follows)


def smoothed(seen: Tensor) -> Tensor:
    """Shares of each row of counts, mixed with those of all rows; zeros where a row has none."""
    rows = seen.sum(1, keepdim=True)
    mean = seen.sum(0, keepdim=True) / seen.sum().clamp(min=1)
    return torch.where(rows > 0, (seen + PRIOR * mean) / (rows + PRIOR), 0.0)


@dataclass(frozen=True, slots=True)
class RouteAccount:
    """What one mixture's routes come to under a table."""

    rows: int
    pairs: int
    """Rows times experts that each uses."""
    local: int
    """Pairs whose expert is at the row's home: the local activations."""
    copies: int
    """Rows sent to other processes, each once to a process however many of its experts it uses there."""
    right: int
    """Rows whose home holds as many of its experts as any process."""
    most_out: int
    """Most rows that one process sends away, over the passes added up, dispatched and combined."""
    most_pairs: int
    """Most pairs that one process computes, over the passes added up."""

    @property
    def share(self) -> float:
        """The local activation rate (LAR)."""
        return self.local / self.pairs


def account(record: RouteRecord, table: RouteTable, batch: int) -> dict[int, RouteAccount]:
    """By layer, for passes of `batch` rows each."""
    devices = table.devices
    sums = {layer: torch.zeros(7, dtype=torch.int64) for layer in sorted(record.chosen)}
    for first in range(0, len(record.tokens), batch):
        part, earlier = record.cut(first, first + batch), list[Tensor]()
        for layer, chosen in sorted(part.chosen.items()):
            before = (earlier[-1], earlier[-2]) if len(earlier) > 1 else None
            home, at = table.homes(layer, part.tokens, before), table.places[layer][chosen]
            held = torch.nn.functional.one_hot(at, devices).sum(1)  # [T, D]
            own = held.gather(1, home[:, None])[:, 0]
            away = (held > 0).sum(1) - (own > 0).long()
            out = torch.zeros(devices, dtype=torch.int64)
            out.index_add_(0, home, away)
            foreign = held.clone().scatter_(1, home[:, None], 0)
            sums[layer] += torch.tensor([
                len(home), at.numel(), int(own.sum()), int(away.sum()), int((own == held.max(1).values).sum()),
                int((out + foreign.sum(0)).max()), int(held.sum(0).max()),
            ])  # fmt: skip
            earlier.append(held.argmax(1))
    return {layer: RouteAccount(*found.tolist()) for layer, found in sums.items()}
