"""The scan of linear recurrences with decay, over chains and trees alike.

A head keeps a matrix S [P, N]. A row t brings a decay a_t <= 0 (its logarithm), a key k_t and a query q_t [N] and a
value v_t [P]; before it in its text comes the row p(t):

    Mamba-2       S_t = exp(a_t) S_p(t) + v_t k_t'                                            (arXiv 2405.21060)
    gated delta   S_t = exp(a_t) S_p(t) (1 - b_t k_t k_t') + b_t v_t k_t'                     (arXiv 2412.06464)
    both          S_t = exp(a_t) S_p(t) + u_t k_t'   and   y_t = S_t q_t

With c_t, the sum of the decays of t and its ancestors, S_t = exp(c_t) S + sum over t and its ancestors s of
exp(c_t - c_s) u_s k_s'. So one product gives all rows of a tree, if the causal mask is that of its ancestors (STree,
arXiv 2505.14969). In Mamba-2 u is v. In the gated delta rule u_t depends on its ancestors' alone: a triangular solve.

A weight of 0 does not hide a number that is not finite. So such a row counts as zeros, and what comes of it and of the
rows behind it is NaN.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SCANNED_ROWS = 64
"""Rows of a chain that are computed at once."""


@dataclass(frozen=True, slots=True)
class Steps:
    """What rows bring; G groups of R heads, T rows."""

    decay: Tensor
    """a [G, R, T]"""
    key: Tensor
    """k [G, T, N]"""
    query: Tensor
    """q [G, T, N]"""
    value: Tensor
    """v [G, R, T, P]"""
    rate: Tensor | None = None
    """b [G, R, T] of the gated delta rule."""

    def part(self, first: int, last: int) -> "Steps":
        """Rows first .. last."""
        rate = None if self.rate is None else self.rate[..., first:last]
        return Steps(
            self.decay[..., first:last],
            self.key[:, first:last],
            self.query[:, first:last],
            self.value[:, :, first:last],
            rate,
        )

    def finite(self) -> tuple["Steps", Tensor | None]:
        """Steps with zeros for rows that bring a number that is not finite; which these are [T], or None where a CPU
        finds none."""
        parts = (self.value, self.key, self.query, self.decay, *(() if self.rate is None else (self.rate,)))
        if self.value.is_cpu and all(math.isfinite(part.sum(dtype=torch.float32)) for part in parts):
            return self, None
        marks = [(x * 0).sum((0, -1)) for x in (self.key, self.query)]  # 0 or NaN
        marks += [(x * 0).sum((0, 1)) for x in (self.decay, *(() if self.rate is None else (self.rate,)))]
        spoilt = sum(marks, (self.value * 0).sum((0, 1, 3))).isnan()
        rate = None if self.rate is None else self.rate.masked_fill(spoilt, 0)
        row = spoilt[:, None]
        key, query, value = (x.masked_fill(row, 0) for x in (self.key, self.query, self.value))
        return Steps(self.decay.masked_fill(spoilt, 0), key, query, value, rate), spoilt


@dataclass(frozen=True, slots=True)
class Scanned:
    """Rows of one text behind a common state."""

    steps: Steps
    state: Tensor
    """S before the first one [G, R, P, N]"""
    total: Tensor
    """c [G, R, T]; NaN where a row, or one before it, brings a number that is not finite"""
    weight: Tensor
    """exp(c_t - c_s) [G, R, T, T], 0 where s is neither t nor an ancestor of it."""
    update: Tensor
    """u [G, R, T, P]"""

    def outputs(self) -> Tensor:
        """y [G, R, T, P]"""
        steps = self.steps
        before = torch.exp(self.total)[..., None] * (steps.query[:, None] @ self.state.transpose(-1, -2))
        scores = (steps.query @ steps.key.transpose(-1, -2))[:, None]
        return before.add_((self.weight * scores) @ self.update)

    def after(self, row: int) -> Tensor:
        """S behind a row [G, R, P, N]."""
        weighed = self.update * self.weight[:, :, row, :, None]
        kept = torch.exp(self.total[..., row])[..., None, None] * self.state
        return kept.add_(weighed.transpose(-1, -2) @ self.steps.key[:, None])


def scanned(steps: Steps, state: Tensor, ancestors: Tensor) -> Scanned:
    """`ancestors` [T, T]: does row t go on from row s, or is it that? Parents come before their children."""
    steps, spoilt = steps.finite()
    total = steps.decay @ ancestors.to(steps.decay.dtype).t()
    # Where s is no ancestor the difference may be large and positive: it is never raised to a power.
    apart = (total[..., :, None] - total[..., None, :]).masked_fill_(~ancestors, -torch.inf)
    weight = apart.exp_()
    marked = total if spoilt is None else total.masked_fill((ancestors & spoilt).any(1), torch.nan)
    if steps.rate is None:
        return Scanned(steps, state, marked, weight, steps.value)
    alike = (steps.key @ steps.key.transpose(-1, -2))[:, None]
    below = torch.tril(steps.rate[..., None] * weight * alike, -1)
    known = torch.exp(total)[..., None] * (steps.key[:, None] @ state.transpose(-1, -2))
    wanted = steps.rate[..., None] * (steps.value - known)
    update = torch.linalg.solve_triangular(below, wanted, upper=False, unitriangular=True)
    return Scanned(steps, state, marked, weight, update)


def causal(rows: int, device: torch.device) -> Tensor:
    """The ancestors of a chain's rows."""
    return torch.ones(rows, rows, dtype=torch.bool, device=device).tril_()


def ancestors_of(parents: list[int], device: torch.device) -> Tensor:
    """The ancestors of a tree's rows by their parents, -1 for none."""
    above = torch.eye(len(parents), dtype=torch.bool)
    for row, parent in enumerate(parents):
        if parent >= 0:
            above[row] |= above[parent]
    return above.to(device)
