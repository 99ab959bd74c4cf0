"""`chain`: speculative sampling (Leviathan et al. 2023, Alg. 1; Chen et al. 2023). Accept x with probability
min(1, p(x)/q(x)); at the first failure draw from norm([p - q]+); if none fails draw from the last p.

Keeps the distribution, not the text of a seed.
"""

from torch import Tensor

from paceline.core.forest import Law
from paceline.core.registry import Accepts
from paceline.core.request import Request
from paceline.verify import VERIFIERS, Case
from paceline.verify.walk import Walk, coins, draw, one_hot, residual


@VERIFIERS.register(
    "chain",
    Accepts(
        summary="the distribution equals plain decoding's (ratio rule)",
        laws=(Law.SAMPLED, Law.POINT),
        shape="chain",
        guarantee="distribution",
    ),
)
class Chain(Walk):
    def choose(self, case: Case, node: int, p: Tensor, request: Request, depth: int) -> tuple[int | None, int]:
        child = next(iter(case.children.get(node, ())), None)
        if child is None:
            return None, draw(p, request, depth)
        token = case.forest.token[child]
        q = case.q(child).to(p.dtype) if case.forest.q_row[child] >= 0 else one_hot(p, token)
        if coins(request, depth, 1)[0] * float(q[token]) < float(p[token]):
            return child, token
        return None, draw(residual(p, q, token), request, depth)
