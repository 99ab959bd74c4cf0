"""`topk`'s native call and its twin, pass by pass, grow the same trees."""

from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.core.plan import MinChance
from paceline.draft import Ask
from paceline.draft.dyspec import MIN_CHANCE, most_probable
from paceline.draft.topk import TopK
from paceline.native.build import library
from tests.tiny import tiny_checkpoint

PROMPTS = ["one two three one two three one", "the cat sat on the mat and the cat sat", "a", "to be or not to be, to"]


ROWS = (None, 0.05, 0.3, None, 0.01)
"""Prices of a row, one request after the other."""


def priced(ask: Ask, row: float | None) -> Ask:
    return ask._replace(item=ask.item._replace(min_chance=None if row is None else MinChance(row)))


@pytest.mark.skipif(library() is None, reason="needs the native decoder")
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_the_native_tree_is_the_twins(tmp_path: Path, quantize: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_checkpoint(tmp_path / "target", "llama", seed=1)
    draft = tiny_checkpoint(tmp_path / "draft", "llama", seed=2, layers=1)
    llm = LLM(target, draft, drafter="topk", quantize=quantize, memory="100M", check=True)
    sizes, original = [], TopK.draft

    def both(self: TopK, asks: Any, view: Any) -> Any:
        asks = [priced(ask, ROWS[i % len(ROWS)]) for i, ask in enumerate(asks)]
        native = self.native
        assert native is not None
        first = original(self, asks, view)
        computed = {i: tree.computed for i, tree in view.slots.items()}
        self.native = None
        second = original(self, asks, view)
        self.native = native
        assert (first.request, first.token, first.parent) == (second.request, second.token, second.parent)
        for i, tree in view.slots.items():
            assert tree.computed == computed[i]
            least = (tree.ask.item.min_chance or MIN_CHANCE).row
            best = most_probable(tree.memo.paths, tree.ask.item.nodes, least)
            assert [tree.path(place) for place in range(len(tree.token))] == [path for _, path in best]
            assert all(chance >= least for chance, _ in best)
        sizes.append(len(first))
        return first

    monkeypatch.setattr(TopK, "draft", both)
    for temperature in (0.0, 0.7):
        params = SamplingParams(temperature=temperature, top_k=0, top_p=1.0, max_tokens=24, seed=1, ignore_eos=True)
        llm.generate(PROMPTS, params, progress=False)
    assert llm.engine.drafters.errors == [] and max(sizes) > 15
