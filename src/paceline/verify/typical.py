"""`typical`: typical acceptance (Medusa, Cai et al. 2024, arXiv 2401.10774, section 2.3.1). A drafted token stands
where p(x) > min(EPSILON, DELTA * e^-entropy(p)). Lossy: naming it is the consent.

Of the paths that stand the longest wins, at ties the most probable. What follows it is plain decoding's own draw.
"""

from math import exp, log

from paceline.core.forest import Law
from paceline.core.registry import Accepts
from paceline.verify import VERIFIERS, Case, Rule

EPSILON, DELTA = 0.09, 0.3


@VERIFIERS.register(
    "typical",
    Accepts(
        summary="lossy: drafted tokens are kept if the model finds them typical",
        laws=(Law.POINT, Law.WITHOUT_REPLACEMENT, Law.SAMPLED),
        shape="tree",
        guarantee="none",
    ),
)
class Typical(Rule):
    def judge(self, case: Case) -> None:
        for place in case.places:
            self._pick(case, place)

    def _pick(self, case: Case, place: int) -> None:
        best: tuple[int, float, list[int]] = (0, 0.0, [])
        stack: list[tuple[int, float, list[int]]] = [(case.roots[place], 0.0, [])]
        while stack:
            node, weight, path = stack.pop()
            children = [c for c in case.children.get(node, ()) if case.has_row(c)]
            if not children:
                continue
            line = case.line[node]
            p = case.sampler.probs([case.refs[line]], case.scores[line : line + 1])[0]
            least = min(EPSILON, DELTA * exp(float(p.xlogy(p).sum())))
            for child in children:
                chance = float(p[case.forest.token[child]])
                if chance > least:
                    longer = (child, weight + log(chance), [*path, child])
                    stack.append(longer)
                    best = max(best, (len(longer[2]), longer[1], longer[2]))
        path, verdict = best[2], case.verdict
        lines = [case.line[node] for node in (case.roots[place], *path)]
        ref = case.refs[lines[-1]]
        key = ref[0].target_noise.key(ref[0].index(len(path)))
        verdict.path[place].extend(path)
        verdict.score_rows[place].extend(lines)
        verdict.next_token[place] = case.sampler.draw([ref], case.scores[lines[-1] : lines[-1] + 1], [key])[0]
