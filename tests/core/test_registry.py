"""Legality is a join of cards, and every refusal says what to do."""

import pytest

from paceline.core.errors import InputError
from paceline.core.forest import Law
from paceline.core.registry import Accepts, Offers, law_for, refusal
from paceline.draft import DRAFTERS
from paceline.verify import VERIFIERS

ALL = {"draft", "callable"}


def test_the_registries_hold_what_the_docs_promise() -> None:
    assert DRAFTERS.names() == ["model", "ngram", "none", "user"]
    assert VERIFIERS.names() == ["chain", "exact"]


def test_the_matrix_of_this_version() -> None:
    refused = {
        (d, v): refusal(d, offers, v, accepts, ALL)
        for d, offers in DRAFTERS.items()
        for v, accepts in VERIFIERS.items()
    }
    assert [pair for pair, reason in refused.items() if reason] == [("user", "chain")]
    assert "chains only" in str(refused["user", "chain"])


def test_needs_are_named() -> None:
    card, exact = DRAFTERS.card("model"), VERIFIERS.card("exact")
    assert refusal("model", card, "exact", exact, ()) == "Drafter 'model' needs a draft model (give draft=PATH)."


def test_shared_noise_never_meets_a_rule_that_looks_at_q() -> None:
    shared = Offers("", frozenset({Law.SHARED_NOISE}), "chain", 4)
    assert "shared_noise" in str(refusal("x", shared, "chain", VERIFIERS.card("chain"), ALL))
    assert law_for(DRAFTERS.card("model"), VERIFIERS.card("chain")) is Law.SAMPLED
    assert law_for(DRAFTERS.card("model"), VERIFIERS.card("exact")) is Law.SHARED_NOISE


def test_every_verifier_states_its_guarantee() -> None:
    assert {name: card.guarantee for name, card in VERIFIERS.items()} == {"chain": "law", "exact": "text"}
    assert all(isinstance(card, Accepts) and card.summary for _, card in VERIFIERS.items())


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(InputError, match="known are model, ngram, none, user"):
        DRAFTERS.get("medusa")
