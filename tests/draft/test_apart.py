"""What drafters count is apart by tenant: nobody's drafts follow how those for another's texts were judged."""

from types import SimpleNamespace
from typing import cast

import pytest

from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.draft.apart import MOST_TENANTS, Apart
from tests.lossless.cases import Setting, Wish, run

DRAFTERS = ("model", "sequoia", "rsd_c", "dyspec", "dyspec_threshold", "ngram+model")


def of(tenant: str) -> Request:
    return cast(Request, SimpleNamespace(extra_key=tenant))


def test_a_tenant_finds_its_own_counts_and_a_mixed_step_none() -> None:
    apart: Apart[list[int]] = Apart(list)
    apart.of(of("a"), of("a")).append(1)
    apart.of(of("b")).append(2)
    apart.of(of("a"), of("b")).append(3)
    assert (apart.of(of("a")), apart.of(of("b")), apart.of(of("a"), of("b"))) == ([1], [2], [])
    for other in range(MOST_TENANTS - 1):
        apart.of(of(str(other)))
    assert apart.of(of("b")) == [2] and apart.of(of("a")) == [], "the one that was asked for longest ago is forgotten"


def wish(drafter: str, tenant: str, seed: int, tokens: int) -> Wish:
    verifier = "rrs" if drafter.startswith(("rsd", "dyspec")) else "exact"
    params = SamplingParams(temperature=0.9, max_tokens=tokens, seed=seed, ignore_eos=True, tenant=tenant,
                            drafter=drafter, verifier=verifier)  # fmt: skip
    return Wish([1, 2, 3], params.resolve({}))


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_what_one_tenant_sent_changes_no_draft_of_another(drafter: str) -> None:
    """The rounds of B's request after many of A's are those without them; those of A's own are not."""

    def rounds(first: int, tenant: str) -> list[int]:
        engine = Setting(draft_noise=3.0).engine()
        for seed in range(first):
            run(engine, [wish(drafter, "a", seed, 30)])
        [[request]] = run(engine, [wish(drafter, tenant, 99, 60)])
        return [*request.stats.offered, -1, *request.stats.kept]

    assert rounds(0, "b") == rounds(12, "b")
    assert rounds(12, "a") != rounds(0, "a")
