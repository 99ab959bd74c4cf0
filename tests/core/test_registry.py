"""Legality is a join of cards, and every refusal says what to do."""

import itertools

import pytest

from paceline.core.errors import InputError
from paceline.core.forest import Law
from paceline.core.registry import Accepts, Offers, law_for, refusal
from paceline.draft import DRAFTERS
from paceline.verify import VERIFIERS
from tests.lossless.cases import HAVE

ALL = HAVE


def test_the_registries_hold_what_the_docs_promise() -> None:
    trees = {"rsd_c", "rsd_s", "spectr", "dyspec", "dyspec_threshold", "sequoia", "topk"}
    assert {"model", "ngram", "none", "user", *trees} <= set(DRAFTERS.names())
    assert {"chain", "exact", "kseq", "rrs", "typical"} <= set(VERIFIERS.names())


def test_the_matrix_holds_for_every_pair() -> None:
    """A pair is refused when a rule for chains meets trees or no distribution is common, and for nothing else; `exact`
    takes every drafter."""
    for (d, offers), (v, accepts) in itertools.product(DRAFTERS.items(), VERIFIERS.items()):
        reason = refusal(d, offers, v, accepts, ALL)
        tree = offers.shape == "tree" and accepts.shape == "chain"
        assert (reason is None) == (not tree and bool(offers.laws & set(accepts.laws)))
        assert reason is None or (repr(d) in reason and repr(v) in reason and ("chains only" in reason) == tree)
        if accepts.guarantee == "text":
            assert reason is None
        if reason is None and accepts.guarantee == "distribution":
            assert law_for(offers, accepts) is not Law.SHARED_NOISE


def test_the_rules_that_look_at_q() -> None:
    """What the distributions mean: no rule but k-SEQ's wants i.i.d. candidates, and it wants nothing else."""
    legal = {
        v: {d for d, offers in DRAFTERS.items() if refusal(d, offers, v, accepts, ALL) is None}
        for v, accepts in VERIFIERS.items()
    }
    assert {"model", "ngram", "none"} <= legal["chain"] and not {"user", "rsd_s", "spectr"} & legal["chain"]
    assert {"model", "spectr"} <= legal["kseq"] and not {"ngram", "topk", "rsd_c"} & legal["kseq"]
    assert {"model", "ngram", "none", "user", "rsd_c", "rsd_s", "spectr", "dyspec", "sequoia", "topk"} <= legal["rrs"]


def test_needs_are_named() -> None:
    card, exact = DRAFTERS.card("model"), VERIFIERS.card("exact")
    assert refusal("model", card, "exact", exact, ()) == "Drafter 'model' needs a draft model (give draft=PATH)."


def test_shared_noise_never_meets_a_rule_that_looks_at_q() -> None:
    shared = Offers("", frozenset({Law.SHARED_NOISE}), "chain", 4)
    assert "shared_noise" in str(refusal("x", shared, "chain", VERIFIERS.card("chain"), ALL))
    assert law_for(DRAFTERS.card("model"), VERIFIERS.card("chain")) is Law.SAMPLED
    assert law_for(DRAFTERS.card("model"), VERIFIERS.card("exact")) is Law.SHARED_NOISE


def test_every_verifier_states_its_guarantee() -> None:
    known = {"chain": "distribution", "exact": "text", "kseq": "distribution", "rrs": "distribution", "typical": "none"}
    assert known.items() <= {name: card.guarantee for name, card in VERIFIERS.items()}.items()
    assert all(isinstance(card, Accepts) and card.summary for _, card in VERIFIERS.items())


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(InputError, match="known are " + ", ".join(DRAFTERS.names())):
        DRAFTERS.get("no such drafter")
