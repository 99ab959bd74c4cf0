"""Drafting while the target verifies: `pearl`, `mirror`, placements, and everything that can come between."""

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest import MonkeyPatch

from paceline.core.errors import InputError
from paceline.core.forest import Forest, Law
from paceline.core.params import SamplingParams
from paceline.draft import DRAFTERS, View
from paceline.draft.mirror import Mirror
from paceline.draft.pearl import Pearl
from paceline.engine.config import EngineConfig
from paceline.engine.loop import Engine
from paceline.engine.placement import Threads, placement
from paceline.model.load import load_model
from paceline.simulate.log import Event
from paceline.simulate.record import record
from paceline.simulate.replay import replay
from paceline.verify import walk
from tests.lossless.cases import FEATURES, Setting, Wish, check, plain, run, settings_st, wish_st
from tests.lossless.test_law import p_of_a_mutant, worst_p
from tests.tiny import tiny_checkpoint

FAST = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
OVERLAPPING = ["pearl", "mirror"]


def threaded(setting: Setting) -> Engine:
    """The setting's engine with the target's pass in a thread of its own."""
    engine = setting.engine()
    engine.compute.place = placement("1+1")
    engine.drafters.overlaps = True
    return engine


def wish(drafter: str, temperature: float = 0.0, **changes: Any) -> Wish:
    params = {"seed": 1, "max_tokens": 40, "ignore_eos": True, **changes}
    return Wish([1, 2, 3, 4, 5], SamplingParams(temperature=temperature, drafter=drafter, **params).resolve({}))


@settings(max_examples=40, **FAST)
@given(settings_st, st.lists(wish_st(list(FEATURES), [*OVERLAPPING, "auto", "ngram|pearl"]), min_size=1, max_size=5),
       st.integers(0, 2**16))  # fmt: skip
def test_lossless_in_threads_and_replayed(setting: Setting, wishes: list[Wish], seed: int) -> None:
    """With pre-emptions, late arrivals and drafters' memories dropped at any step."""
    engine, events = threaded(setting), list[Event]()
    record(engine, events.append)
    setting.engine = lambda **_: engine  # type: ignore[method-assign]
    check(setting, wishes, random.Random(seed))
    assert replay(events).difference is None


@pytest.mark.parametrize("drafter", OVERLAPPING)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_threads_and_their_slow_twin_do_the_same(drafter: str, temperature: float) -> None:
    setting, told = Setting(draft_noise=0.3, nodes={"pearl": 4, "mirror": 4}), []
    for engine in (setting.engine(), threaded(setting)):
        [[request]] = run(engine, [wish(drafter, temperature)])
        told.append((request.output, request.stats.passes, request.stats.offered, request.stats.kept))
    assert told[0] == told[1]


