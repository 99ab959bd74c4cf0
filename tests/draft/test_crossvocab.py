"""`crossvocab`: surfaces, the translation and its growing cache, and whole engines with two tokenizers."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from paceline import LLM, RefusalError, SamplingParams
from paceline.core.errors import InputError
from paceline.draft import crossvocab, online
from paceline.draft.crossvocab import FOREIGN, SPELT_AGAIN, ForeignModel, Translation, respelt
from paceline.draft.online import Adapter, Judged
from paceline.draft.surfaces import Surfaces
from tests.tiny import CORPUS, tiny_checkpoint, trained

SMALL, LARGE = (PreTrainedTokenizerFast(tokenizer_object=trained(size)) for size in (290, 400))
"""A draft's tokenizer, and a target's, which has longer tokens."""


@pytest.fixture
def translation() -> Translation:
    return Translation(Surfaces(SMALL, len(SMALL)), Surfaces(LARGE, len(LARGE)))


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=30))
def test_bytes_are_the_text_whatever_it_is(text: str) -> None:
    for tokenizer in (SMALL, LARGE):
        it = Surfaces(tokenizer, len(tokenizer))
        ids = it.spell(text.encode("utf-8", "replace"))
        assert b"".join(it.shown(token) for token in ids) == text.encode("utf-8", "replace")


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 289), max_size=12), st.booleans())
def test_a_translation_has_the_bytes_of_what_it_translates(drafted: list[int], learned: bool) -> None:
    it = Translation(Surfaces(SMALL, len(SMALL)), Surfaces(LARGE, len(LARGE)))
    for token in range(len(LARGE)) if learned else ():
        it.learn(token)
    made = it.of(drafted)
    text, whole = b"".join(it.target.shown(t) for t in made), b"".join(it.own.shown(t) for t in drafted)
    assert whole.startswith(text) and (text == whole or None in [it.one.get(token) for token in drafted])


def test_a_false_rejection_becomes_one_token_after_one_insert(translation: Translation) -> None:
    token = next(t for s, t in translation.target.ids.items() if s and s not in translation.own.ids)
    surface = translation.target.of(token)
    assert surface is not None
    drafted = translation.own.spell(surface)
    assert len(drafted) > 1 and len(translation.of(drafted)) > 1
    translation.learn(token)
    assert translation.of(drafted) == [token]
    assert translation.of([*drafted, *drafted]) == [token, token]


def test_one_tokenizer_needs_no_runs() -> None:
    it = Translation(Surfaces(LARGE, len(LARGE)), Surfaces(LARGE, len(LARGE)))
    for token in range(len(LARGE)):
        it.learn(token)
    ids = LARGE.encode(CORPUS, add_special_tokens=False)
    assert not it.runs and it.of(ids) == ids


def test_the_cache_is_bounded(translation: Translation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossvocab, "MOST_RUNS", 3)
    for token in range(len(LARGE)):
        translation.learn(token)
    assert len(translation.runs) == 3


def test_a_text_that_ends_within_a_character_is_not_spelt(translation: Translation) -> None:
    assert translation.own.spell("東".encode()[:2]) == []
    assert translation.own.spell(b"a\xffb") != []


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return tiny_checkpoint(root / "target", vocab=400, seed=1), tiny_checkpoint(root / "draft", "qwen2", vocab=300)


@pytest.fixture(scope="module")
def llm(models: tuple[Path, Path]) -> Iterator[LLM]:
    options: dict[str, Any] = {"dtype": "float32", "blocks": 60, "block_size": 4, "row_budget": 24, "check": True}
    with LLM(models[0], models[1], "crossvocab", max_requests=8, nodes=4, **options) as made:
        yield made


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_text_is_the_target_s(llm: LLM, temperature: float) -> None:
    prompts = ["Tom has 3 apples", "def add(a, b):", "Größe 🙂 東京", "a", CORPUS[:60]]
    each = [SamplingParams(temperature=temperature, seed=i, max_tokens=24, ignore_eos=True) for i in range(5)]
    want = llm.generate(prompts, [replace(params, drafter="none") for params in each], progress=False)
    got = llm.generate(prompts, each, progress=False)
    assert [answer.token_ids for answer in got] == [answer.token_ids for answer in want]
    assert llm.engine.drafters.errors == [] and sum(answer.stats.drafted for answer in got) > 0
    cache = llm.engine.components[FOREIGN].cache  # type: ignore[attr-defined]
    cache.check_integrity()
    assert cache.room() == cache.num_blocks, "no lease is left"


def test_a_draft_of_the_same_model_is_accepted(models: tuple[Path, Path]) -> None:
    with LLM(models[0], models[0], "crossvocab", dtype="float32", blocks=60, block_size=4, nodes=4) as llm:
        wish = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        [answer] = llm.generate("Tom has 3 apples", wish, progress=False)
        foreign = llm.engine.components[FOREIGN]
        assert isinstance(foreign, ForeignModel)
    assert answer.stats.accepted > 0


def test_another_vocabulary_is_refused_with_what_to_do(models: tuple[Path, Path]) -> None:
    with pytest.raises(RefusalError, match="or drafter crossvocab, which translates"):
        LLM(*models, "model", dtype="float32", blocks=60)
    with pytest.raises(RefusalError, match="needs a draft model of any vocabulary"):
        LLM(models[0], drafter="crossvocab", dtype="float32", blocks=60)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=20), max_size=12))
def test_a_text_that_grows_is_spelt_as_a_whole_one(parts: list[str]) -> None:
    """Piece by piece, also where a piece joins the last token of the one before."""
    own, text, ids, spelt = Surfaces(SMALL, len(SMALL)), (CORPUS * 2).encode(), list[int](), 0
    for part in parts:
        text += part.encode("utf-8", "replace")
        ids, spelt = respelt(own, ids, text, spelt), len(text)
        assert ids == own.spell(text, start=True)


def test_of_a_long_text_the_end_alone_is_spelt_again(monkeypatch: pytest.MonkeyPatch) -> None:
    own, text, read = Surfaces(SMALL, len(SMALL)), (CORPUS * 4).encode(), list[int]()
    ids, spell = own.spell(text, start=True), Surfaces.spell
    monkeypatch.setattr(Surfaces, "spell", lambda self, of, start=False: read.append(len(of)) or spell(self, of, start))
    assert respelt(own, ids, text + b" and so on", len(text)) == spell(own, text + b" and so on", True)
    assert len(ids) > 2 * SPELT_AGAIN and len(read) == 1 and read[0] < len(text) // 2
    assert respelt(own, ids, text + b"\xe6", len(text)) == [], "within a character"


def kept_and_drafted(models: tuple[Path, Path], **options: Any) -> tuple[int, int]:
    options = {"dtype": "float32", "blocks": 60, "block_size": 4, "nodes": 8, "length": "fixed", **options}
    with LLM(*models, "crossvocab", **options) as llm:
        wish = [SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, drafter=each) for each in
                ("crossvocab", "none")]  # fmt: skip
        found, plain = llm.generate(["Tom has 3 apples"] * 2, wish, progress=False)
        assert found.token_ids == plain.token_ids and llm.engine.drafters.errors == []
        runs = llm.engine.drafters.drafters["crossvocab"].translation.runs  # type: ignore[attr-defined]
        assert bool(runs) == ("crossvocab.translation=map" not in options.get("drafter_settings", ()))
    return found.stats.accepted, found.stats.drafted


def test_a_draft_ends_where_it_is_unsure(models: tuple[Path, Path]) -> None:
    """The tiny models know nothing, so a draft whose chance counts is short; at its length it is long."""
    long = kept_and_drafted(models, drafter_settings=("crossvocab.stop=length", "crossvocab.translation=map"))
    short = kept_and_drafted(models)
    assert 0 < short[1] < long[1]


def test_auto_takes_a_draft_of_another_vocabulary(models: tuple[Path, Path]) -> None:
    with LLM(*models, dtype="float32", blocks=60, block_size=4) as llm:
        assert "crossvocab" in llm.engine.drafters.arms("auto", "exact")
        assert "model" not in llm.engine.drafters.arms("auto", "exact")
    with LLM(models[0], models[0], dtype="float32", blocks=60, block_size=4) as llm:
        assert "crossvocab" not in llm.engine.drafters.arms("auto", "exact")


def test_a_setting_that_no_drafter_has_is_refused(models: tuple[Path, Path]) -> None:
    for wrong, sentence in (
        ("swift.ratio=2", "must be a number from 0.01 to 0.95"),
        ("swift.depth=2", "has no setting 'depth'; it has ratio"),
        ("ngram.ratio=1", "it has none"),
        ("del.stop=tau", "must be one of length, confidence"),
        ("ratio", "a setting is DRAFTER.NAME=VALUE"),
        ("nobody.x=1", "Unknown drafter"),
    ):
        with pytest.raises(InputError, match=sentence):
            LLM(models[0], dtype="float32", blocks=60, drafter_settings=(wrong,))


# -- learning while it serves ------------------------------------------------------------------------------------------


def answers(llm: LLM, count: int) -> list[list[int]]:
    prompts = ["Tom has 3 apples", "def add(a, b):", CORPUS[:60], "one two three"][:count]
    each = [SamplingParams(temperature=0, seed=i, max_tokens=24, ignore_eos=True) for i in range(count)]
    return [answer.token_ids for answer in llm.generate(prompts, each, progress=False)]


def test_an_adapter_learns_what_follows_its_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is served once it names more tokens of new rows than the model alone, not where there is nothing to find."""
    monkeypatch.setattr(online, "EPOCHS", 1000)
    stream = torch.Generator().manual_seed(0)
    table = torch.randn(11, 24, generator=stream)
    for follows, served in ((torch.randn(11, 24, generator=stream), True), (None, False)):
        adapter = Adapter(lambda hidden: hidden @ table.T, 24, seed=1)
        hidden = torch.randn(64, 24, generator=stream)
        assert not adapter.step() and adapter(hidden) is hidden
        for _ in range(40):
            rows = torch.randn(64, 24, generator=stream)
            adapter.add(rows, (rows @ (table if follows is None else follows).T).argmax(-1), torch.ones(64))
            for _ in range(10):
                assert adapter.step()
        assert (adapter.served is not None) == served and adapter.steps == 400
        assert (adapter(hidden) is not hidden) == served


