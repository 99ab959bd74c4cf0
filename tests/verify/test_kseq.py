"""k-SEQ, by exact enumeration of candidates and coins."""

from functools import partial

import pytest
import torch
from torch import Tensor

from paceline.core.forest import Law
from paceline.verify.kseq import best_rho, select
from paceline.verify.walk import residual
from tests.verify import test_rrs
from tests.verify.laws import NEVER, draws, law_of, pairs


def beta(p: Tensor, q: Tensor, rho: float) -> float:
    return float(torch.minimum(q, p / rho).sum())


def outcome(p: Tensor, q: Tensor, k: int) -> tuple[Tensor, float]:
    """Distribution of the token, and the chance that a candidate was accepted."""
    out, accepted, rho = torch.zeros_like(p), 0.0, best_rho(p, q, k)
    for tokens, chance in draws(q, k, True):
        each = [min(1.0, float(p[t] / (rho * q[t]))) for t in tokens]
        law, share = law_of(p, tokens, partial(select, p, q), each.__getitem__)
        out += chance * law
        accepted += chance * share
    return out, accepted


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_law_is_kept_and_more_is_accepted_than_by_rejection(k: int) -> None:
    """p to 1e-9; acceptance between that of `rrs` with replacement and the most any rule reaches with k i.i.d."""
    for p, q in pairs(24 if k < 4 else 6, k):
        out, accepted = outcome(p, q, k)
        torch.testing.assert_close(out, p, atol=1e-9, rtol=0)
        rho = best_rho(p, q, k)
        assert accepted == pytest.approx(1 - (1 - beta(p, q, rho)) ** k, abs=1e-8)
        assert accepted <= float(torch.minimum(p, 1 - (1 - q) ** k).sum()) + 1e-8
        rejection = sum(c * test_rrs.law(p, q, t, [Law.SAMPLED] * k)[1] for t, c in draws(q, k, True))
        assert accepted >= rejection - 1e-8


@pytest.mark.parametrize("k", [2, 3, 8])
def test_rho_is_the_root_from_the_valid_side(k: int) -> None:
    for p, q in pairs(200, k):
        rho = best_rho(p, q, k)
        b = beta(p, q, rho)
        assert 1 <= rho <= k
        assert 1 - (1 - b) ** k == pytest.approx(rho * b, abs=1e-9) or rho == pytest.approx(1.0)
        share = (1 - (1 - b) ** k) / b if b > 0 else 1.0
        assert float((p - torch.minimum(q, p / rho) * share).min()) > -1e-9


@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_the_rest_is_a_law(k: int) -> None:
    for p, q in pairs(200, k):
        tokens = [int(q.argmax())] * k
        chosen, rest = select(p, q, tokens, [NEVER] * k)
        assert chosen is not None or (float(rest.min()) >= 0 and float(rest.sum()) == pytest.approx(1.0))


def test_one_candidate_is_the_ratio_rule() -> None:
    for p, q in pairs(100):
        for token in range(len(p)):
            if q[token] > p[token]:
                chosen, rest = select(p, q, [token], [NEVER])
                assert chosen is None
                torch.testing.assert_close(rest, residual(p, q, token))
                assert select(p, q, [token], [float(p[token] / q[token]) * (1 - 1e-9)])[0] == (
                    0 if p[token] > 0 else None
                )


def test_a_greedy_target_takes_its_token_from_any_candidate() -> None:
    q = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    p = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    assert select(p, q, [0, 1, 0], [0.5, NEVER, 0.5])[0] == 1
    chosen, rest = select(p, q, [0, 0, 2], [0.5] * 3)
    assert chosen is None and rest.tolist() == [0.0, 1.0, 0.0]
