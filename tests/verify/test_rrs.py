"""Recursive rejection, by exact enumeration of candidates and coins."""

import pytest
import torch
from torch import Tensor

from paceline.core.forest import Law
from paceline.verify.rrs import next_draw, one_hot, select
from paceline.verify.walk import residual
from tests.verify.laws import draws, law_of, pairs


def chances(p: Tensor, q: Tensor, tokens: list[int], laws: list[Law]) -> list[float]:
    """Chance of each candidate to be accepted when those before it were not: notes' V4 by the book."""
    out, r, drawn = [], p, q
    for token, law in zip(tokens, laws):
        proposal = one_hot(p, token) if law is Law.POINT else drawn
        out.append(min(1.0, float(r[token] / proposal[token])))
        r = residual(r, proposal, token)
        drawn = next_draw(drawn, token) if law is Law.WITHOUT_REPLACEMENT else drawn
    return out


def law(p: Tensor, q: Tensor, tokens: list[int], laws: list[Law]) -> tuple[Tensor, float]:
    each = chances(p, q, tokens, laws)
    return law_of(p, tokens, lambda t, coins: select(p, q, t, laws, coins), each.__getitem__)


@pytest.mark.parametrize("kind", [Law.SAMPLED, Law.WITHOUT_REPLACEMENT])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_drawn_children_keep_the_law(kind: Law, k: int) -> None:
    for p, q in pairs(24 if k < 4 else 6, k):
        out = torch.zeros_like(p)
        for tokens, chance in draws(q, k, kind is Law.SAMPLED):
            out += chance * law(p, q, tokens, [kind] * len(tokens))[0]
        torch.testing.assert_close(out, p, atol=1e-9, rtol=0)


def test_point_children_keep_the_law_whatever_they_are() -> None:
    """In any order, also one that is repeated; accepted as often as `exact` does: the mass of the distinct ones."""
    for p, q in pairs(40):
        for tokens in ([0], [1, 0], [0, 0, 1], list(range(len(p)))):
            out, accepted = law(p, q, tokens, [Law.POINT] * len(tokens))
            torch.testing.assert_close(out, p, atol=1e-9, rtol=0)
            assert accepted == pytest.approx(float(p[sorted(set(tokens))].sum()))
            chosen, rest = select(p, None, tokens, [Law.POINT] * len(tokens), [1 - 1e-12] * len(tokens))
            assert chosen is not None or float(rest[tokens].sum()) == 0.0


def test_points_among_drawn_children_keep_the_law() -> None:
    for p, q in pairs(24):
        out = torch.zeros_like(p)
        for tokens, chance in draws(q, 2, False):
            laws = [Law.POINT, *[Law.WITHOUT_REPLACEMENT] * len(tokens)]
            out += chance * law(p, q, [1, *tokens], laws)[0]
        torch.testing.assert_close(out, p, atol=1e-9, rtol=0)


def test_equal_laws_accept_the_first_child() -> None:
    for p, _ in pairs(20):
        for tokens, _ in draws(p, 2, False):
            assert select(p, p, tokens, [Law.WITHOUT_REPLACEMENT] * len(tokens), [1 - 1e-12] * len(tokens))[0] == 0
