"""Several drafters in one tree: lossless, legal under `exact` alone, the cheapest asked first."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from paceline.core.errors import InputError, RefusalError
from paceline.core.forest import NO_ROW, ROOT, Forest, Law, Role
from paceline.core.params import SamplingParams
from paceline.core.plan import Item, MinChance, Note
from paceline.core.request import Request
from paceline.draft import DRAFTERS, Ask, View
from paceline.draft.merge import Merged, MergeMemory, card, union
from paceline.draft.records import BROKEN, TELL, TRY, DrafterRecord
from paceline.engine.recorder import Recorder
from paceline.verify import VERIFIERS
from tests.lossless.cases import FEATURES, Setting, Wish, check, run


def wish(prompt: list[int], drafter: str, feature: str = "greedy", seed: int = 0, **changes: object) -> Wish:
    params = {"top_p": 1.0, "top_k": 0, **FEATURES[feature], "drafter": drafter, "seed": seed, "max_tokens": 20}
    return Wish(prompt, SamplingParams(**{**params, **changes}).resolve({}))


@pytest.mark.parametrize("drafter", ["ngram+model", "topk+ngram", "user+rsd_s+ngram", "user+ngram"])
def test_text_equals_plain_decoding(drafter: str) -> None:
    rng = random.Random(0)
    for case in range(len(FEATURES)):
        setting = Setting(model_seed=case % 5, draft_noise=0.3, row_budget=40, nodes={drafter: 3 + case % 12})
        prompts = [[rng.randrange(7) for _ in range(6)] for _ in range(3)]
        check(setting, [wish(p, drafter, list(FEATURES)[case % len(FEATURES)], case) for p in prompts], rng)


def test_only_exact_may_judge_it() -> None:
    engine = Setting().engine()
    for verifier in VERIFIERS.names():
        request = wish([1, 2], "ngram+model", "temperature", verifier=verifier)
        if verifier == "exact":
            run(engine, [request])
            continue
        with pytest.raises(RefusalError, match=r"'ngram\+model' .*'exact'"):
            engine.submit(request.prompt, request.params)


@pytest.mark.parametrize("name", ["model+rsd_c", "ngram+ngram", "none+ngram", "ngram+"])
def test_what_cannot_be_merged_is_refused(name: str) -> None:
    with pytest.raises(InputError):
        DRAFTERS.card(name)


def test_the_cheapest_is_first_and_needs_are_joined() -> None:
    it = card("topk+ngram")
    assert (
        it.parts == ("ngram", "topk")
        and {need.name for need in it.needs} == {"draft"}
        and it.group == "draft"
        and it.shape == "tree"
    )


def test_union_is_a_trie_in_order_of_first_place() -> None:
    a, b = Forest(), Forest()
    a.add_chain(0, [1, 2, 3], Law.POINT)
    b.add_chain(0, [1, 2, 4], Law.SHARED_NOISE)
    b.add(0, 5, ROOT, law=Law.POINT)
    b.add(0, 1, ROOT, law=Law.POINT, role=Role.PROBE)
    both, places = union([a, b])
    assert both.token == [1, 2, 3, 4, 5, 1]
    assert both.parent == [ROOT, 0, 1, 1, ROOT, ROOT]
    assert both.role[-1] is Role.PROBE
    assert places == [{ROOT: ROOT, 0: 0, 1: 1, 2: 2}, {ROOT: ROOT, 0: 0, 1: 1, 2: 3, 3: 4, 4: 5}]


def test_a_drafter_that_brings_less_is_passed_over_and_tried_again() -> None:
    """On a text that look-up predicts whole, the draft model is asked once in a while only."""
    period = [1, 2, 3, 4, 5]
    setting = Setting(draft_noise=0.0, nodes={"user+model": 8})
    toy = setting.target()

    def oracle(tokens: list[int], nodes: int) -> list[int]:
        out = list(tokens)
        for _ in range(nodes):
            out.append(int(toy.next_logits(out).argmax()))
        return out[len(tokens) :]

    engine = setting.engine(user=oracle)
    asked = []
    merged = Merged(engine.drafters.host, "user+model")
    engine.drafters.drafters["user+model"] = merged
    draft = merged.parts["model"].draft
    merged.parts["model"].draft = lambda asks, view: (asked.extend(a.item.nodes for a in asks), draft(asks, view))[1]  # type: ignore[method-assign]
    for seed in range(6):
        run(engine, [wish(period, "user+model", seed=seed, max_tokens=40, ignore_eos=True)])
    assert merged.joined == ["model", "user"]
    assert 0 < sum(n > 0 for n in asked) < len(asked) / 2


def test_a_record_expects_what_it_saw() -> None:
    record = DrafterRecord()
    assert record.promised(8, 0.0) == float("inf") and record.expected(3) == 0.0
    for _ in range(200):
        record.drafted.count(3, 2)
        record.drafted.count(8, 1)
    assert record.expected(3) == pytest.approx(2.0, rel=0.05) and record.expected(8) == pytest.approx(1.0, rel=0.05)
    assert record.expected(0) == 0.0


@pytest.mark.parametrize("runs", [False, True])
def test_what_is_broken_promises_nothing_until_it_is_mended(runs: bool) -> None:
    """Drafts of a model that ran and proposed nothing promise nothing; a lookup that finds nothing has cost nothing."""
    record = DrafterRecord()
    for _ in range(50):
        record.count(15, 6, 3)
    for _ in range(BROKEN):
        assert record.promised(15, 0.05) > 1.5
        record.count(15, 0, 0, runs)
    assert (record.promised(15, 0.05) == 0.0) is runs
    for _ in range(BROKEN):
        record.count(15, 6, 0)
    assert record.promised(15, 0.05) == 0.0
    record.count(15, 6, 2, runs)
    assert record.promised(15, 0.05) > 1.0


def test_a_model_that_proposes_nothing_has_missed_a_look_up_has_not() -> None:
    setting = Setting(nodes={"user+model": 8})
    engine = setting.engine(user=lambda tokens, nodes: [])
    merged = engine.drafters.drafters["user+model"] = Merged(engine.drafters.host, "user+model")
    draft = merged.parts["model"].draft
    merged.parts["model"].draft = lambda asks, view: (draft(asks, view), Forest())[1]  # type: ignore[method-assign]
    run(engine, [wish([1, 2, 3], "user+model", max_tokens=40, ignore_eos=True)])
    records = merged.records.kept[""]
    assert records["model"].missed > 1 and not records["user"].missed


def test_small_drafts_of_a_busy_hour_say_nothing_of_large_ones() -> None:
    record = DrafterRecord()
    for _ in range(100):
        record.asked.count(15, 3)
    before = record.promised(15, 0.0)
    for _ in range(500):
        record.asked.count(3, 1)
    assert record.promised(15, 0.0) == before == pytest.approx(3.0)
    assert record.promised(3, 0.0) == record.promised(7, 0.0) == pytest.approx(1.0)


@pytest.mark.parametrize("drafter", ["ngram+model", "ngram+rsd_s"])
def test_rounds_tell_what_the_first_part_would_have_brought(drafter: str) -> None:
    """Rounds report the nodes of its chain that had rows and that the text then went through."""
    setting = Setting(draft_noise=0.2, nodes={drafter: 5}, row_budget=24)
    engine = setting.engine()
    merged = engine.drafters.drafters[drafter] = Merged(engine.drafters.host, drafter)
    chains: dict[int, list[int]] = {}
    places: dict[int, int] = {}
    look_up = merged.parts["ngram"].draft

    def draft(asks: Sequence[Ask], view: View) -> Forest:
        forest = look_up(asks, view)
        for ask in (a for a in asks if a.item.nodes):
            places[ask.request.id] = ask.place
            chains[ask.request.id] = [t for place, t in zip(forest.request, forest.token) if place == ask.place]
        return forest

    class Spy(Recorder):
        def ran(self, results: Any, found: Sequence[Note], *rest: Any) -> None:
            self.notes = [note for note in found if note.part]

    engine.recorder = spy = Spy()
    every = engine.drafters.draft

    def joined(*args: Any) -> Any:
        drafts = every(*args)
        forest, paths = drafts.forest, drafts.forest.paths(range(len(drafts.forest)))
        spy.rows = {(forest.request[i], path) for i, path in paths.items() if path and forest.row[i] != NO_ROW}
        return drafts

    engine.drafters.draft = joined  # type: ignore[method-assign]
    merged.parts["ngram"].draft = draft  # type: ignore[method-assign]
    wishes = [wish([1, 2, 3, 4 + seed], drafter, seed=seed, max_tokens=60, ignore_eos=True) for seed in range(3)]
    requests = [engine.submit(w.prompt, w.params)[0] for w in wishes]
    counts: Counter[str] = Counter()
    while engine.busy:
        due = [r for r in requests if r.finish is None and r.round % TELL == 0]
        before = {r.id: len(r.output) for r in requests}
        chains.clear()
        spy.notes = []
        engine.step()
        for note in spy.notes:
            request = next(r for r in requests if r.id == note.request)
            chain, text = chains[note.request], request.output[before[note.request] :]
            had = sum((places[note.request], tuple(chain[:d])) in spy.rows for d in range(1, len(chain) + 1))
            same = next((i for i, (a, b) in enumerate(zip(chain[:had], text)) if a != b), min(had, len(text)))
            assert note.drafter == "ngram" and note.offered == [1] * had and sum(note.kept) == same
            assert note.depth == had if had < len(chain) else note.depth >= had
            counts.update({"kept": sum(note.kept), "lost": len(chain) - had, "none": not chain, "notes": 1})
        told = {note.request for note in spy.notes}
        assert told == {r.id for r in due if r.id in chains and r.finish is None}
    assert all(counts[what] for what in ("kept", "lost", "none")) and counts["notes"] > 15, counts


def test_who_is_asked() -> None:
    """The first always; the next if it brings more than is expected of the first, and than its rows must; or after
    some rounds all the same, and again at once while it does better than was expected."""
    merged = Merged(Setting(nodes={"ngram+model": 8}).engine().drafters.host, "ngram+model")
    request = Request(0, [1], SamplingParams(), 0, max_tokens=99)
    memory = MergeMemory()

    def asked(part: str, expected: float, row: float = 0.0) -> int:
        item = Item(request, 1, 8, "ngram+model", "exact", min_chance=MinChance(row))
        ask = Ask(0, item, Law.POINT, None)  # type: ignore[arg-type]
        return merged._ask(part, ask, 8, expected, memory).item.nodes

    for _ in range(300):
        records = merged.records.of(request)
        records["ngram"].asked.count(8, 0)
        records["model"].asked.count(8, 2)
        records["model"].used.count(8, 6)
    memory.beaten["model"] = request.round
    assert asked("ngram", 0.0) == 8, "though nothing was kept of it so far"
    assert asked("model", 1.5) == 8 and asked("model", 2.5) == 0
    assert asked("model", 1.5, row=0.05) == 8 and asked("model", 1.5, row=0.1) == 0
    request.round += TRY
    assert asked("model", 2.5) == 8
