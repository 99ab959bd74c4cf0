"""From forest to rows."""

import random
from collections.abc import Sequence

import pytest
import torch

from paceline.cache.cache import Cache
from paceline.cache.txn import Txn
from paceline.core.forest import ROOT, Forest, Law, Role, join
from paceline.core.params import SamplingParams
from paceline.core.plan import Item
from paceline.core.request import Request
from paceline.draft import Ask, View
from paceline.engine.layout import Layout, lay_out, tree_words
from tests.lossless.cases import FEATURES, Setting, Wish, plain, run
from tests.toy import VOCAB, Toy, table


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


def one(part: Forest, nodes: int, given: int = 2) -> tuple[Forest, Layout, Txn]:
    """The layout of one request whose `given` tokens are all of its text."""
    cache, request = Cache(64, 4), Request(0, [5, 6, 7][:given], SamplingParams(), 0)
    request.lease = lease = cache.open(request.tokens)
    txn = cache.begin(lease, given, nodes)
    forest = join([request.tokens], [part], [nodes])
    return forest, lay_out(forest, [Item(request, given, nodes, "user", "exact")], [txn]), txn


def test_a_probe_has_a_row_and_logits_and_is_nobodys_child() -> None:
    part = Forest()
    a = part.add(0, 1, ROOT, law=Law.POINT)
    p = part.add(0, 2, a, law=Law.POINT, role=Role.PROBE)
    part.add(0, 3, p, law=Law.POINT, role=Role.PROBE)
    part.add(0, 4, a, law=Law.POINT)
    part.add(0, 5, ROOT, law=Law.POINT, role=Role.PROBE)
    _, layout, _ = one(part, 5)
    rows = layout.builder.build()
    assert rows.token.tolist() == [5, 6, 1, 2, 3, 4, 5]
    assert rows.position.tolist() == [0, 1, 2, 3, 4, 3, 2]
    assert rows.word.tolist() == [0, 0, 0b1, 0b11, 0b111, 0b1001, 0b10000]
    assert rows.want.tolist() == [1, 2, 3, 4, 5, 6]
    assert layout.probes == {0: [2, 3, 5]}
    assert layout.line == {1: 0, 2: 1, 5: 4}
    assert layout.children == {1: [2], 2: [5]}
    assert layout.candidates == [[2, 5]]


def test_probes_beyond_the_budget_have_no_logits() -> None:
    part = Forest()
    part.add(0, 1, ROOT, law=Law.POINT)
    for token in (2, 3, 4):
        part.add(0, token, ROOT, law=Law.POINT, role=Role.PROBE)
    forest, layout, txn = one(part, 3)
    assert forest.token == [5, 6, 1, 2, 3] and layout.probes == {0: [2, 3]}
    assert len(layout.builder.build().token) == txn.rows
    _, layout, _ = one(part, 0)
    assert layout.probes == {} and layout.candidates == [[]] and layout.children == {1: [2]}


def test_a_probe_and_a_candidate_of_one_path_share_a_row_whichever_is_first() -> None:
    for roles in ((Role.PROBE, Role.CANDIDATE), (Role.CANDIDATE, Role.PROBE)):
        part = Forest()
        first = part.add(0, 1, ROOT, law=Law.POINT, role=roles[0])
        second = part.add(0, 1, ROOT, law=Law.POINT, role=roles[1], twin=first)
        candidate, probe = (first, second) if roles[0] is Role.CANDIDATE else (second, first)
        child = part.add(0, 2, candidate, law=Law.POINT)
        part.add(0, 2, probe, law=Law.POINT, role=Role.PROBE, twin=child)
        forest, layout, _ = one(part, 4)
        rows = layout.builder.build()
        assert rows.token.tolist() == [5, 6, 1, 2] and rows.word.tolist() == [0, 0, 0b1, 0b11]
        assert layout.probes == {0: [1, 2]}
        assert layout.line == {1: 0, 2 + candidate: 1, 2 + child: 2}
        assert layout.children == {1: [2 + candidate], 2 + candidate: [2 + child]}
        assert layout.candidates == [[2 + candidate, 2 + child]]
        assert [forest.row[n] - 2 for n in layout.candidates[0]] == [0, 1]


class Scripted:
    """A drafter of any forest: twins, probes between candidates and beside them, rows beyond the budget. It knows the
    text of every request and is right about every other time."""

    def __init__(self, seed: int, texts: list[list[int]]) -> None:
        self.rng, self.texts, self.asked, self.seen = random.Random(seed), texts, 0, 0
        self.probes: dict[int, list[tuple[int, ...]]] = {}

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        rng, forest, self.probes = self.rng, Forest(), {}
        for ask in asks:
            mine: list[int] = []
            for _ in range(rng.randrange(ask.item.nodes + 3) if ask.item.nodes else 0):
                if mine and rng.random() < 0.3:
                    twin = rng.choice(mine)
                    parent, token = forest.parent[twin], forest.token[twin]
                else:
                    twin, parent = None, rng.choice([ROOT, *mine])
                    ahead = len(ask.request.output) + (0 if parent == ROOT else forest.depth[parent])
                    text = self.texts[ask.request.id]
                    token = text[ahead] if ahead < len(text) and rng.random() < 0.5 else rng.randrange(VOCAB)
                below = parent != ROOT and forest.role[parent] is Role.PROBE
                role = Role.PROBE if below or rng.random() < 0.4 else Role.CANDIDATE
                mine.append(forest.add(ask.place, token, parent, law=Law.POINT, role=role, twin=twin))
            paths = forest.paths(mine)
            self.probes[ask.place] = [paths[n] for n in mine if forest.role[n] is Role.PROBE]
        return forest

    def learn(self, view: View) -> None:
        """The logits of each probe are those of its path alone."""
        for ask in view.asks:
            toy, paths, text = Toy(table(0)), self.probes[ask.place], ask.request.tokens
            logits = view.probes.get(ask.place, torch.empty(0, VOCAB))
            wanted = [toy.next_logits([*text, *path]).tolist() for path in paths]
            self.asked, self.seen = self.asked + len(wanted), self.seen + len(logits)
            rest = iter(wanted)
            assert all(row in rest for row in logits.tolist()), "in the order they were drafted, some without a row"


@pytest.mark.parametrize("feature", ["greedy", "temperature", "penalties", "logprobs", "custom"])
def test_twins_and_probes_change_no_text(feature: str) -> None:
    """Forests of every kind. Also where a pass has as many twins as probes, each node is judged by its own row."""
    asked = seen = kept = 0
    for seed in range(25):
        setting = Setting(row_budget=40, nodes={"user": 1 + seed % 12})
        params = {"seed": seed, "drafter": "user", "verifier": "exact", "max_tokens": 24, **FEATURES[feature]}
        wishes = [Wish([seed % 7, i], SamplingParams(**params).resolve({})) for i in range(1 + seed % 3)]
        engine, texts = setting.engine(), [plain(setting.target(), wish.prompt, wish.params) for wish in wishes]
        scripted = engine.drafters.drafters["user"] = Scripted(seed, texts)
        for text, (request,) in zip(texts, run(engine, wishes)):
            assert request.output == text
            kept += request.stats.accepted
        assert engine.drafters.errors == []
        asked, seen = asked + scripted.asked, seen + scripted.seen
    assert 0 < seen < asked and kept > 0
