"""Trees: the builder on the toy, and each method's rule on distributions made up per path."""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pytest import MonkeyPatch

from paceline.core.forest import ROOT, Law
from paceline.core.noise import DraftNoise
from paceline.core.params import SamplingParams
from paceline.core.plan import MinChance
from paceline.core.registry import refusal
from paceline.draft import DRAFTERS, NEED_DRAFT, dyspec, sequoia, topk
from paceline.draft.apart import Apart
from paceline.draft.rsd_c import RsdC, branching
from paceline.draft.rsd_s import RsdS, beam
from paceline.draft.spectr import SpecTr
from paceline.draft.tree import Draws, Tree, TreeDrafter
from paceline.verify import VERIFIERS
from tests.lossless.cases import HAVE, Setting, Wish, run
from tests.lossless.test_law import g_test

TREES = [  # of all layers of the draft model
    name for name in DRAFTERS.names()
    if issubclass(DRAFTERS.get(name), TreeDrafter) and NEED_DRAFT in DRAFTERS.card(name).needs and name != "s2d_tree"
]  # fmt: skip
CELLS = [
    (d, v) for d in TREES for v, accepts in VERIFIERS.items() if refusal(d, DRAFTERS.card(d), v, accepts, HAVE) is None
]
V = 5
FREE = MinChance(0.0, 1e-12)
"""Prices at which a tree has all nodes that it may have."""


# -- the builder on the toy --------------------------------------------------------------------------------------------


def watched(patch: MonkeyPatch, setting: Setting, drafter: str, wishes: list[Wish], seen: Callable[[Any], None]) -> Any:
    """Run with every distribution checked against the draft model by definition; `seen` gets each list of grown
    trees."""
    engine = setting.engine()
    toy: Any = engine.components["draft"]
    method: Any = engine.drafters.drafter(drafter)
    level, grow = method._level, method.grow

    def checked(places: list[tuple[Tree, int]], logits: torch.Tensor, tables: list[torch.Tensor]) -> None:
        for row, (tree, place) in zip(logits, places):
            assert torch.equal(row, toy.next_logits(tree.ask.request.tokens + list(tree.path(place))))
        level(places, logits, tables)

    def watching(trees: list[Tree]) -> Any:
        before = toy.forwards
        lag = [tree.known - tree.reach for tree in trees]
        tables = grow(trees)
        seen(SimpleNamespace(trees=trees, passes=toy.forwards - before, lag=lag, tables=tables))
        return tables

    patch.setattr(method, "_level", checked)
    patch.setattr(method, "grow", watching)
    groups = run(engine, wishes)
    assert engine.drafters.errors == []
    return groups


def wish(drafter: str, verifier: str, seed: int = 1, **changes: Any) -> Wish:
    params = {"temperature": 1.0, "max_tokens": 24, "top_k": 0, "top_p": 1.0, "ignore_eos": True, **changes}
    chosen = SamplingParams(seed=seed, drafter=drafter, verifier=verifier, **params).resolve({})
    return Wish([seed % 7, 2, 3, 4, 5], chosen)


@pytest.mark.parametrize(("drafter", "verifier"), CELLS)
def test_laws_are_those_of_the_whole_path(drafter: str, verifier: str, monkeypatch: MonkeyPatch) -> None:
    """Batched, after prompt chunks, rejections and kept K/V, every node's logits equal recomputation from scratch."""
    wishes = [wish(drafter, verifier, seed, temperature=t) for seed in range(4) for t in (0.0, 1.0)]
    wishes += [Wish([i % 7 for i in range(30)], wishes[0].params), Wish([i % 5 for i in range(25)], wishes[1].params)]
    rounds: list[Any] = []
    for noise in (0.0, 1.0):
        setting = Setting(draft_noise=noise, nodes={drafter: 9}, row_budget=24, block_size=3, blocks=200)
        watched(monkeypatch, setting, drafter, wishes, rounds.append)
    assert max(len(tree.token) for r in rounds for tree in r.trees) >= 8


