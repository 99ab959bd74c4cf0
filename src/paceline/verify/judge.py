"""`judge`: a drafted token stands where it is what plain decoding draws, or where a head finds it good enough (Judge
Decoding, Bachmann et al. 2025, arXiv 2501.19309). Lossy: a request has to name it.

The head (draft/correctness.py) reads the target's state of the row that has read the token. The first token that
neither test keeps is replaced by plain decoding's own draw; behind a chain that stands whole follows that draw, too.
With threshold 1 the text is that of `exact`; with 0 every draft stands.
"""

import math
from collections.abc import Mapping
from typing import cast

from paceline.core.component import Component
from paceline.core.forest import Law
from paceline.core.registry import Accepts
from paceline.draft.correctness import NEED_JUDGE, Correctness
from paceline.verify import VERIFIERS, Case, Rule


@VERIFIERS.register(
    "judge",
    Accepts(
        summary="lossy: drafted tokens are kept if a trained head finds them good enough",
        laws=(Law.SHARED_NOISE, Law.POINT, Law.SAMPLED),
        shape="chain",
        guarantee="none",
        needs=frozenset({NEED_JUDGE}),
        taps=("post_norm",),
        consent=True,
    ),
)
class JudgeRule(Rule):
    def __init__(self, components: Mapping[str, Component] | None = None) -> None:
        super().__init__(components)
        self.head = cast(Correctness, self.components["judge"])

    def judge(self, case: Case) -> None:
        for place in case.places:
            self._descend(case, place)

    def _descend(self, case: Case, place: int) -> None:
        node, verdict, depth = case.roots[place], case.verdict, 0
        while True:
            line = case.line[node]
            ref = case.refs[line]
            key = 0 if case.sampler.greedy(ref[0]) else ref[0].target_noise.key(ref[0].index(depth))
            token = case.sampler.draw([ref], case.scores[line : line + 1], [key])[0]
            verdict.score_rows[place].append(line)
            child = next(iter(case.children.get(node, ())), None)
            stands = child is not None and case.has_row(child) and token >= 0
            if child is None or not stands or not (case.forest.token[child] == token or self.good(case, line, child)):
                verdict.next_token[place] = token
                return
            verdict.path[place].append(child)
            node, depth = child, depth + 1

    def good(self, case: Case, line: int, child: int) -> bool:
        """By the rule; a token that the request's processors forbid is not."""
        scores, token, head = case.scores[line], case.forest.token[child], self.head
        if not float(scores[token]) > float("-inf"):
            return False
        if head.rule == "top_k":
            return int((scores > scores[token]).sum()) < head.top_k
        if head.rule == "ratio":
            return float(scores[token].double() - scores.double().max()) >= math.log(max(head.ratio, 1e-300))
        if head.threshold >= 1:
            return False
        return float(head(case.hidden(child)["post_norm"][None])[0]) > head.threshold
