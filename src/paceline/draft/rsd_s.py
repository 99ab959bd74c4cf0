"""`rsd_s`: recursive speculative decoding by stochastic beam search (Jeon et al. 2024, arXiv 2402.14160, section 3.2.2;
Kool et al. 2019, algorithm 1). A level is the `beam` best sequences drawn without replacement.

    phi  log q of a sequence      G  its perturbed value: the maximum of its continuations' equals it (Kool, eq. 10)
"""

from math import exp, expm1, inf, log, log1p, sqrt

from paceline.core.forest import ROOT, Law
from paceline.draft import DRAFTERS
from paceline.draft.tree import Laws, Tree, TreeDrafter, offers


def beam(nodes: int) -> int:
    """Sequences of a level: about a quarter as many as levels, for depth pays more than width."""
    return max(1, round(sqrt(nodes) / 2))


def conditioned(g: float, top: float, above: float) -> float:
    """G of a continuation with perturbed log-probability g, where `top` is its siblings' largest and `above` its
    parent's G: -log(e^-above - e^-top + e^-g), in the stable form of Kool et al., appendix B.3."""
    if g >= top:
        return above
    gap = g - top
    v = above - g + (log(-expm1(gap)) if gap > -0.6931 else log1p(-exp(gap)))
    return above - max(0.0, v) - log1p(exp(-abs(v)))


@DRAFTERS.register(
    "rsd_s",
    offers("a tree by stochastic beam search, drawn without replacement", Law.SHARED_NOISE, Law.WITHOUT_REPLACEMENT),
)
class RsdS(TreeDrafter):
    def plant(self, tree: Tree) -> None:
        tree.memo = {ROOT: (0.0, 0.0)}  # place: phi, G

    def expand(self, tree: Tree, laws: Laws) -> list[int]:
        width, memo, point = beam(tree.ask.item.nodes), tree.memo, tree.law is Law.POINT
        grown: list[tuple[float, float, int, int]] = []
        for place, draws in laws.items():
            phi, above = memo[place]
            for token, log_q, score in zip(draws.token, draws.log_q, draws.score):
                value = phi + log_q if point else conditioned(phi + score, phi + draws.score[0], above)
                if value > -inf:
                    grown.append((value, phi + log_q, place, token))
        grown.sort(key=lambda it: -it[0])  # stable: siblings stay in draw order
        new = []
        for value, phi, place, token in grown[: min(width, tree.left)]:
            new.append(tree.add(place, token))
            memo[new[-1]] = (phi, value)
        return new if tree.left >= width else []
