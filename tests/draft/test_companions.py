"""Companions of a draft model through a whole engine: `specdec` ends drafts by its head, `s2d` fills deferred K/V."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.core.component import DRAFT
from paceline.core.errors import CheckpointError, RefusalError
from paceline.draft.acceptance import AcceptanceHead
from paceline.draft.exits import Exits
from paceline.draft.s2d import S2DDrafter
from tests.tiny import tiny_checkpoint

PROMPTS = [[5, 9, 14, 3, 8], [7, 7, 2], [11] * 9]
TOKENS = 30


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The draft is the target itself: what it says is right, if its K/V is."""
    path = tmp_path_factory.mktemp("companions")
    tiny_checkpoint(path / "target", seed=1)
    tiny_checkpoint(path / "draft", seed=1)
    return path


def served(pair: Path, drafter: str, **more: Any) -> tuple[list[list[int]], list[Any], Any]:
    """(texts, statistics, the engine's components)."""
    settings: dict[str, Any] = {"dtype": "float32", "length": "fixed", "blocks": 64, **more}
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=TOKENS, ignore_eos=True)
    with LLM(pair / "target", pair / "draft", drafter=drafter, **settings) as llm:
        outputs = llm.generate(PROMPTS, params, progress=False)
        return [list(o.token_ids) for o in outputs], [o.stats for o in outputs], llm.engine.components


def exits(pair: Path, thresholds: list[float]) -> None:
    Exits([1, 2], thresholds).save(pair / "draft")


def head(pair: Path, bias: float, **settings: Any) -> None:
    """A head that says the same of every token: sigmoid(bias)."""
    made = AcceptanceHead(32, blocks=1, **settings)
    with torch.no_grad():
        for weight in made.parameters():
            weight.zero_()
        made.out.bias.copy_(torch.tensor([0.0, bias]))
    made.save(pair / "draft")


def test_without_its_companion_a_drafter_is_refused(tmp_path: Path, pair: Path) -> None:
    tiny_checkpoint(tmp_path / "draft", seed=1)
    for drafter, what in (("s2d", "exits"), ("specdec", "an acceptance head")):
        with pytest.raises(RefusalError, match=f"needs {what} next to the draft model"):
            LLM(pair / "target", tmp_path / "draft", drafter=drafter, dtype="float32")
    Exits([1, 5]).save(tmp_path / "draft")
    with pytest.raises(CheckpointError, match="ends behind layer 5"):
        LLM(pair / "target", tmp_path / "draft", drafter="s2d", dtype="float32")


