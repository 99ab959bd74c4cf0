"""The model drafts for itself: early exits, sub-layers left out, layers in groups; rows that enter half done."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.core.errors import IntegrityError, RefusalError
from paceline.core.params import SamplingParams
from paceline.core.plan import MinChance
from paceline.core.program import WHOLE, Entry, Program, exits, inputs
from paceline.core.rows import RowsBuilder
from paceline.draft import layer_search
from paceline.draft.dynamic_exit import (
    IDLE_LEARN_EVERY,
    SETTLED_ROUNDS,
    DynamicExit,
    Shadows,
    best,
    expected_tokens,
    tokens_per_layer,
)
from paceline.draft.early_exit import EarlyExit
from paceline.draft.easyspec import EasySpec, grouped
from paceline.draft.layer_search import Search, skipping, spread, upper_bounds
from paceline.draft.swift import Swift, priced
from paceline.model import spans
from paceline.model.load import load_model
from tests.lossless.cases import Setting, Wish, plain, run
from tests.tiny import tiny_checkpoint
from tests.toy import BASE, LAYERS, Toy, table

PROMPT = [1, 2, 3, 4, 5, 1]


def wish(drafter: str, prompt: Sequence[int] = PROMPT, **changes: Any) -> Wish:
    params = {"temperature": 0.0, "seed": 1, "max_tokens": 30, "ignore_eos": True, "drafter": drafter,
              "top_p": 1.0, "top_k": 0, **changes}  # fmt: skip
    return Wish(list(prompt), SamplingParams(**params).resolve({}))


# -- passes in stages --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["float64", "bfloat16"])
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The slow twin in float64; whatever serves bfloat16 here, natively where it can."""
    path = tiny_checkpoint(tmp_path_factory.mktemp("tiny"), "qwen2", layers=6, use_sliding_window=False)
    model = load_model(path, dtype=request.param)
    model.allocate(16, 8)
    return model


TEXTS = ([5, 9, 200, 31, 7, 8, 64, 3, 90, 14], [17, 3, 3, 250])


