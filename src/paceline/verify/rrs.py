"""`rrs`: recursive rejection sampling over siblings (Jeon et al. 2024, arXiv 2402.14160, algorithm 1; with replacement:
SpecInfer's multi-step speculative sampling, Miao et al. 2024).

The children of a node are examined in the order they were drawn. With r = p at first and Q the distribution of the next
draw given the earlier ones, x is accepted with probability min(1, r(x) / Q(x)); if not, r becomes norm([r - Q]+). After
all of them the token is drawn from r. A deterministic child has a Q of its own token alone.

Keeps the distribution, not the text of a seed.
"""

from collections.abc import Sequence

from torch import Tensor

from paceline.core.forest import Law
from paceline.core.registry import Accepts
from paceline.core.request import Request
from paceline.verify import VERIFIERS, Case
from paceline.verify.walk import Walk, coins, draw, one_hot, residual


@VERIFIERS.register(
    "rrs",
    Accepts(
        summary="the distribution equals plain decoding's (recursive rejection over trees)",
        laws=(Law.WITHOUT_REPLACEMENT, Law.SAMPLED, Law.POINT),
        shape="tree",
        guarantee="distribution",
    ),
)
class RecursiveRejection(Walk):
    def choose(self, case: Case, node: int, p: Tensor, request: Request, depth: int) -> tuple[int | None, int]:
        forest, children = case.forest, case.children.get(node, ())
        tokens, laws = [forest.token[c] for c in children], [forest.law[c] for c in children]
        drawn = next((c for c in children if forest.law[c] is not Law.POINT), None)
        q = None if drawn is None else case.q(drawn).to(p.dtype)
        chosen, rest = select(p, q, tokens, laws, coins(request, depth, len(tokens)))
        return (None, draw(rest, request, depth)) if chosen is None else (children[chosen], tokens[chosen])


def select(
    p: Tensor, q: Tensor | None, tokens: Sequence[int], laws: Sequence[Law], coins: Sequence[float]
) -> tuple[int | None, Tensor]:
    """Which of the siblings is accepted, or None and the distribution of the token instead, float64 [V]. `q`: the
    distribution of the first that was drawn, None where all are points."""
    for i, (token, law, coin) in enumerate(zip(tokens, laws, coins)):
        proposal = one_hot(p, token) if law is Law.POINT or q is None else q
        if coin * float(proposal[token]) < float(p[token]):
            return i, p
        p = residual(p, proposal, token)
        if law is Law.WITHOUT_REPLACEMENT and q is not None:
            q = next_draw(q, token)
    return None, p


def next_draw(q: Tensor, token: int) -> Tensor:
    """The distribution of the draw after `token`, without replacement."""
    q = q.clone()
    q[token] = 0.0
    return q / q.sum().clamp_min(1e-300)