def test_the_draft_is_made_while_the_pass_runs() -> None:
    """The pass does not end before the draft is made: it can only be that they run at once."""
    engine, drafted, seen = threaded(Setting()), threading.Event(), []
    forward, original = engine.model.forward, Pearl.ahead

    def slow(rows: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            seen.append(drafted.wait(20))
        return forward(rows)

    def quick(self: Pearl, asks: Any, view: View) -> None:
        original(self, asks, view)
        drafted.set()

    engine.model.forward = slow  # type: ignore[method-assign]
    with MonkeyPatch.context() as patch:
        patch.setattr(Pearl, "ahead", quick)
        run(engine, [wish("pearl", max_tokens=8)])
    assert seen and all(seen)


# -- pearl -------------------------------------------------------------------------------------------------------------


def test_a_perfect_draft_brings_gamma_tokens_a_pass() -> None:
    setting = Setting(draft_noise=0.0, nodes={"pearl": 4})
    [[request]] = run(setting.engine(), [wish("pearl", 1.0)])
    assert request.stats.passes == 1 + -(-39 // 5), "a pass of the prompt alone, then five tokens each"


def test_a_draft_that_is_always_wrong_costs_no_token() -> None:
    class Wrong(Pearl):
        def ahead(self, asks: Any, view: View) -> None:
            super().ahead(asks, view)
            for i in range(len(view.drafted)):
                view.drafted.token[i] = (view.drafted.token[i] + 3) % 7

    engine = Setting(draft_noise=0.0).engine()
    engine.drafters.drafters["pearl"] = Wrong(engine.drafters.host)
    [[request]] = run(engine, [wish("pearl")])
    assert request.stats.passes == 40 and request.output == plain(Setting().target(), [1, 2, 3, 4, 5], request.params)


def test_requests_are_in_different_modes() -> None:
    engine, mixed = Setting(draft_noise=0.5, max_requests=4, row_budget=33).engine(), 0
    wishes = [wish("pearl", 1.0, seed=seed) for seed in range(4)]
    requests = [engine.submit(w.prompt, w.params)[0] for w in wishes]
    while engine.busy:
        engine.step()
        ready = sum(("pearl", r.id) in engine.drafters.windows.held for r in requests if r.finish is None)
        mixed += 0 < ready < sum(r.finish is None for r in requests)
    assert mixed > 3


# -- mutants -----------------------------------------------------------------------------------------------------------


def same_uniform_twice(patch: MonkeyPatch) -> None:
    """The coin of the first token of a draft, judged by the pass before, is that of the second token, too."""

    def coins(request: Any, depth: int, count: int) -> list[float]:
        node = request.index(depth)
        return [walk.uniform(request.accept_noise.key(node // 2, walk.COIN, i)) for i in range(count)]

    from paceline.verify import chain

    patch.setattr(chain, "coins", coins)


def branch_of_another_request(patch: MonkeyPatch) -> None:
    """What another request of the batch has drafted is taken where it has no candidate of its own."""
    original = Forest.below

    def below(self: Forest, request: int, node: int, token: int) -> list[int]:
        top = next((i for i, p in enumerate(self.parent) if p == node and self.token[i] == token), None)
        return [] if top is None else original(self, self.request[top], node, token)

    patch.setattr(Forest, "below", below)


@pytest.mark.parametrize(
    "mutant", [same_uniform_twice, pytest.param(branch_of_another_request, marks=pytest.mark.full)]
)
def test_mutant_dies_in_law(mutant: Any, monkeypatch: MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert p_of_a_mutant("pearl", "chain", "temperature", 6000) < 1e-6


@pytest.mark.full
def test_without_a_mutant_the_law_holds() -> None:
    assert worst_p("pearl", "chain", "temperature", range(1), 6000) > 1e-4


# -- mirror ------------------------------------------------------------------------------------------------------------


class Compared(Mirror):
    """Windows that were reused equal the ones drafted again."""

    windows: Any = None
    checked = wrong = 0

    def ahead(self, asks: Any, view: View) -> None:
        for ask in asks:
            mine = [i for i, place in enumerate(view.drafted.request) if place == ask.place]
            if mine:
                fresh = self.draft([ask], View())
                Compared.checked += 1
                pairs = zip(
                    fresh.token, [view.drafted.token[i] for i in mine]
                )  # near the text's end one may be shorter
                Compared.wrong += any(a != b for a, b in pairs)
        super().ahead(asks, view)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_reused_window_is_the_one_that_would_be_drafted_anew(temperature: float) -> None:
    Compared.checked = Compared.wrong = 0
    for seed in range(6):
        engine = Setting(model_seed=seed, draft_noise=0.3, nodes={"mirror": 3}).engine()
        engine.drafters.drafters["mirror"] = Compared(engine.drafters.host)
        run(engine, [wish("mirror", temperature, seed=seed)])
        assert engine.drafters.windows.reused["mirror"] > 3
    assert Compared.checked > 40 and not Compared.wrong


def test_the_branch_of_another_outcome_is_seen(monkeypatch: MonkeyPatch) -> None:
    """Mutant: the window of some other outcome at the same place is taken."""
    original = Forest.below

    def below(self: Forest, request: int, node: int, token: int) -> list[int]:
        others = [t for i, t in enumerate(self.token) if self.parent[i] == node and self.request[i] == request]
        return original(self, request, node, next((t for t in others if t != token), token))

    monkeypatch.setattr(Forest, "below", below)
    with pytest.raises(AssertionError):
        test_a_reused_window_is_the_one_that_would_be_drafted_anew(1.0)


@dataclass
class Pair:
    """A tiny target of four layers and a draft: other weights of the same family."""

    target: Path
    draft: Path

    def engine(self, overlap: str = "none", drafter: str = "mirror") -> Engine:
        model, draft = (load_model(path, dtype="float32") for path in (self.target, self.draft))
        config = EngineConfig(blocks=64, block_size=8, nodes={drafter: 3}, overlap=overlap, check=True)
        return Engine(model, config, components={"draft": draft})


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    where = tmp_path_factory.mktemp("pair")
    yield Pair(
        tiny_checkpoint(where / "target", layers=4, with_tokenizer=False),
        tiny_checkpoint(where / "draft", layers=4, with_tokenizer=False),
    )


def told(engine: Engine, drafter: str, temperature: float) -> tuple[list[int], int]:
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=32, ignore_eos=True, drafter=drafter)
    [[request]] = run(engine, [Wish([5, 6, 7, 8], params.resolve({}))])
    return request.output, request.stats.passes


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_pass_in_two_halves_has_the_same_text(pair: Pair, temperature: float) -> None:
    plainly, _ = told(pair.engine(), "none", temperature)
    outputs = [told(pair.engine(overlap), "mirror", temperature) for overlap in ("none", "1+1", "shared")]
    assert outputs[0] == outputs[1] == outputs[2] and outputs[0][0] == plainly


def test_behind_the_last_layers_nearly_every_outcome_is_foreseen(pair: Pair, monkeypatch: MonkeyPatch) -> None:
    """Lower layers of a random model know little, and the layers before the last one know a good deal."""
    from dataclasses import replace

    shares = []
    for share in (0.25, 0.75):
        monkeypatch.setitem(DRAFTERS._entries, "mirror", (Mirror, replace(DRAFTERS.card("mirror"), exit=share)))
        engine = pair.engine()
        told(engine, "mirror", 0.0)
        windows = engine.drafters.windows
        shares.append(windows.dropped["mirror"] / (windows.reused["mirror"] + windows.dropped["mirror"]))
    assert shares[1] < shares[0]


# -- what comes between ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", OVERLAPPING)
def test_a_drafter_that_fails_beside_the_pass_costs_its_drafts_alone(drafter: str, monkeypatch: MonkeyPatch) -> None:
    kind, calls = {"pearl": Pearl, "mirror": Mirror}[drafter], []

    def fail(self: Any, asks: Any, view: View) -> None:
        calls.append(1)
        view.drafted.add(asks[0].place, 99, -1, law=Law.POINT)  # half done, and wrong
        raise RuntimeError("no draft today")

    monkeypatch.setattr(kind, "ahead", fail)
    engine = threaded(Setting())
    [[request]] = run(engine, [wish(drafter)])
    assert request.output == plain(Setting().target(), [1, 2, 3, 4, 5], request.params)
    assert calls == [1] and request.drafter == "none" and engine.desk.totals.drafter_errors == {drafter: 1}


@pytest.mark.parametrize("drafter", OVERLAPPING)
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_errors_in_the_middle_of_a_step_lose_nothing(drafter: str, error: type[BaseException]) -> None:
    """Errors in the thread of the pass, or an interrupt while the drafter works: the step leaves no trace."""
    engine, rng = threaded(Setting(max_requests=3, row_budget=33)), random.Random(5)
    wishes = [wish(drafter, 1.0, seed=seed) for seed in range(3)]
    requests = [engine.submit(w.prompt, w.params)[0] for w in wishes]
    victim = engine.model if error is ZeroDivisionError else engine.components["draft"]
    forward: Any = victim.forward  # type: ignore[attr-defined]
    raised = 0

    def flaky(rows: Any) -> Any:
        if rng.random() < 0.1:
            raise error
        return forward(rows)

    victim.forward = flaky  # type: ignore[attr-defined]
    while engine.busy:
        try:
            engine.step()
        except error:
            raised += 1
            assert all(r.lease is None or r.lease.txn is None for r in requests)  # type: ignore[attr-defined]
            engine.cache.check_integrity()
    assert raised > 1
    for w, request in zip(wishes, requests):
        assert request.output == plain(Setting().target(), w.prompt, w.params)


def test_aborts_and_rewinds_drop_what_was_prepared() -> None:
    from paceline.core.operations import Rewind

    engine = Setting(draft_noise=0.0).engine()
    [first] = engine.submit([1, 2, 3], wish("pearl", 1.0).params)
    [second] = engine.submit([3, 2, 1], wish("pearl", 1.0).params)
    for _ in range(4):
        engine.step()
    assert len(engine.drafters.windows.held) == 2
    engine.abort(first)
    engine.apply(Rewind(second.id, 2))
    while engine.busy:
        engine.step()
    assert second.output == plain(Setting().target(), [3, 2, 1], second.params) and not engine.drafters.windows.held


def test_a_placement_that_is_none_is_said() -> None:
    for name in ("2", "0+1", "both", "stream"):
        with pytest.raises(InputError, match=f"overlap is '{name.replace('+', '.')}'"):
            placement(name)
    usual = torch.get_num_threads()
    with Threads(1, 1).beside():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == usual
    with pytest.raises(InputError, match="'pearl' drafts while"):
        DRAFTERS.card("ngram+pearl")


def test_auto_leaves_them_out_where_nothing_runs_at_once() -> None:
    params = wish("auto").params
    assert "pearl" not in Setting().engine().submit([1], params)[0].arms
    assert {"pearl", "mirror"} <= {*threaded(Setting()).submit([1], params)[0].arms}
