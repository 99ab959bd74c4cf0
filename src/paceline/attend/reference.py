"""Rows over a paged prefix plus their own tree, in plain PyTorch: the reference form of every attention kernel.

    scores of a row = [ its request's slots, by length and window | its request's candidates, by tree word ]

The two parts are softmaxed apart and merged by their log-sum-exp.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.attend.batches import PaddedBatch, Run, WindowPart, pad, split
from paceline.attend.guard import guarded, values_of
from paceline.attend.turn import rotate_
from paceline.core.rows import Rows

SCORES = 1 << 22
"""Most elements of the score matrix of a piece of prompt, all heads."""
HIDDEN_SCORE = -torch.inf
"""The score of a key that is not seen."""


class Reference:
    """Implements `Attend`.

    pool: see Attend; windows: the sliding window of each layer or None; softcap: scores become
    softcap * tanh(score / softcap) before the mask. Scores and softmax are float32, or float64 for a float64 pool.
    """

    def __init__(
        self, pool: Tensor, windows: Sequence[int | None], heads: int, scale: float, softcap: float | None
    ) -> None:
        layers, self.parts, self.kv_heads, blocks, self.block_size, self.head_dim = pool.shape
        self.pools = pool.unbind()
        self.slots = pool.view(layers, self.parts, self.kv_heads, blocks * self.block_size, self.head_dim)
        self.layers = self.slots.unbind()
        self.stored = pool.dtype
        self.windows, self.heads, self.scale, self.softcap = windows, heads, scale, softcap
        self.group = heads // self.kv_heads
        self.sinks: Sequence[Tensor | None] = []
        """Scores [heads] of each layer that take a share and give nothing; empty without sinks."""
        self.exact = torch.float64 if pool.dtype == torch.float64 else torch.float32
        self.nothing = torch.zeros(1, 1, 1, dtype=self.exact, device=pool.device)
        """A mask that hides no key."""

    def prepare(self, rows: Rows) -> None:
        self.slot, self.total = rows.slot, len(rows.token)
        self.batches = [pad(rows, pieces) for pieces in split(rows.segments, SCORES // self.heads)]
        for batch in self.batches:
            batch.parts = {window: self.part(rows, batch, window) for window in set(self.windows)}
        starts = [piece.segment.start for piece in self.batches[0].pieces]
        self.whole = len(self.batches) == 1 and self.batches[0].keep is None and starts == sorted(starts)

    def part(self, rows: Rows, batch: PaddedBatch, window: int | None) -> WindowPart:
        blocks, slot = self.reach(batch, [piece.end for piece in batch.pieces], window)
        seen = batch.hide(slot[:, None, :] < batch.limit[:, :, None], slot)
        part = WindowPart(blocks, self.mask(seen, batch.position, slot, window))
        if batch.width:
            start, _, nodes = batch.tree()
            node = torch.arange(batch.width, device=slot.device)
            key = (start + node).clamp_(max=len(rows.token) - 1)
            seen = (rows.word[batch.index][:, :, None] >> node & 1).bool() & (node < nodes)[:, None, :]
            part.nodes, part.tree = key.flatten(), self.mask(seen, batch.position, rows.position[key], window)
            part.blind = part.mask.amax(-1, True) < 0, part.tree.amax(-1, True) < 0
        return part

    def reach(self, batch: PaddedBatch, ends: list[int], window: int | None) -> tuple[Tensor | Run, Tensor]:
        """Blocks from the first that the window reaches to the one before slot `end`; the slots they hold, [R, S]."""
        size, tables = self.block_size, batch.tables
        begins = [
            0 if window is None else max(0, p.segment.base + min(p.first, p.segment.given) - window + 1) // size
            for p in batch.pieces
        ]
        most = max(1, *(-(-end // size) - begin for begin, end in zip(begins, ends)))
        if len(ends) == 1:
            slot = torch.arange(begins[0] * size, (begins[0] + most) * size, device=tables.device)[None]
            return as_run(tables[0, begins[0] : begins[0] + most]), slot
        begin = torch.tensor(begins, device=tables.device)[:, None]
        place = (begin + torch.arange(most, device=tables.device)).clamp_(max=tables.shape[1] - 1)
        slot = begin * size + torch.arange(most * size, device=tables.device)
        return tables.gather(1, place).flatten(), slot

    def mask(self, seen: Tensor, position: Tensor, key: Tensor, window: int | None) -> Tensor:
        """seen [R, M, S], position [R, M], key's position [R, S] -> scores to add [R * kv_heads or 1, M * group, S]."""
        if window is not None:
            seen = seen & (position[:, :, None] - key[:, None, :] < window)
        requests, most, keys = seen.shape
        mask = torch.zeros(seen.shape, dtype=self.exact, device=seen.device).masked_fill_(~seen, HIDDEN_SCORE)
        heads = self.kv_heads if requests > 1 else 1  # a lone request's mask broadcasts over its heads
        mask = mask[None, :, :, None, :].expand(heads, -1, -1, self.group, -1)
        return mask.reshape(heads * requests, most * self.group, keys)

    def forward(self, layer: int, q: Tensor, kv: Tensor | None) -> Tensor:
        if kv is None:
            stored = self.layers[layer].index_select(2, self.slot)
        else:
            stored = guarded(kv.permute(1, 2, 0, 3).to(self.stored))
            self.layers[layer].index_copy_(2, self.slot, stored)
        if self.whole:
            return self.attend(layer, self.batches[0], q, stored)
        out = q.new_empty(self.total, self.heads * self.head_dim)
        for batch in self.batches:
            part = self.attend(layer, batch, q[batch.index.flatten()], stored)
            out[batch.target] = part if batch.keep is None else part[batch.keep]
        return out

    def turned(self, layer: int, qkv: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        rotate_(qkv.narrow(1, 0, self.heads + self.kv_heads), turn)
        kv = qkv.narrow(1, self.heads, 2 * self.kv_heads).view(len(qkv), 2, self.kv_heads, self.head_dim)
        return self.forward(layer, qkv.narrow(1, 0, self.heads), kv)

    def attend(self, layer: int, batch: PaddedBatch, q: Tensor, stored: Tensor) -> Tensor:
        """q [R * M, heads, head_dim] in the batch's order -> [R * M, heads * head_dim]."""
        requests, most = batch.index.shape
        query = q.view(requests, most, self.kv_heads, self.group, self.head_dim).permute(2, 0, 1, 3, 4)
        query = query.reshape(self.kv_heads * requests, most * self.group, self.head_dim).to(self.exact)
        part = batch.parts[self.windows[layer]]
        if isinstance(part.blocks, Tensor):
            read = self.pools[layer].index_select(2, part.blocks)
        else:
            read = self.pools[layer].narrow(2, *part.blocks)
        keys, values = self.wide(read, requests)
        scores = self.scores(query, keys, part.mask)
        shares = scores.softmax(-1)
        out = shares.bmm(values)
        if part.tree is not None and part.nodes is not None and part.blind is not None:
            keys, values = self.wide(stored.index_select(2, part.nodes), requests)
            tree = self.scores(query, keys, part.tree)
            tree_shares = tree.softmax(-1)
            blind, tree_blind = part.blind  # their softmax is NaN
            level = log_sum_exp(scores, shares).masked_fill_(blind, HIDDEN_SCORE)
            tree_level = log_sum_exp(tree, tree_shares).masked_fill_(tree_blind, HIDDEN_SCORE)
            out.masked_fill_(blind, 0)
            out = tree_shares.bmm(values).masked_fill_(tree_blind, 0).lerp_(out, (level - tree_level).sigmoid_())
            if self.sinks:
                out = out.mul_(self.rest(layer, torch.logaddexp(level, tree_level), requests))
        elif self.sinks:
            out = out.mul_(self.rest(layer, log_sum_exp(scores, shares), requests))
        out = out.view(self.kv_heads, requests, most, self.group, self.head_dim).permute(1, 2, 0, 3, 4)
        return out.reshape(requests * most, self.heads * self.head_dim).to(q.dtype)

    def rest(self, layer: int, seen: Tensor, requests: int) -> Tensor:
        """The share that a layer's sinks leave to keys with these log-sum-exps [kv_heads * R, M * group, 1]."""
        sinks = self.sinks[layer]
        assert sinks is not None
        by_head = sinks.to(seen.dtype).view(self.kv_heads, 1, 1, self.group, 1)
        most = seen.shape[1] // self.group
        return (seen - by_head.expand(-1, requests, most, -1, -1).reshape(seen.shape)).sigmoid_()

    def wide(self, kv: Tensor, requests: int) -> tuple[Tensor, Tensor]:
        """[2 or 1, kv_heads, ...] -> keys and values [kv_heads * R, S, head_dim] each, in the dtype of the scores."""
        found = kv.to(self.exact).view(self.parts, self.kv_heads * requests, -1, self.head_dim)
        return found[0], values_of(found)

    def scores(self, query: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        """`mask` is added; None: no key is hidden. Where that gives not HIDDEN_SCORE but NaN, the sum of all is NaN: a
        CPU looks, which takes less time than to fill."""
        if self.softcap is None:
            added, beta = (self.nothing, 0) if mask is None else (mask, 1)
            scores = torch.baddbmm(added, query, keys.mT, beta=beta, alpha=self.scale)
        else:
            scores = query.bmm(keys.mT).mul_(self.scale / self.softcap).tanh_().mul_(self.softcap)
            scores = scores if mask is None else scores.add_(mask)
        if mask is None or (scores.is_cpu and not math.isnan(scores.sum())):
            return scores
        return scores.masked_fill_(mask < 0, HIDDEN_SCORE)


def log_sum_exp(scores: Tensor, shares: Tensor) -> Tensor:
    """Log-sum-exp of scores whose softmax is known: the largest score minus the log of its share. It takes a third of
    the time of torch.logsumexp."""
    return scores.amax(-1, True) - shares.amax(-1, True).log_()


def as_run(blocks: Tensor) -> Tensor | Run:
    """Consecutive blocks as (first, count), which are read in place where an index would copy.

    On a GPU looking would cost a synchronisation, so there it stays an index.
    """
    if not blocks.is_cpu:
        return blocks
    numbers = blocks.tolist()
    first, count = numbers[0], len(numbers)
    return (first, count) if numbers == list(range(first, first + count)) else blocks
