"""`kseq`: selection from i.i.d. candidates by optimal transport (SpecTr, Sun et al. 2023, arXiv 2310.15141, alg. 2).

With k candidates drawn from q, and rho in [1, k]:

    beta = sum_x min(q(x), p(x) / rho)        P = 1 - (1 - beta)^k, the chance that one is accepted
    candidate x is accepted with probability min(1, p(x) / (rho q(x))), the first one wins
    otherwise  Y ~ (p(x) - min(q(x), p(x) / rho) P / beta) / (1 - P)

which is valid while P <= rho beta; the best rho makes them equal. Candidates that agree with Y go on together, so at
each depth k is the number of survivors; Y from the second branch may still agree with some.
"""

import torch
from torch import Tensor

from paceline.core.forest import Law
from paceline.core.registry import Accepts
from paceline.core.request import Request
from paceline.verify import VERIFIERS, Case
from paceline.verify.walk import Walk, coins, draw

BISECTIONS = 40
"""Bisections: rho to 1e-11."""


@VERIFIERS.register(
    "kseq",
    Accepts(
        summary="the distribution equals plain decoding's (k-SEQ over i.i.d. candidates)",
        laws=(Law.SAMPLED,),
        shape="tree",
        guarantee="distribution",
    ),
)
class KSeq(Walk):
    def choose(self, case: Case, node: int, p: Tensor, request: Request, depth: int) -> tuple[int | None, int]:
        survivors = case.children.get(node, ())
        if not survivors:
            return None, draw(p, request, depth)
        tokens = [case.forest.token[c] for c in survivors]
        chosen, rest = select(p, case.q(survivors[0]).to(p.dtype), tokens, coins(request, depth, len(tokens)))
        token = draw(rest, request, depth) if chosen is None else tokens[chosen]
        return next((c for c, t in zip(survivors, tokens) if t == token), None), token


def select(p: Tensor, q: Tensor, tokens: list[int], coins: list[float]) -> tuple[int | None, Tensor]:
    """Which candidate is accepted, or None and the distribution of the token instead, float64 [V]."""
    k = len(tokens)
    rho = best_rho(p, q, k)
    for i, (token, coin) in enumerate(zip(tokens, coins)):
        if coin * rho * float(q[token]) < float(p[token]):
            return i, p
    beta = float(torch.minimum(q, p / rho).sum())
    accepted = 1 - (1 - beta) ** k
    share = accepted / beta if beta > 0 else 1.0
    rest = (p - torch.minimum(q, p / rho) * share).clamp_min(0.0)
    return None, rest / rest.sum() if float(rest.sum()) > 1e-12 else p


def best_rho(p: Tensor, q: Tensor, k: int) -> float:
    """The root of 1 - (1 - beta)^k = rho beta, from the valid side."""
    low, high = 1.0, float(k)
    if k == 1:
        return 1.0
    for _ in range(BISECTIONS):
        rho = (low + high) / 2
        beta = float(torch.minimum(q, p / rho).sum())
        if 1 - (1 - beta) ** k <= rho * beta:
            high = rho
        else:
            low = rho
    return high
