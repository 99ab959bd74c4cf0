"""`topk`'s native call and its twin, pass by pass, grow the same trees, in single steps and in runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.core.plan import MinChance, Note
from paceline.core.proposer import Draft, Turn
from paceline.core.request import Request
from paceline.core.result import Round
from paceline.draft import Ask
from paceline.draft.dyspec import DYSPEC_MIN_CHANCE, DySpec, most_probable
from paceline.draft.merge_runs import MergedProposer
from paceline.draft.topk import TopK
from paceline.draft.tree import TreeProposer
from paceline.native.build import library
from paceline.plan import DrafterFacts
from paceline.plan.arm import Arm
from tests.draft.rounds import Rounds
from tests.sample.ruled import SOME_RULES
from tests.tiny import tiny_checkpoint

PROMPTS = ["one two three one two three one", "the cat sat on the mat and the cat sat", "a", "to be or not to be, to"]


PRICES = (None, MinChance(0.05), MinChance(0.3), MinChance(0.02, 3.0), MinChance(0.01, 0.05))
"""Prices of a row, and of a level where one is known, for one request after the other."""


def priced(ask: Ask, price: MinChance | None) -> Ask:
    return ask._replace(item=ask.item._replace(min_chance=price))


@pytest.mark.skipif(library() is None, reason="needs the native decoder")
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_the_native_tree_is_the_twins(tmp_path: Path, quantize: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_checkpoint(tmp_path / "target", "llama", seed=1)
    draft = tiny_checkpoint(tmp_path / "draft", "llama", seed=2, layers=1)
    llm = LLM(target, draft, drafter="topk", quantize=quantize, memory="100M", check=True, nodes=12, tbt_target_ms=0.0)
    llm.engine.desk.policy.patience = 0.0  # no runs, whose proposers are compared below
    sizes, original = [], TopK.draft

    def both(self: TopK, asks: Any, view: Any) -> Any:
        asks = [priced(ask, PRICES[i % len(PRICES)]) for i, ask in enumerate(asks)]
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
            least = (tree.ask.item.min_chance or DYSPEC_MIN_CHANCE).row
            best = most_probable(tree.memo.paths, tree.ask.item.nodes, least)
            assert [tree.path(place) for place in range(len(tree.token))] == [path for _, path in best]
            assert all(chance >= least for chance, _ in best)
        sizes.append(len(first))
        return first

    monkeypatch.setattr(TopK, "draft", both)
    for temperature, more in ((0.0, {}), (0.7, {}), (0.7, {"top_k": 9}), (0.0, SOME_RULES)):
        fixed = {"top_k": 0, "top_p": 1.0, "max_tokens": 24, "seed": 1, "ignore_eos": True}
        params = SamplingParams(temperature=temperature, **{**fixed, **more})
        llm.generate(PROMPTS, params, progress=False)
    assert llm.engine.drafters.errors == [] and max(sizes) > 15


class Served(NamedTuple):
    rounds: list[list[Round]]
    found: list[Note]
    texts: list[list[int]]
    records: Any
    """Records of a merged drafter."""


def served(target: Path, drafter: str, quantize: str | None, temperature: float, **more: Any) -> Served:
    """What runs of eight rounds offered and kept, and the texts. The draft model is the target with another norm."""
    llm = LLM(target, target, drafter=drafter, quantize=quantize, memory="100M", check=True, block_size=16)
    weight = cast(Any, llm.engine.components["draft"]).weights.norm.weight
    weight.mul_(1 + 0.5 * torch.randn(len(weight), generator=torch.Generator().manual_seed(4)))
    policy: Any = llm.engine.desk.policy
    policy.patience, policy.fixed.cheap_rows = 1e9, None  # rows are free, so that trees are worth it on every machine
    llm.engine.recorder = rounds = Rounds()
    fixed = {"top_k": 0, "top_p": 1.0, "max_tokens": 70, "seed": 1, "ignore_eos": True}
    params = SamplingParams(temperature=temperature, **{**fixed, **more})
    outputs = llm.generate(PROMPTS, params, progress=False)
    assert llm.engine.drafters.errors == []
    apart = getattr(llm.engine.drafters.drafter(drafter), "records", None)
    found = sorted(rounds.found, key=lambda note: note.request)  # of one round after the other, or text by text
    return Served(rounds.each, found, [output.token_ids for output in outputs], apart and apart.kept[""])


@pytest.mark.skipif(library() is None, reason="needs the native decoder")
@pytest.mark.parametrize("quantize", [None, "int8"])
@pytest.mark.parametrize(("drafter", "temperature"), [("topk", 0.0), ("topk", 0.7), ("dyspec", 0.0)])
def test_the_native_proposer_is_its_twin(
    tmp_path: Path, drafter: str, quantize: str | None, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four texts in runs: every round offers and keeps the same nodes in both twins, called back or not."""
    target = tiny_checkpoint(tmp_path / "target", "llama", seed=1)
    more = {**SOME_RULES, "top_k": 12 if temperature else 0} if quantize else {}
    native = served(target, drafter, quantize, temperature, **more)
    called = list[int]()

    def propose(self: TreeProposer, turns: Sequence[Turn]) -> list[Draft]:
        called.append(len(turns))
        return original(self, turns)

    original = TreeProposer.propose
    monkeypatch.setattr(TreeProposer, "propose", propose)
    assert native == served(target, drafter, quantize, temperature, **more) and not called
    monkeypatch.setattr(DySpec, "table", lambda self, proposer: None)
    assert native == served(target, drafter, quantize, temperature, **more) and max(called) == 4
    several = [rounds for rounds in native.rounds if len(rounds) > 1]
    assert max(round.depth for rounds in several for round in rounds) > 0
    trees = [round for rounds in several for round in rounds if sum(round.offered) > len(round.offered) + 3]
    assert trees or temperature, "a random model's laws are too flat for trees at a temperature"


