"""`exact`: seed-exact verification (D2). At each node compute the token that plain decoding would draw there and
descend while a child carries it. Exact for any tree, however it was built: the tree is only a cache of p."""

from paceline.core.forest import Law
from paceline.core.registry import Accepts
from paceline.verify import VERIFIERS, Case, Rule


@VERIFIERS.register(
    "exact",
    Accepts(
        summary="the text equals plain decoding with the same seed",
        laws=(Law.SHARED_NOISE, Law.POINT, Law.WITHOUT_REPLACEMENT, Law.SAMPLED),
        shape="tree",
        guarantee="text",
        runs=True,
    ),
)
class Exact(Rule):
    def judge(self, case: Case) -> None:
        places = set(case.places)
        nodes = [node for node in case.line if case.forest.request[node] in places]
        lines = [case.line[node] for node in nodes]
        refs = [case.refs[line] for line in lines]
        greedy = {(request := case.items[p].request).id: case.sampler.greedy(request) for p in places}
        keys = [0 if greedy[r.id] else r.target_noise.key(r.index(len(path))) for r, path in refs]
        scores = case.scores if lines == [*range(len(case.refs))] else case.scores[lines]
        drawn = dict(zip(nodes, case.sampler.draw(refs, scores, keys)))
        for place in case.places:
            self._descend(case, place, drawn)

    def _descend(self, case: Case, place: int, drawn: dict[int, int]) -> None:
        node, verdict = case.roots[place], case.verdict
        while True:
            token = drawn[node]
            verdict.score_rows[place].append(case.line[node])
            hit = next((c for c in case.children.get(node, ()) if case.forest.token[c] == token), None)
            if hit is None or not case.has_row(hit):
                verdict.next_token[place] = token
                return
            verdict.path[place].append(hit)
            node = hit
