"""Heads inside runs: the native call and its twin draft alike, and a run brings what single steps bring."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import torch

from paceline.core.plan import Item, MinChance
from paceline.core.proposer import Draft, Turn
from paceline.core.result import Round
from paceline.draft.grow import HeadDrafter, paying, ranked
from paceline.draft.head_runs import CompiledHead, HeadProposer
from paceline.draft.hydra import Hydra, HydraConfig
from paceline.draft.medusa import Medusa, MedusaConfig
from paceline.native.build import library
from tests.draft.rounds import answered
from tests.draft.test_head import KINDS, PROMPTS, SIZES, shaken
from tests.tiny import tiny_checkpoint

needs_native = pytest.mark.skipif(library() is None, reason="needs the native decoder")
ABLE = {name: head for name, head in KINDS.items() if "run" in head.abilities}
WORDS, NODES = 6, 12


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("target"), "llama", seed=1)


@pytest.fixture(scope="module", params=["medusa", "hydra", "hydra, two layers", "hydra++"])
def head(request: pytest.FixtureRequest, target: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A random one over the six words that its target says most, which is right now and then."""
    said = Counter(token for text in served(target, None, "none").texts for token in text)
    sizes = {**SIZES, "depth": 3, "draft_vocab": WORDS}
    kinds = {
        "medusa": lambda: Medusa(MedusaConfig(**sizes)),
        "hydra": lambda: Hydra(HydraConfig(**sizes)),
        "hydra, two layers": lambda: Hydra(HydraConfig(**sizes, layers=2)),
        "hydra++": lambda: Hydra(HydraConfig(**sizes, prefix=True)),
    }
    made = shaken(kinds[request.param]())
    words = sorted(word for word, _ in said.most_common(WORDS))
    made.d2t.copy_(torch.tensor(words) - torch.arange(WORDS))
    made.save(path := tmp_path_factory.mktemp("head"))
    return path, made.method


class Served(NamedTuple):
    texts: list[list[int]]
    rounds: list[list[Round]]
    hits: list[list[float]]
    """What the drafter has seen of each rank at each depth, alone or as the second part of a merged one."""
    tries: list[list[float]]


def served(target: Path, head: Path | None, drafter: str, **more: Any) -> Served:
    with answered(target, head, drafter, NODES, PROMPTS, 60, **more) as (texts, rounds, llm):
        if drafter == "none":
            return Served(texts, rounds, [], [])
        made: Any = llm.engine.drafters.drafter(drafter)
        head = made if "+" not in drafter else made.parts[drafter.partition("+")[2]]
        chances = head.chances[not more.get("temperature", 0.0)].kept[""]
        return Served(texts, rounds, chances.hits, chances.tries)


def test_which_heads_can() -> None:
    """Heads whose depths are stages can, and over the text plain layers; Clover, whose states pass gates, cannot."""
    assert sorted(ABLE) == ["hydra", "hydra++", "hydra, 40 words", "medusa", "medusa, own head"]


@needs_native
@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
def test_the_native_proposer_is_its_twin(
    head: tuple[Path, str], quantize: str | None, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every round offers and keeps as many nodes at each depth, and every rank is tried and hit as often."""
    native, steps = (served(target, *head, quantize=quantize, patience=patience) for patience in (1e9, 0.0))
    called = list[int]()
    original = HeadProposer.propose

    def propose(self: HeadProposer, turns: Sequence[Turn]) -> list[Draft]:
        called.append(len(turns))
        return original(self, turns)

    monkeypatch.setattr(HeadProposer, "propose", propose)
    assert native == served(target, *head, quantize=quantize) and not called
    monkeypatch.setattr(CompiledHead, "table", lambda *of: None)
    assert native == served(target, *head, quantize=quantize) and max(called) == len(PROMPTS)
    assert steps == served(target, *head, quantize=quantize, patience=0.0), "single steps, too"
    several = [round for rounds in native.rounds if len(rounds) > 1 for round in rounds]
    assert sum(round.depth for round in several) > 5 and max(sum(round.offered) for round in several) == NODES


@needs_native
@pytest.mark.parametrize("name", ABLE)
def test_over_a_whole_vocabulary_too(name: str, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the target's output matrix, or matrices of each depth."""
    shaken(made := ABLE[name]).save(tmp_path)
    native = served(target, tmp_path, made.method)
    monkeypatch.setattr(CompiledHead, "table", lambda *of: None)
    assert native == served(target, tmp_path, made.method)
    assert max(len(rounds) for rounds in native.rounds) > 1


@needs_native
@pytest.mark.parametrize("merged", [False, True])
def test_a_run_is_its_single_steps(
    head: tuple[Path, str], merged: bool, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts are those of plain decoding, and about as many nodes are kept: a run's last draft may be cut."""
    monkeypatch.setattr("paceline.draft.grow.RankChances.review", lambda self: None)
    drafter = f"ngram+{head[1]}" if merged else head[1]
    several, single = (served(target, head[0], drafter, patience=x) for x in (1e9, 0.0))
    assert several.texts == single.texts == served(target, None, "none").texts
    assert max(len(rounds) for rounds in several.rounds) > 1 == max(len(rounds) for rounds in single.rounds)
    kept, alone = (sum(r.depth for rounds in it.rounds for r in rounds) for it in (several, single))
    assert kept == pytest.approx(alone, rel=0.15) and kept > 20


@needs_native
def test_a_run_is_for_greedy_requests(head: tuple[Path, str], target: Path) -> None:
    """With noise a tree hangs on draws: such steps have one pass."""
    warm = served(target, *head, temperature=0.8)
    assert max(len(rounds) for rounds in warm.rounds) == 1
    assert warm.texts == served(target, None, "none", temperature=0.8).texts


@needs_native
def test_a_stale_hidden_state_is_seen(head: tuple[Path, str], target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: every round reads the first state. The text stays, the drafts do not."""
    right = served(target, *head)
    begin, first = HeadDrafter.begin, dict[int, Any]()

    def held(self: HeadDrafter, places: Sequence[int], contexts: Sequence[Any], tokens: Sequence[int]) -> None:
        begin(self, places, [first.setdefault(place, it) for place, it in zip(places, contexts)], tokens)

    monkeypatch.setattr(CompiledHead, "table", lambda *of: None)
    monkeypatch.setattr(HeadDrafter, "begin", held)
    wrong = served(target, *head)
    assert wrong.texts == right.texts and wrong.rounds != right.rounds


@pytest.mark.parametrize("least", [0.0, 0.03, 0.2])
def test_a_node_has_to_bring_its_price(least: float) -> None:
    """No node of a tree is less likely than the price of its row, and none that is likelier is left out."""
    chances = ((0.5, 0.2, 0.1), (0.4, 0.1))
    worth = {path: chance(chances, path) for _, path in ranked(99, chances)}
    price = MinChance(least) if least else None
    item = Item(cast(Any, None), 1, 99, "hydra", "exact", min_chance=price)
    kept = {path for _, path in ranked(paying(item, chances), chances)}
    assert kept == {path for path, it in worth.items() if it >= least}
    assert [*worth] == sorted(worth, key=worth.__getitem__, reverse=True)
    assert [it for it, _ in ranked(99, chances)] == pytest.approx([*worth.values()])


def chance(chances: Sequence[Sequence[float]], path: tuple[int, ...]) -> float:
    out = 1.0
    for depth, rank in enumerate(path):
        out *= chances[depth][rank]
    return out