@pytest.mark.parametrize(("drafter", "verifier"), CELLS)
def test_few_passes_and_a_short_way_to_catch_up(drafter: str, verifier: str, monkeypatch: MonkeyPatch) -> None:
    """About a pass a level. A round begins with what was emitted and not computed: at most a leaf and the token
    after it (where a choice was revised by the last pass, more)."""
    for noise in (0.0, 0.5):
        rounds: list[Any] = []
        setting = Setting(draft_noise=noise, nodes={drafter: 9})
        watched(monkeypatch, setting, drafter, [wish(drafter, verifier)], rounds.append)
        rounds = [r for r in rounds if r.trees]
        assert rounds[0].lag == [5] and all(lag <= (9 if drafter == "topk" else 2) for r in rounds[1:] for lag in r.lag)
        assert sum(r.passes for r in rounds) <= 1.25 * sum(1 + max(r.trees[0].depth, default=0) for r in rounds)


@pytest.mark.parametrize(("drafter", "verifier"), CELLS)
def test_the_targets_twin_is_right_to_a_leaf(drafter: str, verifier: str, monkeypatch: MonkeyPatch) -> None:
    """A draft equal to the target has its most probable path accepted to the end in every round, at temperature 0."""
    setting = Setting(draft_noise=0.0, nodes={drafter: 3})
    [[request]] = watched(monkeypatch, setting, drafter, [wish(drafter, verifier, temperature=0.0)], lambda r: None)
    assert request.stats.tau >= 2


def test_a_masked_out_place_ends_the_tree() -> None:
    for drafter, verifier in CELLS:
        bad = wish(drafter, verifier, allowed_tokens=(2, 3), bad_words=((3, 2), (3, 3)))
        engine = Setting(draft_noise=0.0).engine()
        [[request]] = run(engine, [bad])
        assert engine.drafters.errors == [] and request.finish == "error"


def test_prompts_in_chunks_of_the_draft() -> None:
    """A draft model that takes few rows at once follows a long prompt in several passes."""
    engine = Setting(draft_noise=0.0, nodes={"rsd_c": 4}, row_budget=40).engine()
    method: Any = engine.drafters.drafter("rsd_c")
    method.chunk = 7
    [[request]] = run(engine, [Wish([i % 7 for i in range(30)], wish("rsd_c", "exact", temperature=0.0).params)])
    assert engine.drafters.errors == [] and request.stats.tau >= 2


# -- rules on made-up distributions
# ---------------------------------------------------------------------------------------------


@cache
def draws(path: tuple[int, ...], seed: int = 0, point: bool = False) -> Draws:
    """Distribution and draws after `path`: the noise belongs to the path, not to the order of drawing."""
    g = torch.Generator().manual_seed(hash((path, seed)) % 2**31)
    log_q = (2 * torch.randn(V, generator=g, dtype=torch.float64)).log_softmax(-1)
    noise = -torch.log(-torch.log(torch.rand(V, generator=g, dtype=torch.float64)))
    score, token = (log_q + (0.0 if point else noise)).sort(descending=True)
    return Draws(token.tolist(), log_q[token].tolist(), score.tolist(), float((2 * log_q).exp().sum()))


class ByTheBook(dyspec.ChildChances):
    """The paper's estimate: a child is accepted with its share of what was left of q."""

    def of(self, draws: Draws, rank: int) -> float:
        return dyspec.share(draws, rank)

    def next(self, draws: Draws, drawn: int) -> float:
        return 1.0

    def first(self) -> float:
        return 1.0


class Roomy(Tree):
    """As many nodes as the rule likes."""

    left = property(lambda self: 1000)  # type: ignore[assignment]


def drive(
    method: Any, nodes: float, seed: int = 0, law: Law = Law.WITHOUT_REPLACEMENT, make: type[Tree] = Tree,
    price: MinChance = FREE,
) -> Tree:  # fmt: skip
    """One tree of `method`, without a model."""
    if isinstance(method, type):
        method = object.__new__(method)
        method.chances, method.least = Apart(ByTheBook), Apart(dict)
        method.measured = Apart(sequoia.MeasuredRanks)
    item = SimpleNamespace(nodes=nodes, depth=99, min_chance=price)
    ask: Any = SimpleNamespace(item=item, request=SimpleNamespace(extra_key=""))
    tree = make(ask, 0, law)
    method.plant(tree)
    tree.fresh = [ROOT]
    while tree.fresh:
        laws = {p: draws(tree.path(p), seed, law is Law.POINT) for p in tree.fresh}
        tree.fresh = method.expand(tree, laws)
    assert len(tree.token) <= nodes or make is Roomy
    return tree


