"""`docs/matrix.md` is what the registries say now, its refusals are the engine's, and its legal cells hold."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from paceline.core.errors import RefusalError
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.draft import DRAFTERS
from paceline.draft.head import HEADS
from paceline.engine.loop import Engine
from tests.lossless.cases import (
    AUTOMATON,
    EOS,
    FEATURES,
    Setting,
    Wish,
    check_end,
    check_logprobs,
    check_stats,
    laws,
    masked,
    plain,
    run,
)  # fmt: skip
from tests.lossless.matrix_page import EACH, HAVE, LEAST, NAME, PAGE, legal, page, refusals
from tests.lossless.test_mutants import penalties_frozen
from tests.toy import VOCAB

REFUSED = [pair for pair, reason in refusals().items() if reason]
BATCH = 9
"""Requests of one engine."""
SHARED_STATE = {
    "crossvocab", "del", "dyspec", "dyspec_threshold", "early_exit", "easyspec", "lookahead", "mirror", "model",
    "pearl", "rsd_c", "sequoia", "specdec", "stand", "stand_greedy", "suffix", "swift", *HEADS.names(),
}  # fmt: skip
"""Drafters that learn from all requests, or from more of one than its text (the run drops what they remember): under a
rule that looks at q, mates may change the text, never its distribution."""


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "regenerate it: python -m tests.lossless.matrix_page > docs/matrix.md"


def printed() -> tuple[dict[tuple[str, str], str], dict[str, str]]:
    """The committed page's first table {(drafter, verifier): cell} and its footnotes {number: sentence}."""
    lines = PAGE.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines[start : lines.index("", start)]]
    cells = {(row[0], verifier): cell for row in rows[2:] for verifier, cell in zip(rows[0][1:], row[1:])}
    return cells, dict(line.split(". ", 1) for line in lines if ". Drafter" in line)


def refused_with(engine: Engine, drafter: str, verifier: str) -> str:
    """The sentence of the engine's refusal; nothing was queued."""
    with pytest.raises(RefusalError) as caught:
        engine.submit([1, 2, 3], SamplingParams(seed=0, drafter=drafter, verifier=verifier).resolve({}))
    assert not engine.busy
    return str(caught.value)


@pytest.mark.parametrize(("drafter", "verifier"), REFUSED)
def test_a_refused_cell_is_refused_with_the_printed_sentence(drafter: str, verifier: str) -> None:
    cells, notes = printed()
    word, number = cells[drafter, verifier].strip(")").split(" (")
    assert word == "refused"
    assert refused_with(Setting().engine(), drafter, verifier) == notes[number].replace(NAME, drafter)


def test_a_missing_need_is_refused() -> None:
    """Every drafter with needs, on an engine that was given nothing, under every verifier."""
    toy = Setting()
    target = toy.target()
    target.abilities = frozenset({"embed"})
    bare = Engine(target, toy.engine().config)
    assert not HAVE & {*bare.drafters.have} and {*toy.engine().drafters.have} >= HAVE
    for (drafter, verifier), card in ((pair, DRAFTERS.card(pair[0])) for pair in refusals()):
        if card.needs:
            texts = [f"Drafter {drafter!r} needs {need.text}." for need in card.needs]
            assert refused_with(bare, drafter, verifier) in texts


# -- generated cases ---------------------------------------------------------------------------------------------------


def random_setting(rng: random.Random, **fixed: Any) -> Setting:
    drawn = {
        "model_seed": rng.randrange(6), "sharpness": rng.choice([0.5, 2.0, 4.0]),
        "draft_noise": rng.choice([0.0, 0.3, 1.0]), "blocks": rng.randint(1, 60),
        "block_size": rng.choice([1, 2, 3, 8]), "max_requests": rng.randint(1, 12),
        "row_budget": rng.choice([1, 9, 33, 120]),
        "nodes": {name: rng.randint(1, 12) for name in DRAFTERS.names()}, "prefix_cache": rng.random() < 0.5,
        "check": rng.random() < 0.25,
    }  # fmt: skip
    return Setting(**{**drawn, **fixed})


def random_wish(rng: random.Random, drafter: str, verifier: str, feature: str) -> Wish:
    base: dict[str, Any] = {
        "top_k": 0, "top_p": 1.0, "n": rng.choice([1, 1, 1, 2]), "seed": rng.getrandbits(64),
        "max_tokens": rng.randint(6, 14), "ignore_eos": rng.random() < 0.5, "drafter": drafter, "verifier": verifier,
        "logprobs": rng.choice([None, None, 1]),
    }  # fmt: skip
    prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 20))]
    return Wish(prompt, SamplingParams(**{**base, **FEATURES[feature]}).resolve({}))


def check_request(setting: Setting, wish: Wish, request: Request, *, text: bool) -> None:
    """What holds of every single run under any rule. With `text`, and for greedy requests: the plain text."""
    check_end(wish, request)
    check_stats(request)
    if text or wish.params.greedy:
        assert request.output == plain(setting.target(), wish.prompt, wish.params, request.lineage)
        if wish.params.logprobs is None:
            return
    p, log_p = laws(setting, wish, request)
    assert all(float(row[token]) > 0 for row, token in zip(p, request.output)), "plain decoding cannot emit this"
    if wish.params.logprobs is not None:
        check_logprobs(wish, request, log_p)


