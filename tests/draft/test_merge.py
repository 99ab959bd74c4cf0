"""Several drafters in one tree: lossless, legal under `exact` alone, the cheapest asked first."""

import random

import pytest

from paceline.core.errors import InputError, RefusalError
from paceline.core.forest import ROOT, Forest, Law, Role
from paceline.core.params import SamplingParams
from paceline.draft import DRAFTERS
from paceline.draft.merge import Merged, Record, card, union
from paceline.verify import VERIFIERS
from tests.lossless.cases import FEATURES, Setting, Wish, check, run


def wish(prompt: list[int], drafter: str, feature: str = "greedy", seed: int = 0, **changes: object) -> Wish:
    params = {"top_p": 1.0, "top_k": 0, **FEATURES[feature], "drafter": drafter, "seed": seed, "max_tokens": 20}
    return Wish(prompt, SamplingParams(**{**params, **changes}).resolve({}))


@pytest.mark.parametrize("drafter", ["ngram+model", "topk+ngram", "user+rsd_s+ngram", "user+ngram"])
def test_text_equals_plain_decoding(drafter: str) -> None:
    rng = random.Random(0)
    for case in range(3 * len(FEATURES)):
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
        with pytest.raises(
            RefusalError, match="'ngram\\+model' joins several in one tree, which only verifier 'exact'"
        ):
            engine.submit(request.prompt, request.params)


@pytest.mark.parametrize("name", ["model+rsd_c", "ngram+ngram", "none+ngram", "ngram+"])
def test_what_cannot_be_merged_is_refused(name: str) -> None:
    with pytest.raises(InputError):
        DRAFTERS.card(name)


def test_the_cheapest_is_first_and_needs_are_joined() -> None:
    it = card("topk+ngram")
    assert it.parts == ("ngram", "topk") and it.needs == {"draft"} and it.group == "draft" and it.shape == "tree"


def test_union_is_a_trie_in_order_of_first_place() -> None:
    a, b = Forest(), Forest()
    a.add_chain(0, [1, 2, 3], Law.POINT)
    b.add_chain(0, [1, 2, 4], Law.SHARED_NOISE)
    b.add(0, 5, ROOT, law=Law.POINT)
    b.add(0, 1, ROOT, law=Law.POINT, role=Role.PROBE)
    both = union([a, b])
    assert both.token == [1, 2, 3, 4, 5, 1]
    assert both.parent == [ROOT, 0, 1, 1, ROOT, ROOT]
    assert both.role[-1] is Role.PROBE


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
    merged = Merged(engine.host, "user+model")
    engine.drafters["user+model"] = merged
    draft = merged.parts["model"].draft
    merged.parts["model"].draft = lambda asks, view: (asked.extend(a.item.nodes for a in asks), draft(asks, view))[1]  # type: ignore[method-assign]
    for seed in range(6):
        run(engine, [wish(period, "user+model", seed=seed, max_tokens=40, ignore_eos=True)])
    assert merged.first == ["model", "user"]
    assert 0 < sum(n > 0 for n in asked) < len(asked) / 2


def test_a_record_expects_what_it_saw() -> None:
    record = Record()
    assert record.promised(8) == float("inf") and record.expected(3) == 0.0
    for _ in range(200):
        record.drafted.count(3, 2)
        record.drafted.count(8, 1)
    assert record.expected(3) == pytest.approx(2.0, rel=0.05) and record.expected(8) == pytest.approx(1.0, rel=0.05)
    assert record.expected(0) == 0.0


def test_small_drafts_of_a_busy_hour_say_nothing_of_large_ones() -> None:
    record = Record()
    for _ in range(100):
        record.asked.count(15, 3)
    before = record.promised(15)
    for _ in range(500):
        record.asked.count(3, 1)
    assert record.promised(15) == before == pytest.approx(3.0) and record.promised(3) == record.promised(
        7
    ) == pytest.approx(1.0)