def paths(tree: Tree) -> list[tuple[int, ...]]:
    return [tree.path(i) for i in range(len(tree.token))]


def children(tree: Tree, place: int) -> list[int]:
    return [i for i, parent in enumerate(tree.parent) if parent == place]


@pytest.mark.parametrize("method", [RsdC, RsdS, dyspec.DySpec, dyspec.DySpecThreshold])
@pytest.mark.parametrize("nodes", [1, 2, 3, 6, 13, 30])
def test_siblings_are_the_first_draws_in_their_order(method: type, nodes: int) -> None:
    for seed in range(20):
        tree = drive(method, nodes, seed)
        assert tree.token and len(set(paths(tree))) == len(tree.token)
        for place in (ROOT, *range(len(tree.token))):
            mine = [tree.token[i] for i in children(tree, place)]
            assert mine == draws(tree.path(place), seed).token[: len(mine)]


@pytest.mark.parametrize("nodes", range(1, 65))
def test_rsd_c_counts(nodes: int) -> None:
    factors = branching(nodes, sequoia.SEQUOIA_PRIOR)
    sizes = list(itertools.accumulate(factors, lambda a, b: a * b))
    assert sum(sizes) <= nodes and (nodes < sum(sizes) + sizes[-1] or len(factors) == sequoia.SEQUOIA_DEPTH)
    assert list(factors) == sorted(factors, reverse=True)
    tree = drive(RsdC, nodes)
    assert Counter(tree.depth) == dict(enumerate(sizes, 1))


def test_rsd_c_branches_as_far_as_it_pays() -> None:
    """A sure draft gets a chain, a doubtful one a bush; both are the best of all falling factors."""
    assert branching(6, (0.9, 0.01)) == (1,) * 6 and branching(6, (0.2, 0.2, 0.2)) == (3, 1)
    for rates in ((0.6, 0.2, 0.1), (0.4, 0.3, 0.1), (0.8, 0.1, 0.05)):
        every = [f for n in range(1, 13) for f in itertools.product((3, 2, 1), repeat=n) if list(f) == sorted(f)[::-1]]

        def value(factors: tuple[int, ...], rates: tuple[float, ...] = rates) -> float:
            return sum(itertools.accumulate((sum(rates[:f]) for f in factors), lambda a, b: a * b))

        fits = [f for f in every if sum(itertools.accumulate(f, lambda a, b: a * b)) <= 12]
        assert value(branching(12, rates)) == pytest.approx(max(map(value, fits)))


def test_a_child_inherits_its_parents_perturbed_value() -> None:
    """Kool et al. 2019: the largest G of a place's continuations is its own G; a level is the best of all of them."""
    for seed in range(30):
        tree = drive(RsdS, 32, seed)
        memo, width = tree.memo, beam(32)
        for place in (ROOT, *range(len(tree.token))):
            mine = children(tree, place)
            if mine:
                values = [memo[i][1] for i in mine]
                assert values[0] == memo[place][1] and values == sorted(values, reverse=True)
                for i in mine:
                    known = draws(tree.path(place), seed)
                    at = known.token.index(tree.token[i])
                    assert memo[i][0] == pytest.approx(memo[place][0] + known.log_q[at])
        assert Counter(tree.depth)[1] == min(width, V) and Counter(tree.depth)[2] == width


def test_a_beam_as_wide_as_the_space_holds_every_sequence() -> None:
    beams: Any = object.__new__(RsdS)
    tree = Tree(SimpleNamespace(item=SimpleNamespace(nodes=4 * V**4)), 0, Law.WITHOUT_REPLACEMENT)  # type: ignore[arg-type]
    beams.plant(tree)
    fresh = [ROOT]
    for _ in range(2):
        fresh = beams.expand(tree, {p: draws(tree.path(p)) for p in fresh})
    assert {p for p in paths(tree) if len(p) == 2} == set(itertools.product(range(V), repeat=2))
    assert len(tree.token) == V + V * V