def check_run(setting: Setting, wishes: list[Wish], seed: int, *, text: bool, twice: bool) -> list[Request]:
    """Every request holds; `twice`: the same run again, arrivals and lost slots too, is the same run."""
    engine = setting.engine()
    groups = run(engine, wishes, random.Random(seed))
    assert engine.drafters.errors == []
    for wish, group in zip(wishes, groups):
        assert [r.lineage for r in group] == ([()] if wish.params.n == 1 else [(i,) for i in range(wish.params.n)])
        for request in group:
            check_request(setting, wish, request, text=text)
    if twice:
        again = run(setting.engine(), wishes, random.Random(seed))
        assert [[(r.output, r.stats) for r in g] for g in again] == [[(r.output, r.stats) for r in g] for g in groups]
    return [request for group in groups for request in group]


def check_cell(drafter: str, verifier: str, features: list[str], seed: int) -> list[Request]:
    """One generated request for each of `features`, in shuffled batches; in the first, blocks are few and answers long,
    so that requests are pre-empted however many drafts are kept."""
    rng, out = random.Random(f"{drafter} {verifier} {seed}"), []
    text = (drafter, verifier) in legal("text")
    wishes = [random_wish(rng, drafter, verifier, feature) for feature in features]
    rng.shuffle(wishes)
    for start in range(0, len(wishes), BATCH):
        tight = {"blocks": 1, "block_size": 4, "max_requests": 8, "row_budget": 33} if start == 0 else {}
        setting, arrivals = random_setting(rng, **tight), rng.getrandbits(32)
        batch = wishes[start : start + BATCH]
        if tight:
            batch = [replace(wish, params=replace(wish.params, max_tokens=24)) for wish in batch]
        twice = not text and start == BATCH
        out += check_run(setting, batch, arrivals, text=text, twice=twice)
    return out


@pytest.mark.parametrize(("drafter", "verifier"), legal("distribution", "none"))
def test_a_legal_cell_holds(drafter: str, verifier: str) -> None:
    """Requests of every feature as many; drafts were made and requests pre-empted in it. A drafter that found nothing
    to guess in these texts gets others, twice at most. `test_matrix.test_cells` has the cells that keep the
    text."""
    requests = check_cell(drafter, verifier, list(FEATURES) * EACH, 0)
    assert len(requests) >= EACH * len(FEATURES)
    for seed in (2, 3):
        if drafter not in ("none", "auto") and not any(request.stats.drafted for request in requests):
            requests += check_cell(drafter, verifier, list(FEATURES) * EACH, seed)
    assert drafter in ("none", "auto") or sum(request.stats.drafted for request in requests) > 0
    assert sum(request.stats.preempted for request in requests) > 0


@pytest.mark.full
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize(("drafter", "verifier"), legal())
def test_a_legal_cell_holds_full(drafter: str, verifier: str, feature: str) -> None:
    """At least 200 requests a cell and feature."""
    check_cell(drafter, verifier, [feature] * LEAST, 1)


def test_batch_mates_do_not_change_the_text_of_a_seed() -> None:
    """With rows and blocks for everybody, under every rule: alone and beside requests of all other cells. Not where the
    planner chooses and a rule looks at q: then the distribution is kept, and the text depends on who drafted."""
    rng = random.Random(0)
    ample = {"blocks": 2000, "max_requests": 80, "row_budget": 4000, "tbt_target_ms": 0.0}
    for _ in range(2):
        setting = random_setting(rng, **ample)
        cells = [
            (d, v) for d, v in legal()
            if v == "exact" or (d not in SHARED_STATE and not DRAFTERS.card(d).arms)
        ]  # fmt: skip
        wishes = [random_wish(rng, d, v, rng.choice(list(FEATURES))) for d, v in cells]
        rng.shuffle(wishes)
        engine = setting.engine()
        groups = run(engine, wishes, rng)
        assert engine.drafters.errors == []
        for wish, group in zip(wishes, groups):
            [alone] = run(setting.engine(), [wish])
            assert [r.output for r in alone] == [r.output for r in group], wish


@pytest.mark.parametrize("feature", ["mask", "grammar"])
@pytest.mark.parametrize("verifier", sorted({v for _, v in legal()}))
def test_a_stale_grammar_state_is_caught(verifier: str, feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: inside a draft the mask is that of the draft's root."""
    penalties_frozen(monkeypatch)
    with pytest.raises(AssertionError):
        check_cell("model", verifier, [feature] * LEAST, 2)


def test_the_mask_depends_on_the_path() -> None:
    """Its masks are all different, so that a stale state shows, and only some texts can end."""
    masks = [tuple(state) for state in AUTOMATON]
    assert len(set(masks)) == len(masks) and [EOS in mask for mask in masks] == [True, False, False, False, False]
    assert masked((), (0, 1, 2, 3), torch.zeros(VOCAB)).isfinite().tolist() == [t in AUTOMATON[0] for t in range(VOCAB)]
    assert not masked((), (0, 4), torch.zeros(VOCAB)).isfinite().any()
