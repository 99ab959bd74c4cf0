"""One mixture over several processes, as each of them runs it.

    rank 0 has the rows ──shuffle──▶ home of a row: its router chooses experts ──dispatch──▶ where they are
                       ◀──gather───  home: experts' products are added in order ◀──combine──  each expert, once

Bits equal those of one process for any placement: an expert gets the same rows in the same order in one product, and a
row's experts are added at its home in the order of their numbers. A router multiplies a matrix of the whole pass's
shape in which each row has its own place, for a product's last bits may depend on how many rows it has.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.model.blocks import FeedForward, routes
from paceline.model.linear import Linear
from paceline.model.spec import Experts
from paceline.model.spread.exchange import Exchange


@dataclass(frozen=True, slots=True)
class ExpertShare:
    """Which experts of a model one process holds."""

    rank: int
    places: dict[int, Tensor]
    """As in `RouteTable`."""

    def held(self, layer: int) -> list[int]:
        """Numbers of its experts in a layer, ascending."""
        return (self.places[layer] == self.rank).nonzero().flatten().tolist()


@dataclass(frozen=True, slots=True)
class MixturePart:
    """A process's part of one mixture."""

    form: Experts
    router: Linear
    correction: Tensor | None
    place: Tensor
    """[count] the process of each expert"""
    experts: dict[int, FeedForward]
    """Experts of this process, by number."""
    hidden: int
    dtype: torch.dtype

    def run(self, exchange: Exchange, home: Tensor, x: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """What the experts add up to [T, hidden], on rank 0 (others: None), and the experts [T, active] that were
        chosen. `home` [T]: of each row; `x` [T, hidden] on rank 0."""
        me, ranks, total = exchange.rank, range(exchange.devices), len(home)
        at_home = [(home == rank).nonzero().flatten() for rank in ranks]
        mine, none = at_home[me], torch.empty(0, self.hidden, dtype=self.dtype)
        out = [none] * len(ranks) if x is None else [x.index_select(0, rows) for rows in at_home]
        own = exchange.swap("shuffle", out, [len(mine), *[0] * (len(ranks) - 1)])
        weights, chosen = routes(self.form, self.router(self.whole(total, mine, own)), self.correction)
        numbers = chosen.index_select(0, mine).to(torch.int32)
        told = exchange.swap("routes", [numbers] * len(ranks), [len(rows) for rows in at_home])
        chosen = torch.empty(total, self.form.active, dtype=torch.int64)
        chosen[torch.cat(at_home)] = told.to(torch.int64)

        at = self.place[chosen]
        wanted = [(at == rank).any(1) for rank in ranks]
        sent = [own[wanted[rank].index_select(0, mine)] for rank in ranks]
        asked = [rows[wanted[me][rows]] for rows in at_home]
        got = exchange.swap("dispatch", sent, [len(rows) for rows in asked])
        here = self.whole(total, torch.cat(asked), got)

        routed = {number: (chosen == number).nonzero(as_tuple=True) for number in sorted({*chosen.flatten().tolist()})}
        back: list[list[Tensor]] = [[none] for _ in ranks]
        counts = [0] * len(ranks)
        for number, (rows, _) in routed.items():
            counts[int(self.place[number])] += int((home[rows] == me).sum())
            if int(self.place[number]) == me:
                products, theirs = self.experts[number](here.index_select(0, rows)), home[rows]
                for rank in ranks:
                    back[rank].append(products[theirs == rank])
        parts = exchange.swap("combine", [torch.cat(those) for those in back], counts).split_with_sizes(counts)

        y, begun = torch.zeros(total, self.hidden, dtype=self.dtype), [0] * len(ranks)
        for number, (rows, slot) in routed.items():
            ours, of = home[rows] == me, int(self.place[number])
            rows, slot = rows[ours], slot[ours]
            part = parts[of][begun[of] : begun[of] + len(rows)]
            begun[of] += len(rows)
            y.index_add_(0, rows, part * weights[rows, slot, None].to(self.dtype))
        done = [y.index_select(0, mine), *[none] * (len(ranks) - 1)]
        gathered = exchange.swap("gather", done, [len(r) if me == 0 else 0 for r in at_home])
        return (self.whole(total, torch.cat(at_home), gathered) if me == 0 else None), chosen

    def whole(self, total: int, places: Tensor, rows: Tensor) -> Tensor:
        """[total, hidden] with these rows at these places, and zeros."""
        return torch.zeros(total, self.hidden, dtype=self.dtype).index_copy_(0, places, rows)
