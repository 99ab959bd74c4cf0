"""STAND: the table, the topology, and the drafters on the toy."""

import itertools
import random
from collections import Counter
from typing import Any

import pytest
import torch

from paceline.core.forest import Forest, Law
from paceline.core.params import SamplingParams
from paceline.core.plan import MinChance
from paceline.draft import laws, stand, topology
from paceline.draft.laws import LAW_TOKENS, MAX_CONTEXT_TOKENS, LawRates, LawTable
from paceline.draft.stand import Stand
from paceline.draft.topology import TOPOLOGY_REVIEW_ROUNDS, Topology
from paceline.engine.loop import Engine
from tests.lossless.cases import FEATURES, Setting, Wish, check, run
from tests.lossless.test_law import worst_p
from tests.toy import VOCAB

DRAFTERS = ("stand", "stand_greedy")


def wish(drafter: str = "stand", prompt: tuple[int, ...] = (1, 2, 3), **params: Any) -> Wish:
    base: dict[str, Any] = {"top_p": 1.0, "top_k": 0, "seed": 3, "max_tokens": 24, "ignore_eos": True}
    return Wish(list(prompt), SamplingParams(drafter=drafter, **(base | params)).resolve({}))


def stand_of(engine: Engine, name: str = "stand") -> Stand:
    drafter = engine.drafters.drafters[name]
    assert isinstance(drafter, Stand)
    return drafter


# -- the table ---------------------------------------------------------------------------------------------------------


def test_laws_merge_by_the_running_mean() -> None:
    table = LawTable()
    table.merge((1,), {10: 0.7, 11: 0.2, 12: 0.05})
    table.merge((1,), {10: 0.3, 11: 0.6, 13: 0.05})
    count, law = table.laws[1,]
    assert count == 2
    assert law == pytest.approx({10: 0.5, 11: 0.4, 12: 0.025, 13: 0.025})
    table.merge((1,), {10: 0.8})
    assert table.laws[1,][1][10] == pytest.approx(2 / 3 * 0.5 + 0.8 / 3)


def test_a_law_keeps_its_largest() -> None:
    table = LawTable()
    table.merge((1,), {i: 0.1 - i / 1000 for i in range(LAW_TOKENS)})
    table.merge((1,), {99: 0.9})
    assert list(table.laws[1,][1]) == [99, *range(LAW_TOKENS - 1)]


def test_the_longest_context_wins() -> None:
    table = LawTable()
    table.learn([1, 2, 3, 4, 5], {7: 1.0})
    table.learn([9, 5], {8: 1.0})
    assert table.find([0, 2, 3, 4, 5]) == (4, {7: 1.0})
    assert table.find([3, 5]) == (1, {7: 0.5, 8: 0.5})
    assert table.find([9, 9, 9, 5]) == (2, {8: 1.0})
    assert table.find([6]) == table.find([]) == (0, {})
    assert max(map(len, table.laws)) == MAX_CONTEXT_TOKENS


def test_the_table_is_bounded_and_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laws, "MAX_LAWS", 3)
    table = LawTable()
    for token in (1, 2, 3, 1, 4):
        table.merge((token,), {0: 1.0})
    assert list(table.laws) == [(3,), (1,), (4,)]


def test_kept_laws_are_the_targets_own_at_temperature_1() -> None:
    """p kept == p judged by, whatever the temperature it was judged at; the accepted path is entered too."""
    setting = Setting(row_budget=40)
    for t in (0.0, 0.6, 1.0, 1.7):
        engine = setting.engine()
        (request,) = run(engine, [wish(temperature=t, seed=5)] * 3)[-1]
        table, toy = stand_of(engine).table, setting.target()
        assert request.stats.accepted
        tokens = request.tokens
        assert all(tuple(tokens[end - 1 : end]) in table.laws for end in range(3, len(tokens)))
        # a context of LONGEST tokens fixes the toy's three; its five phases of position are told apart by single visits
        for end in range(4, len(tokens)):
            count, law = table.laws[tuple(tokens[end - MAX_CONTEXT_TOKENS : end])]
            if count == 3 and sum(tokens[i - 4 : i] == tokens[end - 4 : end] for i in range(4, len(tokens))) == 1:
                want = toy.next_logits(tokens[:end]).softmax(-1)
                assert [law.get(i, 0.0) for i in range(VOCAB)] == pytest.approx(want.tolist(), abs=1e-5)
        assert all(len(law) <= LAW_TOKENS and sum(law.values()) < 1 + 1e-9 for _, law in table.laws.values())


