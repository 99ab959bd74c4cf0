"""`rrs`: recursive rejection sampling over siblings (Jeon et al. 2024, arXiv 2402.14160, algorithm 1; with replacement:
SpecInfer's multi-step speculative sampling, Miao et al. 2024).

The children of a node are examined in the order they were drawn. With r = p at first and Q the law of the next draw
given the earlier ones, x is accepted with probability min(1, r(x) / Q(x)); if not, r becomes norm([r - Q]+). After all
of them the token is drawn from r. A deterministic child has a Q of its own token alone.

Keeps the distribution, not the text of a seed. All its randomness is accept noise, which nothing else uses.
"""

from collections.abc import Sequence

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
        children = case.children.get(node, ())
        tokens, laws = [forest.token[c] for c in children], [forest.law[c] for c in children]
        drawn = next((c for c in children if forest.law[c] is not Law.POINT), None)
        keys = [request.accept_noise.key(request.index(depth), request.round, COIN, i) for i in range(len(tokens))]
        q = None if drawn is None else case.q(drawn).to(p.dtype)
        chosen, rest = select(p, q, tokens, laws, [uniform(key) for key in keys])
        return (None if chosen is None else children[chosen]), rest


def select(
    p: Tensor, q: Tensor | None, tokens: Sequence[int], laws: Sequence[Law], coins: Sequence[float]
) -> tuple[int | None, Tensor]:
    """Which of the siblings is accepted, or None and the law of the token instead, float64 [V]. `q`: the law of the
    first that was drawn, None where all are points."""
    for i, (token, law, coin) in enumerate(zip(tokens, laws, coins)):
        proposal = one_hot(p, token) if law is Law.POINT or q is None else q
        if coin * float(proposal[token]) < float(p[token]):
            return i, p
        p = residual(p, proposal, token)
        if law is Law.WITHOUT_REPLACEMENT and q is not None:
            q = next_draw(q, token)
    return None, p


def one_hot(p: Tensor, token: int) -> Tensor:
    """The law of a deterministic child."""
    q = torch.zeros_like(p)
    q[token] = 1.0
    return q


def next_draw(q: Tensor, token: int) -> Tensor:
    """The law of the draw after `token`, without replacement."""
    q = q.clone()
    q[token] = 0.0
    return q / q.sum().clamp_min(1e-300)
