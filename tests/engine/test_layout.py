"""From forest to rows."""

from paceline.cache.cache import Cache
from paceline.core.forest import ROOT, Forest, Law, join
from paceline.core.params import SamplingParams
from paceline.core.plan import Item
from paceline.core.request import Request
from paceline.engine.layout import lay_out, tree_words


def test_tree_words_are_ancestors_and_self() -> None:
    forest = Forest()
    a = forest.add(0, 1, ROOT, law=Law.POINT)
    forest.add(0, 2, ROOT, law=Law.POINT)
    c = forest.add(0, 3, a, law=Law.POINT)
    forest.add(0, 4, c, law=Law.POINT)
    joined = join([[9]], [forest], [8])
    assert tree_words(joined, [1, 2, 3, 4]) == [0b0001, 0b0010, 0b0101, 0b1101]


def test_given_rows_then_candidates_with_positions_by_depth() -> None:
    cache = Cache(16, 4)
    requests = [Request(0, [5, 6, 7], SamplingParams(), 0), Request(1, [8, 9], SamplingParams(prompt_logprobs=0), 0)]
    for r in requests:
        r.lease = cache.open(r.tokens)
    items = [Item(requests[0], 3, 3, "user", "exact"), Item(requests[1], 2, 0, "none", "exact")]
    txns = [cache.begin(i.request.lease, i.given, i.nodes) for i in items]  # type: ignore[arg-type]
    part = Forest()
    root = part.add(0, 1, ROOT, law=Law.POINT)
    part.add(0, 2, root, law=Law.POINT)
    part.add(0, 3, ROOT, law=Law.POINT)
    forest = join([r.tokens for r in requests], [part], [3, 0])
    layout = lay_out(forest, items, txns)
    rows = layout.builder.build()
    assert rows.token.tolist() == [5, 6, 7, 1, 2, 3, 8, 9]
    assert rows.position.tolist() == [0, 1, 2, 3, 4, 3, 0, 1]
    assert rows.word.tolist() == [0, 0, 0, 0b1, 0b11, 0b100, 0, 0]
    assert rows.want.tolist() == [2, 3, 4, 5, 6, 7]
    assert [(s.start, s.given, s.nodes, s.base) for s in rows.segments] == [(0, 3, 3, 0), (6, 2, 0, 0)]
    assert layout.line == {2: 0, 3: 1, 4: 2, 5: 3, 7: 5}
    assert layout.prompt_lines == {1: [(0, 4)]}