def placed(count: int, **changes: Any) -> list[Any]:
    """Places of `count` trees with private noise each."""
    request = SimpleNamespace(params=SimpleNamespace(greedy=False))
    return [
        (SimpleNamespace(law=Law.WITHOUT_REPLACEMENT, below=lambda place: 1, row=lambda place: place,
                         ask=SimpleNamespace(request=request, key=partial(DraftNoise(7).key, i)), **changes), ROOT)
        for i in range(count)
    ]  # fmt: skip


def test_first_level_is_plackett_luce() -> None:
    q = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    method: Any = object.__new__(RsdS)
    found = TreeDrafter.draws(method, placed(6000), q.log().expand(6000, -1))
    law = {(a, b): float(q[a] * q[b] / (1 - q[a])) for a, b in itertools.permutations(range(4), 2)}
    assert g_test(Counter(tuple(d.token[:2]) for d in found), law) > 1e-4


def test_chains_are_independent() -> None:
    """Pairs of first tokens of two chains: q x q, agreement included."""
    q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    method: Any = object.__new__(SpecTr)
    found = method.draws(placed(6000, memo=[ROOT, ROOT]), q.log().expand(6000, -1))
    law = {(a, b): float(q[a] * q[b]) for a, b in itertools.product(range(3), repeat=2)}
    assert g_test(Counter(tuple(d.token) for d in found), law) > 1e-4


def test_chains_that_agree_share_rows(monkeypatch: MonkeyPatch) -> None:
    rounds: list[Any] = []
    wishes = [wish("spectr", "kseq", seed, top_k=2, max_tokens=40) for seed in range(6)]
    watched(monkeypatch, Setting(nodes={"spectr": 18}, row_budget=99), "spectr", wishes, rounds.append)
    full = [tree for r in rounds for tree in r.trees if tree.ask.item.chain == 18]
    assert len(full) > 6
    for tree in full:
        assert Counter(tree.depth) == dict.fromkeys(range(1, 7), 3)  # three chains of six, whatever they drew
        assert all(len(children(tree, i)) == (tree.depth[i] < 6) for i in range(18))
        assert len(set(paths(tree))) == len(tree.word)
        for i, j in itertools.combinations(range(18), 2):
            assert (tree.path(i) == tree.path(j)) == (tree.rank[i] == tree.rank[j])
    assert any(len(tree.word) < 18 for tree in full)


# -- dyspec and topk ---------------------------------------------------------------------------------------------------


def one_by_one(nodes: int, seed: int) -> tuple[list[tuple[int, ...]], list[float]]:
    """Algorithm 1 by the book: paths in order of drawing, and the values popped."""
    items: list[tuple[float, int, tuple[int, ...], dict[int, float]]] = [(1.0, 0, (), {})]
    out: list[tuple[int, ...]] = []
    values: list[float] = []
    residual: dict[tuple[int, ...], dict[int, float]] = {}
    while items and len(out) < nodes:
        items.sort(key=lambda it: (-it[0], it[1]))
        value, number, path, _ = items.pop(0)
        law = draws(path, seed)
        rest = residual.setdefault(path, {t: math.exp(x) for t, x in zip(law.token, law.log_q)})
        token = next(t for t in law.token if t in rest)
        total = sum(rest.values())
        share = rest.pop(token) / total
        out.append((*path, token))
        values.append(value)
        if rest:
            items.append((value * (1 - share), number, path, {}))
        items.append((value * share, len(out), (*path, token), {}))
    return out, values


@pytest.mark.parametrize("nodes", [1, 2, 5, 12, 24])
def test_the_heap_by_passes_is_the_heap_one_draw_at_a_time(nodes: int) -> None:
    for seed in range(40):
        want, values = one_by_one(nodes, seed)
        assert paths(drive(dyspec.DySpec, nodes, seed)) == want
        assert all(a >= b - 1e-12 for a, b in itertools.pairwise(values))


def test_a_priced_sampled_tree_is_a_part_of_the_free_one_and_in_order() -> None:
    """Siblings are the first draws in their order, whatever rows and passes cost; no node has a smaller chance than a
    row costs."""
    fewer = 0
    for seed in range(40):
        free = drive(dyspec.DySpec, 24, seed)
        for price in (MinChance(0.05, 1e-12), MinChance(0.05, 0.3), MinChance(0.3, 0.3)):
            tree = drive(dyspec.DySpec, 24, seed, price=price)
            fewer += len(tree.token) < len(free.token)
            for place in (ROOT, *range(len(tree.token))):
                mine = [tree.token[i] for i in children(tree, place)]
                path = tree.path(place) if place != ROOT else ()
                assert mine == list(draws(path, seed).token)[: len(mine)]
            values = dict(zip(*one_by_one(200, seed)))
            assert all(values[path] >= price.row for path in paths(tree) if path in values)
    assert fewer > 60