def rows_of(model: Any, starts: Sequence[int], stops: Sequence[int], **how: Any) -> Any:
    """Rows start .. stop of each text, given ones, all of whose logits are wanted."""
    builder, tables = RowsBuilder(), ([0, 1, 2], [3, 4, 5])
    for tokens, start, stop, blocks in zip(TEXTS, starts, stops, tables):
        if start < stop:
            slots = [blocks[p // 8] * 8 + p % 8 for p in range(start, stop)]
            builder.add(tokens[start:stop], slots, blocks, start, want=[*range(stop - start)])
    return builder.build(model.device, **how)


def close(model: Any, one: torch.Tensor, other: torch.Tensor) -> None:
    if "run" in model.abilities:
        assert torch.equal(one, other)  # every row of the native decoder has the same bits in any pass
    else:
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02 if one.dtype is torch.float32 else 1e-9)


def test_rows_that_enter_half_done_end_as_in_a_whole_pass(decoder: Any) -> None:
    """Rows of one text enter at layer 2, of the other at layer 4, each without its last row; taps are whole."""
    taps = ("input:1", "input:3", "post_norm")
    whole = decoder.forward(rows_of(decoder, (0, 0), (10, 4), taps=taps))
    entries = []
    for text, layer in ((0, 2), (1, 4)):
        stops = [len(t) - 1 if i == text else 0 for i, t in enumerate(TEXTS)]
        below = tuple(tap for tap in taps[:2] if int(tap[6:]) < layer)
        out = decoder.forward(rows_of(decoder, (0, 0), stops, taps=below, program=Program(last=layer, head=False)))
        entries.append(Entry(layer, out.leave, out.taps))
    out = spans.forward(decoder, rows_of(decoder, (0, 0), (10, 4), taps=taps), entries)
    close(decoder, out.logits, whole.logits)
    for tap in taps:
        close(decoder, out.taps[tap], whole.taps[tap])


def test_texts_leave_where_they_want(decoder: Any) -> None:
    """Logits and hidden states of early exits at two layers, in one pass."""
    rows = rows_of(decoder, (0, 0), (10, 4))
    alone = [decoder.forward(rows_of(decoder, (0, 0), (10, 4), program=Program(last=n), taps=("pre_norm",)))
             for n in (2, 5)]  # fmt: skip
    out = spans.forward(decoder, rows, [None, None], [2, 5])
    close(decoder, out.logits[:10], alone[0].logits[:10])
    close(decoder, out.logits[10:], alone[1].logits[10:])
    assert out.leave is not None
    close(decoder, out.leave[:10], alone[0].taps["pre_norm"][:10])
    close(decoder, out.leave[10:], alone[1].taps["pre_norm"][10:])


def test_shadow_logits_are_those_of_an_early_exit(decoder: Any) -> None:
    out = decoder.forward(rows_of(decoder, (0, 0), (10, 4), taps=("input:3",)))
    early = decoder.forward(rows_of(decoder, (0, 0), (10, 4), program=Program(last=3)))
    close(decoder, spans.head(decoder, out.taps["input:3"], 6), early.logits)


def test_rows_of_a_tree_cannot_enter_half_done() -> None:
    toy = Toy(table(0))
    toy.allocate(4, 8)
    builder = RowsBuilder()
    builder.add([1, 2, 3, 4], [0, 1, 2, 3], [0], 0, depths=[1, 1, 2], words=[1, 2, 6], want=[0, 1, 2, 3])
    with pytest.raises(IntegrityError, match="only those of a chain"):
        spans.forward(toy, builder.build(), [Entry(2, torch.zeros(2, 2, dtype=torch.float64), {})])


# -- early exits -------------------------------------------------------------------------------------------------------


def test_a_round_runs_so_many_layers() -> None:
    """n drafted tokens at exit l cost n l + L layers."""
    engine = Setting(nodes={"early_exit": 3}).engine()
    [request] = engine.submit(PROMPT, wish("early_exit").params)
    toy, layer, rounds = engine.model, 2, 0
    assert isinstance(toy, Toy)
    while engine.busy:
        work, drafted, given = toy.work, request.stats.drafted, request.pending
        engine.step()
        if given == 1:
            rounds += request.stats.drafted > drafted
            assert toy.work - work == (request.stats.drafted - drafted) * layer + LAYERS
    assert rounds > 5 and request.output == plain(Toy(table(0), 48), PROMPT, wish("none").params)


def test_exits_lie_below_the_last_layer() -> None:
    assert exits(1, 8) == () and exits(2, 8) == (1,) and exits(4, 8) == (1, 2, 3)
    for layers in range(2, 50):
        found = exits(layers, 8)
        assert found == tuple(sorted({*found})) and found[0] >= 1 and found[-1] < layers and len(found) <= 8


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.9, 1.0])
def test_tokens_per_layer_is_the_mean_over_what_can_be_accepted(alpha: float) -> None:
    for length in range(6):
        ends = [alpha**n * (1 - alpha if n < length else 1) for n in range(length + 1)]
        expected = sum((n + 1) * p for n, p in enumerate(ends))
        assert tokens_per_layer(alpha, 3, length, 12) == pytest.approx(expected / (12 + 3 * length))


def test_the_best_pair_is_that_of_brute_force() -> None:
    rng = random.Random(0)
    for _ in range(50):
        alpha, layers = sorted(rng.random() for _ in range(3)), (2, 5, 9)
        pairs = [tokens_per_layer(a, n, g, 12) for a, n in zip(alpha, layers) for g in range(18)]
        exit, length = best(alpha, layers, 12)
        assert tokens_per_layer(alpha[exit], layers[exit], length, 12) == pytest.approx(max(pairs))
    assert best([0.1, 0.1], (5, 9), 12)[1] == 0, "no draft pays"


def test_prices_in_seconds_choose_exit_and_length() -> None:
    """At the pace of the best pair the net gain of any other is less: Dinkelbach's fixed point is the most tokens a
    second."""
    rng = random.Random(1)
    for _ in range(30):
        alpha, layers = sorted(rng.random() for _ in range(3)), (2, 5, 9)
        pass_s, row_s = 1.0, rng.uniform(0.005, 0.3)
        pairs = [(e, g) for e in range(3) for g in range(18)]
        pace = {
            (e, g): expected_tokens(alpha[e], g) / (pass_s + g * (row_s + pass_s * layers[e] / 12)) for e, g in pairs
        }
        most = max(pace.values())
        found = best(alpha, layers, 12, price=MinChance(most * row_s, 0.0, most * pass_s))
        assert pace[found] == pytest.approx(most)
    sure = [0.8]
    assert (
        best(sure, (5,), 12, price=MinChance(0.01, 0.0, 0.5))[1]
        > best(sure, (5,), 12, price=MinChance(0.3, 0.0, 0.5))[1]
    )
    assert best(sure, (5,), 12, price=MinChance(0.3, 0.0, 3.0))[1] == 0, "no pass pays"
    assert best(sure, (5,), 12, price=MinChance(0.3)) == best(sure, (5,), 12), "the price of a pass is not known"


