"""The residual of the ratio rule."""

import pytest
import torch

from paceline.verify.walk import residual


def test_accept_plus_residual_is_p() -> None:
    """min(p, q) + (1 - sum min) * residual = p (Leviathan et al. 2023, appendix A.1)."""
    g = torch.Generator().manual_seed(0)
    for _ in range(200):
        p, q = torch.rand(2, 7, generator=g, dtype=torch.float64).pow(3).unbind()
        p, q = p / p.sum(), q / q.sum()
        both = torch.minimum(p, q)
        torch.testing.assert_close(both + (1 - both.sum()) * residual(p, q, 0), p)


def test_no_mass_left_is_p_without_the_rejected() -> None:
    p = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    assert residual(p, p, 0).tolist() == pytest.approx([0.0, 0.5, 0.5])