@pytest.mark.parametrize("native", ["0", "1"])
def test_any_exit_keeps_the_text_and_the_deepest_is_the_model(
    pair: Path, native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_NATIVE", native)
    plain, *_ = served(pair, "none")
    for thresholds, counts in (([1.1, 0.0], (False, True)), ([0.0, 0.0], (True, False)), ([0.03, 0.0], (True, True))):
        exits(pair, thresholds)
        texts, stats, components = served(pair, "s2d")
        assert texts == plain
        used = components["exits"].counts
        assert tuple(count > 0 for count in used) == counts, used
        if not counts[0]:
            assert all(sum(s.kept) == sum(s.offered) for s in stats)  # deep drafts of the target itself are right


def test_deferred_rows_get_the_keys_and_values_of_a_whole_pass(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind every step: all rows up to the frontier have, at all layers, what one pass over the text gives."""
    monkeypatch.setenv("PACELINE_NATIVE", "0")
    exits(pair, [0.03, 0.0])
    original, seen = S2DDrafter.learn, []

    def learn(self: S2DDrafter, view: Any) -> None:
        original(self, view)
        for ask in view.asks:
            rows = view.slots[ask.request.id].reach
            assert rows == sorted(rows, reverse=True)
            seen.append((self, ask.txn.lease.slots(0, rows[-1]), ask.request, ask.txn.table, rows))

    monkeypatch.setattr(S2DDrafter, "learn", learn)
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=TOKENS, ignore_eos=True)
    with LLM(pair / "target", pair / "draft", drafter="s2d", dtype="float32", length="fixed", blocks=64) as llm:
        llm.generate(PROMPTS[:1], params, progress=False)
        drafter, slots, request, table, _ = seen[-1]
        text = request.tokens[: len(slots)]  # the step's own tokens joined it after `learn`
        assert len(text) == len(slots) > len(PROMPTS[0])
        found = drafter.model.read(slots)
        from paceline.core.rows import RowsBuilder

        builder = RowsBuilder()
        builder.add(text, slots, table, 0)
        drafter.model.forward(builder.build())
        mine, whole = (
            torch.frombuffer(bytearray(it), dtype=torch.float32) for it in (found, drafter.model.read(slots))
        )
        torch.testing.assert_close(mine, whole, atol=1e-5, rtol=1e-4)
    assert any(rows[0] > rows[-1] for *_, rows in seen), "nothing was deferred"
    assert llm is not None and DRAFT == "draft"


def test_requests_share_the_passes_of_a_stage(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three requests at once draft what each drafts alone, in about as many passes as one of them."""
    exits(pair, [0.03, 0.0])
    passes, run = [0], S2DDrafter.run

    def counted(self: S2DDrafter, *given: Any) -> Any:
        passes[0] += 1
        return run(self, *given)

    monkeypatch.setattr(S2DDrafter, "run", counted)
    found: dict[int, tuple[int, list[Any]]] = {}
    for many in (1, 3):
        passes[0] = 0
        texts, stats, components = served(pair, "s2d", max_requests=many, nodes=4)
        assert all(components["exits"].counts)
        found[many] = passes[0], [(text, s.drafted, s.accepted) for text, s in zip(texts, stats)]
    assert found[1][1] == found[3][1]
    assert found[3][0] < 0.6 * found[1][0]


def test_trees_of_the_deepest_exit_are_topk_and_shallow_ones_keep_the_text(
    pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ended early is computed again before anything reads its K/V."""
    monkeypatch.setenv("PACELINE_NATIVE", "0")
    plain, *_ = served(pair, "none")
    _, best, _ = served(pair, "topk", nodes=6)
    drafts = {}
    for thresholds, counts in (([1.1, 0.0], (False, True)), ([0.0, 0.0], (True, False)), ([0.02, 0.0], (True, True))):
        exits(pair, thresholds)
        texts, stats, components = served(pair, "s2d_tree", nodes=6)
        used = tuple(count > 0 for count in components["exits"].counts)
        assert texts == plain
        drafts[counts] = [(s.drafted, s.accepted, s.passes) for s in stats]
        assert counts == (True, True) or used == counts
    assert drafts[False, True] == [(s.drafted, s.accepted, s.passes) for s in best]
    assert drafts[True, False] != drafts[False, True]


def test_a_constant_head_drafts_so_many(pair: Path) -> None:
    """chance c: drafts have floor(log(1 - risk) / log c) + 2 tokens, within the bounds."""
    plain, *_ = served(pair, "none")
    for bias, settings, length in (
        (1.3863, {"risk": 0.7, "least": 1}, 7),  # c = 0.8: 5 + 2
        (-9.0, {"risk": 0.7, "least": 3}, 3),
        (9.0, {"risk": 0.7, "most": 4}, 4),
        (-9.0, {"risk": 1.0, "most": 6}, 6),
    ):
        head(pair, bias, **settings)
        texts, stats, _ = served(pair, "specdec", nodes=20)
        assert texts == plain
        assert max(len(s.offered) for s in stats) == length


def test_the_policy_gives_room(pair: Path) -> None:
    head(pair, 9.0, most=9)
    texts, stats, _ = served(pair, "specdec", length="specdec")
    assert texts == served(pair, "none")[0] and max(len(s.offered) for s in stats) == 9