def test_the_divergence_is_that_of_the_tokens_that_both_have() -> None:
    """Against the sum over all shared tokens, where all of them are among the likely ones; where some are not, they
    count as one event; a row without any is 0, and a part of a token is learned as a token."""
    stream = torch.Generator().manual_seed(3)
    logits, shared = torch.randn(4, 9, generator=stream), torch.tensor([True] * 6 + [False] * 3)
    log_p = torch.randn(4, 6, generator=stream).log_softmax(-1)
    log_q = logits[:, :6].log_softmax(-1)
    whole = Judged.of([(torch.arange(6), row) for row in log_p[:3]] + [None], 6)
    want = (log_q.exp() * (log_q - log_p)).sum(-1)
    torch.testing.assert_close(whole.reverse_kl(logits, shared)[:3], want[:3], rtol=1e-4, atol=1e-4)
    assert float(whole.reverse_kl(logits, shared)[3]) == 0
    part = Judged.of([(torch.arange(3), row[:3]) for row in log_p], 6)
    q, p = log_q[:, :3].exp(), log_p[:, :3].exp()
    rest = (1 - q.sum(-1)) * ((1 - q.sum(-1)) / (1 - p.sum(-1))).log()
    want = (q * (q / p).log()).sum(-1) + rest
    torch.testing.assert_close(part.reverse_kl(logits, shared), want, rtol=1e-4, atol=1e-4)
    adapter = Adapter(lambda hidden: hidden, 9, shared=shared, judged=6)
    token = torch.tensor([0, 1, 8, 2])
    losses = adapter.losses(logits, token, whole)
    told = torch.nn.functional.cross_entropy(logits, token, reduction="none")
    torch.testing.assert_close(losses[:2], whole.reverse_kl(logits, shared)[:2])
    torch.testing.assert_close(losses[2:], told[2:])