def test_a_pass_pays_for_its_head() -> None:
    """A head as large as eight layers, as of a small model over a large vocabulary: exits near one another cost alike,
    and a draft that paid by layers alone does not."""
    rng = random.Random(2)
    for _ in range(30):
        alpha, layers = sorted(rng.random() for _ in range(3)), (2, 5, 9)
        pairs = {(e, g): expected_tokens(alpha[e], g) / (20 + g * (layers[e] + 8)) for e in range(3) for g in range(18)}
        assert pairs[best(alpha, layers, 12, head=8.0)] == pytest.approx(max(pairs.values()))
    assert best([0.45], (2,), 12)[1] > 0 and best([0.45], (2,), 12, head=8.0)[1] == 0
    price = MinChance(0.01, 0.0, 1.5)
    assert best([0.5], (2,), 12, price=price)[1] > 0 and best([0.5], (2,), 12, price=price, head=8.0)[1] == 0


def test_the_head_is_weighed_in_layers(tmp_path: Path) -> None:
    model = load_model(tiny_checkpoint(tmp_path, "llama"), dtype="float32")
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64
    assert spans.head_layers(model) == pytest.approx(320 * 32 / layer) and spans.head_layers(Toy(table(0))) == 0


def test_tau_lies_between_what_right_and_wrong_tokens_had() -> None:
    shadows = Shadows.none(1)
    assert shadows.tau(0) == 0
    shadows.add(torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([[0.9, 0.7, 0.4]]))
    assert shadows.tau(0) == pytest.approx((0.8 + 0.4) / 2) and shadows.part().tau(0) == pytest.approx(0.6)


def test_a_draft_may_end_by_confidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """del.stop=confidence: no draft is cut at its length, and none goes on behind a distribution below tau."""
    drafts: list[tuple[float, list[float]]] = []
    original = DynamicExit.chances

    def chances(self: DynamicExit, drawing: Any, scores: torch.Tensor, *rest: Any) -> list[float]:
        found = original(self, drawing, scores, *rest)
        for g, row, chance in zip(drawing, scores, found):
            assert chance == float(float(row.softmax(-1).max()) >= g.tau) and g.most == 17
            drafts.append((g.tau, [chance]))
        return found

    monkeypatch.setattr(DynamicExit, "chances", chances)
    for temperature in (0.0, 1.0):
        how = Setting(nodes={"del": 12}, settings={"del.stop": "confidence"}, sharpness=4.0)
        wishes = [wish("del", max_tokens=40, seed=seed, temperature=temperature) for seed in range(4)]
        engine = how.engine()
        groups = run(engine, wishes)
        assert engine.drafters.errors == []
        for each, [request] in zip(wishes, groups):
            assert request.output == plain(Toy(table(0, 4.0), 48), PROMPT, each.params)
    assert any(chance == [0.0] for _, chance in drafts) and any(tau > 0 for tau, _ in drafts)


def test_the_share_of_sub_layers_is_a_setting() -> None:
    for ratio, share in ((None, 0.45), (0.2, 0.2), (0.95, 0.95)):
        engine = Setting(settings={} if ratio is None else {"swift.ratio": ratio}).engine()
        run(engine, [wish("swift", max_tokens=4)])
        swift = engine.drafters.drafters["swift"]
        assert isinstance(swift, Swift) and swift.count == max(1, int(swift.width_of_choice * share))


def test_siblings_cost_rows_and_places_cost_passes() -> None:
    assert priced(1.0, 0.6, 0.1, 0.3) == (5, True)
    assert priced(1.0, 0.6, 0.5, 0.3) == (1, False)
    assert priced(0.3, 0.6, 0.1, 0.1)[1] is False, "the chain is seldom kept that far"
    counts = [priced(reached, 0.5, 0.02, 0.1)[0] for reached in (1.0, 0.5, 0.1)]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1]


