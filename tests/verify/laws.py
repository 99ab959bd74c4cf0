"""Random distributions, and the exact output distribution of a rule that picks one of k candidates."""

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Select = Callable[[list[int], list[float]], tuple[int | None, Tensor]]
NEVER, ALWAYS = 1.0 - 1e-12, 1e-12
"""Coins: of a candidate that should be rejected if it can be, and accepted if it can be."""


def pairs(count: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """(p, q) over 2 to 5 tokens, float64; some sharp, some equal, some with zeros."""
    g = torch.Generator().manual_seed(seed)
    for i in range(count):
        p, q = torch.rand(2, 2 + i % 4, generator=g, dtype=torch.float64).pow(1 + 3 * (i % 3)).unbind()
        if i % 5 == 3:
            p[0] = 0.0
        if i % 7 == 3:
            q[-1] = 0.0
        if i % 11 == 3:
            q = p.clone()
        yield p / p.sum(), q / q.sum()


def draws(q: Tensor, k: int, replacement: bool) -> Iterator[tuple[list[int], float]]:
    """Every ordered draw of k tokens (fewer where q has no more) and its chance."""
    k = k if replacement else min(k, int((q > 0).sum()))
    for tokens in itertools.product(range(len(q)), repeat=k):
        chance = 1.0
        for i, x in enumerate(tokens):
            left = sum(float(q[y]) for y in range(len(q)) if replacement or y not in tokens[:i])
            chance *= float(q[x]) / left if replacement or x not in tokens[:i] else 0.0
        if chance > 0:
            yield list(tokens), chance


def law_of(p: Tensor, tokens: list[int], select: Select, chance: Callable[[int], float]) -> tuple[Tensor, float]:
    """The distribution [V] of the token that stands, and the chance that it is a candidate, given the candidates. Coins
    are integrated out: candidate i is accepted with `chance(i)` if those before were not; checked on both sides."""
    out, left = torch.zeros_like(p), 1.0
    for i, token in enumerate(tokens):
        a = chance(i)
        before = [NEVER] * i
        if a > 1e-9:
            assert select(tokens, [*before, a * (1 - 1e-9), *[NEVER] * (len(tokens) - i - 1)])[0] == i
        if a < 1 - 1e-9:
            assert (
                select(tokens, [*before, min(NEVER, a * (1 + 1e-9) + 1e-15), *[NEVER] * (len(tokens) - i - 1)])[0] != i
            )
        out[token] += left * a
        left *= 1 - a
        if left <= 1e-9:
            return out, 1.0
    chosen, rest = select(tokens, [NEVER] * len(tokens))
    assert chosen is None
    return out + left * rest, 1 - left