def test_an_adapter_learns_what_a_verifier_thought(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens are draws, of which few are seen; the distribution that they are drawn from says more."""
    monkeypatch.setattr(online, "EPOCHS", 1000)
    stream = torch.Generator().manual_seed(0)
    table, other = torch.randn(11, 24, generator=stream), torch.randn(11, 24, generator=stream)
    adapter = Adapter(lambda hidden: hidden @ table.T, 24, seed=1, shared=torch.ones(11, dtype=torch.bool), judged=11)
    rows = torch.randn(256, 24, generator=stream)
    law = (rows @ other.T / 2).log_softmax(-1)
    drawn = torch.multinomial(law.exp(), 1, generator=stream)[:, 0]
    adapter.add(rows, drawn, torch.ones(256), Judged(torch.arange(11).expand(256, 11), law))
    judged = Judged(torch.arange(11).expand(256, 11), law)
    for _ in range(60):
        assert adapter.step()
    after = judged.reverse_kl(adapter.logits(rows).detach(), torch.ones(11, dtype=torch.bool)).mean()
    before = judged.reverse_kl((rows.bfloat16() @ table.T.bfloat16()).float(), torch.ones(11, dtype=torch.bool)).mean()
    assert float(after) < 0.9 * float(before)


def test_a_short_stream_is_not_learned_by_heart() -> None:
    adapter = Adapter(lambda hidden: hidden, 8)
    adapter.add(torch.randn(40, 8), torch.zeros(40, dtype=torch.int64), torch.ones(40))
    assert sum(adapter.step() for _ in range(50)) == online.EPOCHS * 40 // online.STEP_ROWS


def test_rows_that_wait_are_bounded() -> None:
    adapter = Adapter(lambda hidden: hidden, 8, most=480)
    for _ in range(5):
        adapter.add(torch.randn(6, 8), torch.zeros(6, dtype=torch.int64), torch.ones(6))
    assert len(adapter.token) == adapter.rows == 10 and len(adapter.hidden) == 10


def test_it_learns_on_line_and_the_text_stays(models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair that it is taught: a state of the draft model over the text so far, and the id that follows there."""
    taught: list[tuple[torch.Tensor, torch.Tensor]] = []
    judged: list[Judged] = []
    add = Adapter.add

    def watched(
        self: Adapter, hidden: torch.Tensor, token: torch.Tensor, weight: torch.Tensor, law: Judged | None = None
    ) -> None:
        taught.append((hidden, token))
        judged.extend([law] if law else [])
        for row, said in zip(law.ids, token.tolist()) if law else ():
            assert row[0] < 0 or row[0] == said, "greedy: the likeliest token of both is the one that was said"
        add(self, hidden, token, weight, law)

    monkeypatch.setattr(Adapter, "add", watched)
    options: dict[str, Any] = {"dtype": "float32", "blocks": 60, "block_size": 4, "row_budget": 24, "check": True}
    with LLM(*models, "crossvocab", online=0.5, **options) as llm:
        wish = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, drafter="none")
        plain = [answer.token_ids for answer in llm.generate(["Tom has 3 apples"], wish, progress=False)]
        assert answers(llm, 1) == plain and llm.engine.drafters.errors == []
        foreign: Any = llm.engine.components[FOREIGN]
        adapter = foreign.adapter
        deadline = time.monotonic() + 30
        while adapter.steps < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert adapter.steps >= 3 and float(adapter.up.detach().abs().sum()) > 0
        whole = (*llm.text.encode("Tom has 3 apples"), *plain[0])
        said = foreign.own.spell(b"".join(map(foreign.target.shown, whole)), start=True)
        assert answers(llm, 4)[0] == plain[0] and llm.engine.drafters.errors == []
    assert sum(int((law.ids[:, 0] >= 0).sum()) for law in judged) > 5
    ids = torch.cat([token for _, token in taught[:60]]).tolist()
    text = ",".join(map(str, said))
    assert len(ids) > 5 and ",".join(map(str, ids[:5])) in text


def test_off_it_has_no_adapter_and_no_thread(llm: LLM) -> None:
    foreign: Any = llm.engine.components[FOREIGN]
    assert foreign.adapter is None and answers(llm, 2)
    assert foreign.adapter is None


def test_a_share_that_is_none_and_a_drafter_that_does_not_learn(models: tuple[Path, Path]) -> None:
    with pytest.raises(InputError, match="share of a core"):
        LLM(*models, "crossvocab", dtype="float32", blocks=60, online=1.5)
    with pytest.raises(RefusalError, match="only the drafter crossvocab learns"):
        LLM(models[0], drafter="ngram", dtype="float32", blocks=60, online=0.5)