@pytest.mark.skipif(library() is None, reason="needs the native decoder")
@pytest.mark.parametrize("drafter", ["dyspec", "ngram+dyspec"])
def test_dyspec_runs_for_greedy_requests_alone(tmp_path: Path, drafter: str) -> None:
    """A request with noise, alone or beside a greedy one, makes a step one pass: the trees hang on the draws then."""
    target = tiny_checkpoint(tmp_path / "target", "llama", seed=1)
    assert any(len(rounds) > 1 for rounds in served(target, drafter, None, 0.0).rounds)
    assert max(len(rounds) for rounds in served(target, drafter, None, 0.7).rounds) == 1
    greedy, drawn = (Request(t, [1], SamplingParams(temperature=float(t)).resolve({}), 0) for t in (0, 1))
    arm = Arm.of(drafter, DrafterFacts(8, chain=False, runs="greedy"))
    assert arm.runs_for([greedy]) and not arm.runs_for([drawn]) and not arm.runs_for([greedy, drawn])


@pytest.mark.skipif(library() is None, reason="needs the native decoder")
@pytest.mark.parametrize("temperature", [0.0, 0.3])
@pytest.mark.parametrize("drafter", ["ngram+topk", "model+ngram"])
def test_the_native_merged_proposer_is_its_twin(
    tmp_path: Path, drafter: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds, records of each part's share, and notes of the first part are equal."""
    target = tiny_checkpoint(tmp_path / "target", "llama", seed=1)
    more = {"frequency_penalty": 0.01, "logit_bias": {5: 0.2}} if temperature else {}  # texts still repeat
    native = served(target, drafter, None, temperature, **more)
    monkeypatch.setattr(MergedProposer, "native", lambda self: None)
    called, original = list[int](), MergedProposer.propose

    def propose(self: MergedProposer, turns: Sequence[Turn]) -> list[Draft]:
        called.append(len(turns))
        return original(self, turns)

    monkeypatch.setattr(MergedProposer, "propose", propose)
    twin = served(target, drafter, None, temperature, **more)
    assert native == twin and max(called) == 4 and native.found
    alone = served(target, drafter.replace("ngram", "").strip("+"), None, temperature, **more)
    assert native.texts == alone.texts
    asked = {part: sum(record.asked.rounds) for part, record in native.records.items()}
    assert 0 < min(asked.values()) < max(asked.values()), "the draft model is passed over now and then"
    assert any(round.depth > 0 for rounds in native.rounds for round in rounds if len(rounds) > 1)


@pytest.mark.skipif(library() is None, reason="needs the native decoder")
def test_a_run_without_a_proposer_is_one_pass_in_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run reserves rows for chains; where its drafter has no proposer, its tree must do with them."""
    target = tiny_checkpoint(tmp_path / "target", "llama", seed=1)
    expected, original, spare = served(target, "topk", None, 0.0).texts, TopK.draft, list[int]()

    def draft(self: TopK, asks: Sequence[Ask], view: Any) -> Any:
        spare.extend(len(ask.txn.slots) - ask.item.rows for ask in asks)
        return original(self, asks, view)

    monkeypatch.setattr(TopK, "draft", draft)
    monkeypatch.setattr(TopK, "propose", lambda self, asks, view: None)
    assert served(target, "topk", None, 0.0).texts == expected and spare and min(spare) >= 0