def test_a_few_right_ones_are_no_certainty() -> None:
    shadows = Shadows.none(1)
    assert shadows.alpha() == [0.0]
    shadows.add(torch.tensor([[1.0, 1.0, 0.0]]))
    assert shadows.alpha() == pytest.approx([2 / 5])


def test_shadows_are_what_an_exit_would_have_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy: at the root, the shadow token of each exit against the token that a draft there begins with."""
    seen, toy = [], Toy(table(0), 48)
    original = DynamicExit._of_round

    def of_round(self: DynamicExit, ask: Any, view: Any, tokens: list[int], states: torch.Tensor) -> Any:
        found = original(self, ask, view, tokens, states)
        context = [*ask.request.tokens]
        toy.allocate(1, 64)
        builder = RowsBuilder()
        builder.add(context, [*range(len(context))], [0], 0)
        for exit, layer in enumerate(self.exits):
            logits = toy.forward(builder.build(program=Program(last=layer))).logits
            assert found[exit, 0] == float(int(logits[0].argmax()) == tokens[0])
            seen.append(float(found[exit, 0]))
        return found

    monkeypatch.setattr(DynamicExit, "_of_round", of_round)
    engine = Setting().engine()
    run(engine, [wish("del")])
    assert not engine.drafters.errors and 0 < sum(seen) < len(seen)


def test_an_exit_that_is_always_right_is_found() -> None:
    """With a head that needs no upper layers the lowest exit pays most, and drafts grow long."""
    setting = Setting(nodes={"del": 12})
    engine = setting.engine()
    engine.model.normed = lambda number, real=Toy.normed: real(  # type: ignore[attr-defined]
        number if number < 1 else sum(lowest(number) * BASE**i for i in range(LAYERS))
    )
    [[request]] = run(engine, [wish("del", max_tokens=40)])
    assert request.output == plain(Toy(table(0), 48), PROMPT, wish("none", max_tokens=40).params)
    assert request.stats.tau > 4


def test_where_no_draft_pays_little_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once many rounds are known: one in sixteen, and no prompt."""
    read, original = [0, 0], (DynamicExit._of_round, DynamicExit._of_prompt)

    def counted(place: int) -> Any:
        def count(self: DynamicExit, *given: Any) -> Any:
            read[place] += 1
            return original[place](self, *given)

        return count

    monkeypatch.setattr(DynamicExit, "_best", lambda self, shadows, most, price=None: (0, 0))
    monkeypatch.setattr(DynamicExit, "_of_round", counted(0))
    monkeypatch.setattr(DynamicExit, "_of_prompt", counted(1))
    engine = Setting().engine()
    for _ in range(6):
        run(engine, [wish("del", max_tokens=40)])
    assert read[0] > SETTLED_ROUNDS / 4 and 1 <= read[1] < 6 and not engine.drafters.errors
    before = list(read)
    run(engine, [wish("del", max_tokens=40)])
    assert read[0] - before[0] <= 40 // IDLE_LEARN_EVERY + 1 and read[1] == before[1]


def lowest(number: int) -> int:
    """The digit of the first layer."""
    while number >= BASE:
        number //= BASE
    return number - number % 2


def test_what_they_need_is_said_and_auto_asks_for_more() -> None:
    setting = Setting()
    engine = setting.engine()
    assert not {"swift", "del"} & {*engine.drafters.arms("auto", "exact")}
    target = setting.target()
    setting.target = lambda: target  # type: ignore[method-assign]
    target.abilities |= {"exit"}
    assert {"del", "early_exit"} <= {*setting.engine().drafters.arms("auto", "exact")}
    target.abilities = frozenset({"embed"})
    with pytest.raises(RefusalError, match="needs a target that can run some of its layers"):
        setting.engine().submit(PROMPT, wish("swift").params)


# -- layers in groups --------------------------------------------------------------------------------------------------


def test_the_first_layer_and_the_last_stand_alone() -> None:
    assert grouped(8, 4).groups == ((1, 2, 3, 4), (5, 6)) and grouped(8, 1) == WHOLE and grouped(2, 4) == WHOLE


@pytest.mark.parametrize("verifier", ["exact", "chain"])
def test_groups_of_one_are_model(verifier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EasySpec, "size", 1)
    told = []
    for drafter in ("model", "easyspec"):
        wishes = [wish(drafter, verifier=verifier, temperature=1.0, seed=seed) for seed in range(6)]
        groups = run(Setting().engine(), wishes)
        told.append([(r.output, r.stats.drafted, r.stats.accepted) for [r] in groups])
    assert told[0] == told[1] and sum(accepted for _, _, accepted in told[0]) > 10