def test_values_popped_never_rise(monkeypatch: MonkeyPatch) -> None:
    popped: list[float] = []
    pop = dyspec.heappop
    monkeypatch.setattr(dyspec, "heappop", lambda heap: (popped.append(-heap[0][0]), pop(heap))[1])
    for seed in range(40):
        popped.clear()
        tree = drive(dyspec.DySpec, 20, seed)
        assert len(popped) >= len(tree.token) > 0
        assert all(a >= b - 1e-12 for a, b in itertools.pairwise(popped))


def test_the_threshold_of_the_last_pop_gives_the_same_tree() -> None:
    for seed in range(40):
        want, values = one_by_one(8, seed)
        method = dyspec.DySpecThreshold.__new__(dyspec.DySpecThreshold)
        least = values[-1] * (1 - 1e-9)
        method.chances, method.least = Apart(ByTheBook), Apart(lambda least=least: {8: least})
        tree = drive(method, 8, seed, make=Roomy)
        assert set(paths(tree)) == set(want)


@pytest.mark.parametrize("nodes", [1, 4, 9])
def test_topk_is_the_most_probable_paths(nodes: int, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(dyspec, "GAIN", 0.0)
    for seed in range(30):
        every: dict[tuple[int, ...], float] = {(): 1.0}
        level = {(): 1.0}
        for _ in range(nodes):
            longer = {}
            for path, chance in level.items():
                law = draws(path, seed, True)
                longer.update({(*path, t): chance * math.exp(x) for t, x in zip(law.token, law.log_q)})
            level = {path: chance for path, chance in longer.items() if chance >= dyspec.DYSPEC_MIN_CHANCE.row}
            every |= level
        del every[()]
        best = sorted(every, key=every.__getitem__, reverse=True)[:nodes]
        assert paths(drive(topk.TopK, nodes, seed, Law.POINT)) == best


def test_a_revised_tree_keeps_only_the_rows_that_stay() -> None:
    tree = drive(topk.TopK, 4, 0, Law.POINT)
    before = paths(tree)
    tree.computed = 4
    tree.replant(before)
    assert tree.computed == 4 and paths(tree) == before
    tree.replant([*before[:1], (before[0][0], 9), (before[0][0], 8)] if len(before[1]) == 1 else [before[0], (9,)])
    assert tree.computed == 1 and len(tree.word) == len(tree.token) == len(tree.first)


def test_chances_begin_with_the_papers_and_are_learned() -> None:
    rates = dyspec.BinnedRates()
    assert all(
        rates.of(rank, share) == pytest.approx(share, abs=0.08) for rank in range(4) for share in (0, 0.3, 0.5, 1)
    )
    assert rates.of(0, 0.99) > rates.of(0, 0.97) > 0.95
    before = rates.of(0, 0.31)
    for _ in range(1000):
        rates.count(1, 0.31, True)
    assert rates.of(1, 0.31) > 0.99 and rates.of(0, 0.31) == before
    law = draws((), 3)
    q = [math.exp(x) for x in law.log_q]
    for rank in range(4):
        left = 1 - sum(q[:rank])
        assert dyspec.share(law, rank) * left == pytest.approx(q[rank])
        assert dyspec.average(law, rank) == pytest.approx(sum((x / left) ** 2 for x in q[rank:]))


def test_a_draw_waits_while_another_is_likelier_to_be_accepted() -> None:
    """Draws that are reached with equal chance: the one whose distribution is sharper comes first."""
    sharp, flat = Draws([0, 1], [math.log(0.9), math.log(0.1)], [], 0.82), Draws([0, 1], [math.log(0.5)] * 2, [], 0.5)
    memo = dyspec.Memo(drawn={0: 0, 1: 0}, reached={0: 0.5, 1: 0.5}, laws={0: flat, 1: sharp})
    assert memo.worth(dyspec.ChildChances(), 1) > memo.worth(dyspec.ChildChances(), 0)


def test_what_was_examined_is_what_is_counted() -> None:
    tree = drive(dyspec.DySpec, 9, 5)
    laws = {p: draws(tree.path(p), 5) for p in (ROOT, *range(len(tree.token)))}
    second = children(tree, ROOT)[1]
    chances = dyspec.ChildChances()
    kinds = (chances.drawn, chances.ahead)
    before = [[list(row) for row in kind.tries] for kind in kinds]
    dyspec.count(chances, tree, [second], laws)
    for kind, old in zip(kinds, before):
        grown = [sum(a) - sum(b) for a, b in zip(kind.tries, old)]
        assert grown[1] >= 1 and sum(grown) == 2 + len(children(tree, second))


# -- sequoia -----------------------------------------------------------------------------------------------------------


def worth(shape: sequoia.Shape, rates: tuple[float, ...]) -> float:
    """Expected accepted nodes below a node."""
    return sum(rate * (1 + worth(child, rates)) for rate, child in zip(rates, shape))


@cache
def shapes(nodes: int, depth: int) -> list[sequoia.Shape]:
    """Every ordered tree of exactly `nodes` below the root, at most `depth` deep."""
    if nodes == 0:
        return [()]
    if depth == 0:
        return []
    return [
        (*first, last)
        for size in range(nodes)
        for last in shapes(size, depth - 1)
        for first in shapes(nodes - 1 - size, depth)
    ]


def size(shape: sequoia.Shape) -> int:
    return len(shape) + sum(map(size, shape))


def deep(shape: sequoia.Shape) -> int:
    return 1 + max(map(deep, shape)) if shape else 0


@pytest.mark.parametrize(
    "rates", [(0.6, 0.2, 0.1), (0.9, 0.05), (0.3, 0.3, 0.3), (0.5, 0.0, 0.2), (0.4,), (0.2, 0.5, 0.0)]
)
def test_best_is_the_best_of_all_trees(rates: tuple[float, ...]) -> None:
    for nodes, depth in itertools.product(range(7), (1, 2, 3, 10)):
        found = sequoia.best(nodes, depth, rates)
        assert size(found) <= nodes and deep(found) <= depth
        every = [s for n in range(nodes + 1) for s in shapes(n, depth)]
        fits = [s for s in every if fit(s, len(rates))]
        assert worth(found, rates) == pytest.approx(max(worth(s, rates) for s in fits))


def fit(shape: sequoia.Shape, width: int) -> bool:
    return len(shape) <= width and all(fit(child, width) for child in shape)


def test_rates_count_a_rank_where_it_was_tried() -> None:
    """Rank 0 is right in half of the places; of the ten that had a second child and needed it, five."""
    assert sequoia.rates([25, 5], [50, 10]) == (0.5, 0.25)
    for hits in itertools.product((0, 3.3, 10), repeat=3):
        found = sequoia.rates(hits, [10.0] * 3)
        assert min(found) >= 0 and sum(found) <= 1 + 1e-9


def test_rates_are_learned() -> None:
    """The target's twin is always right at its first child; a stranger seldom."""
    found = []
    for noise in (0.0, 9.0):
        engine = Setting(draft_noise=noise, nodes={"sequoia": 8}).engine()
        run(engine, [wish("sequoia", "exact", seed, max_tokens=40, temperature=0.0) for seed in range(16)])
        found.append(engine.drafters.drafters["sequoia"].measured.kept[""].rates)  # type: ignore[attr-defined]
        assert sum(found[-1]) <= 1 + 1e-9
    assert found[0][0] > 0.8 > sequoia.SEQUOIA_PRIOR[0] > found[1][0]


def test_the_tree_is_the_shape() -> None:
    method: Any = object.__new__(sequoia.Sequoia)
    method.measured = Apart(sequoia.MeasuredRanks)
    for nodes in (1, 5, 12):
        tree = drive(method, nodes)
        want = sequoia.best(nodes, sequoia.SEQUOIA_DEPTH, sequoia.SEQUOIA_PRIOR)
        assert len(tree.token) == size(want) == nodes

        def same(place: int, shape: sequoia.Shape, tree: Tree = tree) -> bool:
            mine = children(tree, place)
            return len(mine) == len(shape) and all(map(same, mine, shape))

        assert same(ROOT, want)
