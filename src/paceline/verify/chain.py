"""`chain`: speculative sampling (Leviathan et al. 2023, Alg. 1; Chen et al. 2023). Accept x with probability
min(1, p(x)/q(x)); at the first failure draw from norm([p - q]+); if none fails draw from the last p.

Keeps the distribution, not the text of a seed. All its randomness is accept noise, which nothing else uses.
"""

import torch
from torch import Tensor

from paceline.core.forest import Law
from paceline.core.noise import gumbel, keys_tensor, uniform
from paceline.core.registry import Accepts
from paceline.core.request import Request
from paceline.verify import VERIFIERS, Case

COIN, DRAW = 0, 1


@VERIFIERS.register(
    "chain",
    Accepts(
        summary="the distribution equals plain decoding's (ratio rule)",
        laws=(Law.SAMPLED, Law.POINT),
        shape="chain",
        guarantee="law",
    ),
)
class Chain:
    def judge(self, case: Case) -> None:
        for place in case.places:
            self._walk(case, place)

    def _walk(self, case: Case, place: int) -> None:
        node, verdict = case.roots[place], case.verdict
        request, depth = case.items[place].request, 0
        while True:
            line = case.line[node]
            p = case.sampler.probs([case.refs[line]], case.scores[line : line + 1])[0]
            verdict.score_rows[place].append(line)
            child = next(iter(case.children.get(node, ())), None)
            if child is None:
                verdict.next_token[place] = draw(p, request, depth)
                return
            token, q = case.forest.token[child], self._q(case, child, p)
            coin = uniform(request.accept_noise.key(request.index(depth), request.round, COIN, 0))
            if not coin * float(q[token]) < float(p[token]):
                verdict.next_token[place] = draw(residual(p, q, token), request, depth)
                return
            if not case.has_row(child):
                verdict.next_token[place] = token
                return
            verdict.path[place].append(child)
            node, depth = child, depth + 1

    def _q(self, case: Case, child: int, p: Tensor) -> Tensor:
        """The law the child was drawn from: its stored row, or one-hot for a point."""
        if case.forest.q_row[child] >= 0:
            return case.q(child).to(p.dtype)
        q = torch.zeros_like(p)
        q[case.forest.token[child]] = 1.0
        return q


def residual(p: Tensor, q: Tensor, rejected: int) -> Tensor:
    """norm([p - q]+), float64 [V]. Where round-off leaves no mass: p without the rejected token."""
    r = (p - q).clamp_min(0.0)
    if float(r.sum()) <= 1e-12:
        r = p.clone()
        r[rejected] = 0.0
    return r / r.sum()


def draw(p: Tensor, request: Request, depth: int) -> int:
    """One token from p [V] with fresh accept noise; -1 where p has no mass (every token was masked)."""
    if not float(p.sum()) > 0:
        return -1
    key = request.accept_noise.key(request.index(depth), request.round, DRAW)
    noise = gumbel(keys_tensor([key], p.device), torch.arange(p.shape[0], device=p.device))[0]
    return int((torch.log(p) + noise).argmax())