def fuzzy_kept(frontier: Any) -> int:
    """Rows of the draft's complete K/V that are not those of the text."""
    engine, wrong, checked = Setting(nodes={"easyspec": 5}).engine(), 0, 0
    draft = engine.components["draft"]
    assert isinstance(draft, Toy)
    requests = [engine.submit(PROMPT[i:], wish("easyspec", seed=i).params)[0] for i in range(3)]
    while engine.busy:
        engine.step()
        for request in requests:
            if (lease := request.lease) is not None:
                slots = lease.slots(0, lease.frontier["draft"])  # type: ignore[attr-defined]
                wrong += sum(pool[s] != t for pool in draft.pool for s, t in zip(slots, request.tokens))
                checked += len(slots)
    assert checked > 200
    return wrong


def test_no_fuzzy_row_of_a_draft_model_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.draft.model import ModelDrafter

    assert fuzzy_kept(None) == 0
    monkeypatch.setattr(EasySpec, "learn", ModelDrafter.learn)  # without calibration they stay
    assert fuzzy_kept(None) > 0


# -- sub-layers left out -----------------------------------------------------------------------------------------------


def test_an_empty_set_drafts_what_the_target_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Search, "suggest", lambda self: self.best)
    monkeypatch.setattr("paceline.draft.swift.spread", lambda width, count: (False,) * width)
    [[request]] = run(Setting(nodes={"swift": 9}, sharpness=6.0).engine(), [wish("swift")])
    assert request.stats.passes < 20
    assert request.output == plain(Toy(table(0, 6.0), 48), PROMPT, wish("none").params)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_matchness_is_that_of_step_by_step(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each label's row alone, over K/V of the window that the shortened model made itself; and no row of the request
    has changed."""
    monkeypatch.setattr("paceline.draft.swift.SCRATCH", 8)
    monkeypatch.setattr(layer_search, "PERFECT", 2.0)
    seen: list[tuple[float, float]] = []
    original = Swift.matchness

    def matchness(self: Swift, ask: Any, choice: Any) -> float | None:
        toy = self.model
        assert isinstance(toy, Toy)
        held = [[*pool] for pool in toy.pool]
        score = original(self, ask, choice)
        mine = {s for b in self.scratch for s in range(b * 4, b * 4 + 4)}
        for before, after in zip(held, toy.pool):
            assert all(a == b for s, (a, b) in enumerate(zip(before, after)) if s not in mine)
        if score is not None:
            text, stop = ask.request.tokens, len(ask.request.tokens) - 1
            start = (stop - 8) // 4 * 4
            first, twin = max(start, len(ask.request.prompt) - 1), Toy(toy.table, 48)
            twin.allocate(2, 64)
            if start:
                rows = RowsBuilder()
                rows.add(text[:start], [*range(start)], [0], 0)
                twin.forward(rows.build())
            right = 0
            for place in range(start, stop):
                rows = RowsBuilder()
                rows.add([text[place]], [place], [0], place)
                logits = twin.forward(rows.build(program=skipping(choice))).logits
                if place >= first:
                    drawn = self._drawn(ask.request, logits, [place + 1])
                    right += drawn[0] == text[place + 1]
            seen.append((score, right / (stop - first)))
        return score

    monkeypatch.setattr(Swift, "matchness", matchness)
    engine = Setting().engine()
    run(engine, [wish("swift", temperature=temperature, seed=seed, max_tokens=40) for seed in range(8)])
    assert not engine.drafters.errors and len(seen) > 8
    assert all(score == pytest.approx(other) for score, other in seen) and len({score for score, _ in seen}) > 1


def scores(choice: tuple[bool, ...]) -> float:
    """A made-up matchness: early sub-layers matter more, and two of them together more still."""
    lost = sum((len(choice) - i) * out for i, out in enumerate(choice)) / len(choice) ** 2
    return 0.9 - lost - 0.2 * (choice[3] and choice[6])


def test_the_search_finds_a_set_as_good_as_the_best_of_many_random_ones() -> None:
    search, stream, history = Search(spread(20, 9), 9, seed=3), np.random.default_rng(9), list[float]()
    while not search.over:
        choice = search.suggest()
        assert sum(choice) == 9 and len(choice) == 20
        search.register(choice, scores(choice))
        history.append(search.score)
    assert history == sorted(history) and search.score == scores(search.best)
    picks = [{*stream.permutation(20)[:9].tolist()} for _ in range(500)]
    random_sets = [tuple(i in pick for i in range(20)) for pick in picks]
    assert search.score >= max(map(scores, random_sets))


def test_the_search_ends_in_three_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search(spread(12, 5), 5)
    search.register(search.best, 0.95)
    assert not search.over, "a better one may be near"
    search.register(search.best, 1.0)
    assert search.over
    search.register(search.best, 0.95)
    while not search.over:
        search.register(choice := search.suggest(), 0.95 if choice == search.best else 0.1)
    search.register(search.best, 0.94)
    assert search.over
    search.register(search.best, 0.5)
    assert not search.over, "the text has changed"
    for _ in range(2 * layer_search.STALE):
        if not search.over:
            search.register(choice := search.suggest(), 0.5 if choice == search.best else 0.1)
    assert search.over and search.stale == layer_search.STALE
    monkeypatch.setattr(layer_search, "STALE", 10**9)
    monkeypatch.setattr(layer_search, "MAX_SUGGESTIONS", 400)
    assert not search.over
    for _ in range(2 * layer_search.MAX_SUGGESTIONS):
        if not search.over:
            search.register(choice := search.suggest(), 0.5 if choice == search.best else 0.1)
    assert search.over and search.tried == layer_search.MAX_SUGGESTIONS


def test_the_upper_bound_is_the_textbook_one() -> None:
    stream = np.random.default_rng(0)
    seen, points, y = stream.random((7, 6)) < 0.5, stream.random((5, 6)) < 0.5, stream.random(7)

    def k(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.exp(-(a != b).sum() / 1.5))

    gram = np.array([[k(a, b) for b in seen] for a in seen]) + layer_search.NOISE * np.eye(7)
    for point, bound in zip(points, upper_bounds(seen, y, points)):
        across = np.array([k(a, point) for a in seen])
        mean = y.mean() + across @ np.linalg.inv(gram) @ (y - y.mean())
        variance = y.std() ** 2 * (1 - across @ np.linalg.inv(gram) @ across)
        assert bound == pytest.approx(mean + layer_search.UCB_KAPPA * max(variance, 0) ** 0.5, abs=1e-6)


def test_a_set_is_kept_for_its_task() -> None:
    engine = Setting().engine()
    run(engine, [wish("swift", user="a"), wish("swift", user="b"), wish("swift", [0, 0, 1])])
    drafter = engine.drafters.drafter("swift")
    assert isinstance(drafter, Swift) and [*drafter.tasks] == [("", "a"), ("", "b"), ("", (0, 0, 1))]
    assert len({id(search) for search in drafter.tasks.values()}) == 3
    drafter.tasks["", "b"].best = best = (False, True, True, False)
    [request] = engine.submit([4, 4], wish("swift", user="c").params)
    assert drafter.search(request).best != best, "the latest task's set is where a new one begins"
    assert drafter.search(request).score < 0
    request.extra_key = "another"
    assert drafter.search(request).best == spread(drafter.width_of_choice, drafter.count), "not of another tenant"


def test_a_checkpoint_says_that_it_was_trained_to_end_early(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "plain", "llama", with_tokenizer=False)
    assert "exit" not in load_model(path, dtype="float32").abilities
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "early_exit": True}))
    assert "exit" in load_model(path, dtype="float32").abilities


def test_early_exit_is_registered_for_a_checkpoint_of_any_depth(tmp_path: Path) -> None:
    """Checkpoints with one layer draft nothing, and nothing breaks."""
    from paceline import LLM

    path = tiny_checkpoint(tmp_path / "one", "llama", layers=1)
    texts = {}
    with LLM(path, dtype="float32", max_requests=2, memory="64MB") as llm:
        for drafter in ("none", "early_exit", "del", "swift"):
            params = SamplingParams(temperature=0, max_tokens=8, drafter=drafter, ignore_eos=True)
            texts[drafter] = llm.generate([[5, 6, 7]], [params], progress=False)[0].token_ids
        assert not llm.engine.drafters.errors
    assert len({tuple(text) for text in texts.values()}) == 1


def test_places_count_layers() -> None:
    assert inputs(Toy(table(0)).places) == LAYERS and EarlyExit.learn is not DynamicExit.learn
