"""`exact` beside its slow twin: children that are points, judged one after another."""

import pytest
import torch

from tests.verify.laws import pairs


def one_by_one(p: torch.Tensor, children: list[int]) -> tuple[torch.Tensor, float]:
    """The one-hot sequential rule: child c is accepted with r(c), else r(c) = 0 and r is normalised; then draw from
    r. Returns the distribution of the token and the chance that a child carries it."""
    out, r, left = torch.zeros_like(p), p, 1.0
    for c in children:
        a = float(r[c])
        out[c] += left * a
        left *= 1 - a
        r = r.clone()
        r[c] = 0.0
        if float(r.sum()) <= 1e-12:
            return out, 1.0
        r = r / r.sum()
    return out + left * r, 1 - left


def test_matching_one_draw_has_the_law_and_the_acceptance_of_its_twin() -> None:
    """One draw from p: its distribution is p, and it is accepted with the mass of the distinct children."""
    for p, _ in pairs(100):
        for children in ([0], [1, 0], [0, 0, 1], list(range(len(p)))):
            law, accepted = one_by_one(p, children)
            torch.testing.assert_close(law, p, atol=1e-12, rtol=0)
            assert accepted == pytest.approx(float(p[sorted(set(children))].sum()))