# -- the topology ------------------------------------------------------------------------------------------------------


def closed(slots: list[tuple[int, ...]]) -> bool:
    """Parents and earlier siblings come first."""
    seen: set[tuple[int, ...]] = {()}
    for slot in slots:
        if slot[:-1] not in seen or (slot[-1] and (*slot[:-1], slot[-1] - 1) not in seen):
            return False
        seen.add(slot)
    return True


def test_the_topology_is_a_tree_at_every_size() -> None:
    rng, shape = random.Random(0), Topology()
    for _ in range(4 * TOPOLOGY_REVIEW_ROUNDS):
        assert closed(list(shape.chance))
        accepted = rng.choice(list(shape.chance)[:15])
        shape.observe(list(shape.chance)[:15], accepted)
    assert sorted(shape.chance.values(), reverse=True) == list(shape.chance.values())
    assert len(shape.chance) == 64
    assert sum(shape.plan(15, 3, 1.0).values()) <= 15


def test_the_topology_follows_what_is_accepted() -> None:
    """Long runs along first children: a chain; a second child that is right as often: a wide tree."""
    deep, wide = Topology(), Topology()
    for i in range(2 * TOPOLOGY_REVIEW_ROUNDS):
        slots = list(deep.chance)[:15]
        deep.observe(slots, max((s for s in slots if not any(s)), key=len))
        wide.observe(list(wide.chance)[:15], (i % 2,))
    assert list(deep.chance)[:7] == [(0,) * n for n in range(1, 8)]
    assert list(wide.chance)[:2] == [(0,), (1,)]
    assert (1, 0) in list(wide.chance)[:6]


def test_the_topology_changes_at_reviews_only() -> None:
    shape = Topology()
    before = shape.chance
    for _ in range(TOPOLOGY_REVIEW_ROUNDS - 1):
        shape.observe([(0,), (1,)], (1,))
    assert shape.chance is before
    shape.observe([(0,), (1,)], (1,))
    assert shape.chance is not before
    assert shape.due == 2 * TOPOLOGY_REVIEW_ROUNDS


def test_a_root_that_is_worth_little_gets_few_nodes() -> None:
    shape = Topology()
    assert shape.plan(15, 3, 0.01) == {}
    sizes = [sum(shape.plan(15, 3, worth).values()) for worth in (0.1, 0.3, 0.8)]
    assert sizes == sorted(sizes)
    assert 0 < sizes[0] < sizes[2] <= 15


def test_a_sampled_text_drafts_only_after_laws_foretold_it() -> None:
    rates = LawRates()
    assert rates.worth(2, 0.0) > topology.RATE_MIN_CHANCE.node > rates.worth(2, 0.8)
    rates.observe(2, 0.8, True)
    assert rates.worth(2, 0.8) > topology.RATE_MIN_CHANCE.node
    assert rates.worth(3, 0.8) < topology.RATE_MIN_CHANCE.node


# -- the drafters ------------------------------------------------------------------------------------------------------


@pytest.fixture
def forests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Forest, bool]]:
    """Every drafted forest, and whether all its requests are greedy."""
    out: list[tuple[Forest, bool]] = []
    draft = Stand.draft

    def spy(self: Stand, asks: Any, view: Any) -> Forest:
        forest = draft(self, asks, view)
        out.append((forest, all(ask.request.params.greedy for ask in asks)))
        return forest

    monkeypatch.setattr(Stand, "draft", spy)
    return out


def test_q_is_a_law_of_few_tokens_and_siblings_differ(forests: list[tuple[Forest, bool]]) -> None:
    engine = Setting(row_budget=80, max_requests=4).engine()
    run(engine, [wish(temperature=t, seed=s, verifier="rrs") for s in range(6) for t in (0.0, 0.6, 1.4)])
    assert engine.drafters.errors == []
    drawn = 0
    for forest, _ in forests:
        if forest.q is not None:
            assert torch.allclose(forest.q.sum(-1), torch.ones(len(forest.q), dtype=torch.float64))
            assert int((forest.q > 0).sum(-1).max()) <= LAW_TOKENS
        siblings = Counter(zip(forest.request, forest.parent, forest.token))
        assert not siblings or max(siblings.values()) == 1
        for i, law in enumerate(forest.law):
            assert law in (Law.POINT, Law.WITHOUT_REPLACEMENT)
            assert (forest.q_row[i] < 0) == (law is Law.POINT)
            if forest.q is not None and law is Law.WITHOUT_REPLACEMENT:
                assert forest.q[forest.q_row[i], forest.token[i]] > 0
                drawn += 1
    assert drawn > 50


