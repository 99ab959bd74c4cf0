"""`rrs`: recursive rejection sampling over siblings (Jeon et al. 2024, arXiv 2402.14160, algorithm 1; with replacement:
SpecInfer's multi-step speculative sampling, Miao et al. 2024).

The children of a node are examined in the order they were drawn. With r = p at first and Q the law of the next draw
given the earlier ones, x is accepted with probability min(1, r(x) / Q(x)); if not, r becomes norm([r - Q]+). After all
of them the token is drawn from r. A deterministic child has a Q of its own token alone.

Keeps the distribution, not the text of a seed. All its randomness is accept noise, which nothing else uses.
"""

import torch
from torch import Tensor

from paceline.core.forest import Law
from paceline.core.noise import uniform
from paceline.core.registry import Accepts
from paceline.verify import VERIFIERS, Case
from paceline.verify.chain import COIN, draw, residual


@VERIFIERS.register(
    "rrs",
    Accepts(
        summary="the distribution equals plain decoding's (recursive rejection over trees)",
        laws=(Law.WITHOUT_REPLACEMENT, Law.SAMPLED, Law.POINT),
        shape="tree",
        guarantee="law",
    ),
)
class RecursiveRejection:
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
            child, rest = self._accept(case, node, p, place, depth)
            if child is None:
                verdict.next_token[place] = draw(rest, request, depth)
                return
            if not case.has_row(child):
                verdict.next_token[place] = case.forest.token[child]
                return
            verdict.path[place].append(child)
            node, depth = child, depth + 1

    def _accept(self, case: Case, node: int, p: Tensor, place: int, depth: int) -> tuple[int | None, Tensor]:
        """The child that is accepted, or None and the law of the token in its place."""
        request, forest = case.items[place].request, case.forest
        r, q = p, None
        for rank, child in enumerate(case.children.get(node, ())):
            token, law = forest.token[child], forest.law[child]
            if law is Law.POINT:
                q = torch.zeros_like(p)
                q[token] = 1.0
            elif q is None:
                q = case.q(child).to(p.dtype)
            coin = uniform(request.accept_noise.key(request.index(depth), request.round, COIN, rank))
            if coin * float(q[token]) < float(r[token]):
                return child, r
            r = residual(r, q, token)
            if law is Law.WITHOUT_REPLACEMENT:
                q = next_draw(q, token)
        return None, r


def next_draw(q: Tensor, token: int) -> Tensor:
    """The law of the draw after `token`, without replacement."""
    q = q.clone()
    q[token] = 0.0
    return q / q.sum().clamp_min(1e-300)
