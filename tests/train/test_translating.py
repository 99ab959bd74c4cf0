"""`crossvocab`: an adapter for a draft model of another vocabulary. It learns, and what was trained is what drafts."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline import LLM, SamplingParams
from paceline.core.errors import CheckpointError
from paceline.draft.crossvocab import FOREIGN, Translation
from paceline.draft.online import hybrid
from paceline.train.crossvocab import CrossVocabTraining
from paceline.train.loop import TrainingPlan, TrainingProgress, opened, train
from tests.tiny import tiny_checkpoint

LINES = [
    {"prompt": f"Tom has {n} apples and buys {n + 1} more.", "answer": f"He has {2 * n + 1} now."} for n in range(40)
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("translating")
    tiny_checkpoint(path / "target", vocab=400, seed=1)
    tiny_checkpoint(path / "draft", "qwen2", vocab=300)
    (path / "data.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    return path


def plan(place: Path, out: str, **changes: Any) -> TrainingPlan:
    mine = TrainingPlan(
        method="crossvocab", target=place / "target", data=(place / "data.jsonl",), out=place / out, minutes=None,
        steps=40, dtype="float32", answers=False, tokens=256, warmup=2, lr=3e-2, held=4,
        settings={"draft": str(place / "draft")},
    )  # fmt: skip
    return replace(mine, **changes)


def drafts(place: Path, draft: Path, **options: Any) -> tuple[list[int], list[int], int]:
    """A text with drafts, without, and how many tokens were drafted."""
    options = {"dtype": "float32", "blocks": 60, "length": "fixed", "nodes": 4, **options}
    with LLM(place / "target", draft, "crossvocab", drafter_settings=("crossvocab.stop=length",), **options) as llm:
        wish = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
        made = [llm.generate("Tom has 3 apples", replace(wish, drafter=by), progress=False)[0]
                for by in ("crossvocab", "none")]  # fmt: skip
        assert llm.engine.drafters.errors == []
    return made[0].token_ids, made[1].token_ids, made[0].stats.drafted


def test_it_learns_and_drafts_as_it_was_trained(place: Path) -> None:
    seen: list[TrainingProgress] = []
    from paceline.train.loop import train as run

    made = run(plan(place, "learns"), seen.append)
    assert seen[-1].loss < 0.9 * seen[0].loss
    again, _ = opened(plan(place, "learns"))
    method = again.method
    assert isinstance(method, CrossVocabTraining)
    with LLM(place / "target", made.out, "crossvocab", dtype="float32", blocks=60) as llm:
        foreign: Any = llm.engine.components[FOREIGN]
        hidden = torch.randn(3, foreign.model.width)
        moved = hidden + hidden @ method.adapter.down.mT @ method.adapter.up.mT
        assert torch.equal(foreign.adapter(hidden), moved) and not torch.equal(moved, hidden)
        assert torch.allclose(foreign.model.head(hidden), hidden @ method.table, atol=1e-5)
    text, plain, _ = drafts(place, made.out)
    assert text == plain
    weights = load_file(made.out / "crossvocab" / "model.safetensors")
    for path in (place / "draft").iterdir():
        assert path.suffix != ".safetensors" or (made.out / path.name).read_bytes() == path.read_bytes()
    assert set(weights) == {"down", "up"} and weights["up"].abs().sum() > 0


def test_what_was_learned_decides_what_is_drafted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, of = list[list[int]](), Translation.of

    def told(self: Translation, drafted: Sequence[int]) -> list[int]:
        said.append(list(drafted))
        return of(self, drafted)

    monkeypatch.setattr(Translation, "of", told)
    made = train(plan(place, "decides", steps=2))
    before, first = drafts(place, made.out), said.copy()
    said.clear()
    file = made.out / "crossvocab" / "model.safetensors"
    save_file({name: 1e3 * torch.ones(part.shape) for name, part in load_file(file).items()}, file)
    after = drafts(place, made.out)
    assert before[0] == before[1] == after[0] == after[1] and said[0] != first[0]
    online = drafts(place, made.out, online=0.5)
    assert online[0] == online[1]
    config = made.out / "crossvocab" / "config.json"
    config.write_text(config.read_text().replace('"vocab": 400', '"vocab": 401'))
    with pytest.raises(CheckpointError, match="was trained for a model of 401 tokens, but this one has 400"):
        drafts(place, made.out)


def test_its_law_is_the_targets_where_tokens_stand_alike(place: Path) -> None:
    """Row by row: the place in the text, the target's distribution over the tokens that both know."""
    run, _ = opened(plan(place, "law"))
    method = run.method
    assert isinstance(method, CrossVocabTraining)
    batch = run.source.batch([5])
    text = method.spelt(batch, 0)
    judged = method.judged(batch, [text])
    ids, own, target = batch.ids[0].tolist(), method.translation.own, method.translation.target
    whole = b"".join(target.shown(token) for token in ids[: int(batch.length[0])])
    spelt = own.spell(whole, start=True)
    assert spelt[-len(text.token) :] == text.token.tolist(), "the answer's end, in the draft's tokens"
    at, seen = len(whole) - sum(len(own.shown(token)) for token in text.token.tolist()), 0
    for i, token in enumerate(text.token.tolist()):
        row = int(text.row[i])
        if row >= 0:
            assert b"".join(target.shown(it) for it in ids[: row + 1]) == whole[:at]
            assert method.translation.one[token] == ids[row + 1]
            law = method.target.head(batch.hidden["post_norm"][0, row])
            law = law.masked_fill(~method.translation.shared, float("-inf")).softmax(-1)
            for theirs, log_p in zip(judged.ids[i].tolist(), judged.log_p[i].tolist()):
                if theirs >= 0:
                    assert law[method.translation.one[theirs]].log().item() == pytest.approx(log_p, abs=1e-4)
            seen += 1
        at += len(own.shown(token))
    assert seen >= 3
    logits = torch.randn(len(text.token), method.draft.vocab_size)
    told = torch.nn.functional.cross_entropy(logits, text.token, reduction="none")
    same = hybrid(logits, text.token, judged, method.shared) == told
    assert torch.equal(same, text.row < 0), "cross entropy alone where no token of the target stands"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "needs the draft model"),
        ({"draft": "target"}, "has the target's own tokenizer"),
        ({"draft": "draft", "objective": "kl"}, "give hybrid or ce"),
        ({"draft": "draft", "rank": 0}, "a rank of at least 1"),
        ({"draft": "data.jsonl"}, "."),
    ],
)
def test_what_cannot_be_trained_is_refused(place: Path, given: dict[str, Any], said: str) -> None:
    from paceline.core.errors import PacelineError

    given = {key: str(place / value) if key == "draft" else value for key, value in given.items()}
    with pytest.raises(PacelineError, match=said):
        train(plan(place, "bad", settings=given))