def test_greedy_requests_have_law_point(forests: list[tuple[Forest, bool]]) -> None:
    run(Setting(row_budget=40).engine(), [wish(temperature=0.0)] * 3)
    run(Setting(row_budget=40).engine(), [wish("stand_greedy", temperature=t) for t in (0.0, 0.5, 1.0)] * 4)
    laws = {law for forest, _ in forests for law in forest.law}
    assert laws == {Law.POINT}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("t", [0.0, 0.7])
def test_acceptance_grows_with_replayed_trajectories(drafter: str, t: float) -> None:
    engine = Setting(row_budget=40).engine()
    taus = [run(engine, [wish(drafter, temperature=t, max_tokens=40)])[0][0].stats.tau for _ in range(8)]
    assert taus[0] < taus[3]
    assert max(taus[4:]) > 2.5


def test_a_miss_is_a_plain_round() -> None:
    engine = Setting(row_budget=40).engine()
    (request,) = run(engine, [wish(temperature=1.0, max_tokens=2)])[0]
    assert request.stats.drafted == 0
    assert len(request.output) == 2


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("feature", FEATURES)
def test_lossless(drafter: str, feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand, "RATE_MIN_CHANCE", MinChance(0.0))
    rng = random.Random(feature)
    for seed in range(2):
        params = {**FEATURES[feature], "drafter": drafter}
        wishes = [
            wish(
                prompt=tuple(rng.choices(range(VOCAB), k=rng.randint(1, 12))),
                seed=seed,
                **{"n": rng.choice([1, 3]), **params},
            )
            for _ in range(2)
        ]
        setting = Setting(seed, blocks=rng.randint(1, 40), row_budget=rng.choice([5, 9, 33]))
        check(setting, wishes, rng if seed else None)


@pytest.fixture
def garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Always draft, wide trees, from random distributions for every context of up to two tokens."""

    def fill(self: LawTable, remember: int = 0) -> None:
        rng, self.laws, self.cap = random.Random(0), laws.OrderedDict(), laws.MAX_LAWS
        for n in (1, 2):
            for context in itertools.product(range(VOCAB), repeat=n):
                weights = [rng.random() ** 2 for _ in range(rng.randint(1, VOCAB))]
                ids = rng.sample(range(VOCAB), len(weights))
                law = sorted(zip(ids, (w / sum(weights) for w in weights)), key=lambda item: -item[1])
                self.laws[context] = 10**6, dict(law)

    monkeypatch.setattr(LawTable, "__init__", fill)
    monkeypatch.setattr(stand, "RATE_MIN_CHANCE", MinChance(0.0))
    monkeypatch.setattr(topology, "SEQUOIA_PRIOR_ROUNDS", 1e9)
    monkeypatch.setattr(topology, "SEQUOIA_PRIOR", (0.5, 0.45, 0.4, 0.3))


CASES = [("stand", "penalties"), ("stand_greedy", "bias")]


@pytest.mark.usefixtures("garbage")
@pytest.mark.parametrize(("drafter", "feature"), CASES)
def test_keeps_the_law_with_a_table_of_garbage(drafter: str, feature: str) -> None:
    assert worst_p(drafter, "rrs", feature, range(1)) > 1e-4


@pytest.mark.full
@pytest.mark.usefixtures("garbage")
@pytest.mark.parametrize("feature", [f for f in FEATURES if "greedy" not in f])
def test_keeps_the_law_with_a_table_of_garbage_full(feature: str) -> None:
    assert worst_p("stand", "rrs", feature) > 1e-4


def test_keeps_the_law_with_its_own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand, "RATE_MIN_CHANCE", MinChance(0.0))
    assert worst_p("stand", "rrs", "temperature", range(1)) > 1e-4


@pytest.mark.usefixtures("garbage")
def test_siblings_out_of_draw_order_break_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """The distribution test can fail."""
    add = stand.Growth.add

    def unordered(self: stand.Growth, forest: Forest, place: Any, drawn: list[int], q_row: int) -> Any:
        return add(self, forest, place, sorted(drawn[: self.width[place]]), q_row)

    monkeypatch.setattr(stand.Growth, "add", unordered)
    assert worst_p("stand", "rrs", "temperature", range(1)) < 1e-4
