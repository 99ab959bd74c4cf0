"""Heads on features inside runs: the native call and its twin draft alike, and a run brings what single steps bring."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import save_file

from paceline import LLM
from paceline.core.proposer import Draft, Turn
from paceline.core.result import Round
from paceline.core.rows import RowsBuilder
from paceline.draft import dyspec, feature
from paceline.draft.eagle3 import Eagle
from paceline.draft.eagle_shape import EagleShape, random_weights
from paceline.draft.feature import FeatureDrafter, FeatureHead
from paceline.draft.feature_runs import FeatureProposer
from paceline.draft.head import HeadFiles
from paceline.draft.tree import TreeDrafter
from paceline.model.linear import choose, plain
from paceline.native.build import library
from tests.draft import test_head
from tests.draft.rounds import answered
from tests.tiny import tiny_checkpoint

pytestmark = pytest.mark.skipif(library() is None, reason="needs the native decoder")
WORDS, NODES = 6, 8
TAPS = ("input:1", "input:2", "post_norm")
PROMPTS = [*test_head.PROMPTS, [7]]
"""Also one of a single token, which has no feature before it."""
KINDS = ("eagle3", "eagle3 normed", "eagle1")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("target"), "llama", seed=1, layers=3)


@pytest.fixture(scope="module")
def heads(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Random ones. EAGLE-3's know the six words that their target says most, and are right now and then."""
    said = Counter(token for text in served(target, None).texts for token in text)
    words = torch.tensor(sorted(word for word, _ in said.most_common(WORDS)))
    made: dict[str, Path] = {}

    def head(kind: str) -> Path:
        if kind not in made:
            made[kind] = path = tmp_path_factory.mktemp("head")
            with LLM(target, memory="100M") as llm:
                spec = llm.engine.model.spec  # type: ignore[attr-defined]
            fused = kind != "eagle1"
            shape = EagleShape(
                spec.hidden, 4, 2, 16, 2 * spec.hidden, spec.vocab, WORDS if fused else spec.vocab, 512,
                TAPS if fused else ("post_norm",), fused, norm_before_residual=kind == "eagle3 normed",
            )  # fmt: skip
            weights = random_weights(shape, 3)
            if fused:
                weights["d2t"] = words - torch.arange(WORDS)
            save_file(weights, path / "model.safetensors")
            (path / "config.json").write_text(json.dumps(shape.written()))
        return made[kind]

    return head


class Served(NamedTuple):
    texts: list[list[int]]
    rounds: list[list[Round]]


def served(target: Path, head: Path | None, drafter: str = "eagle3", **more: Any) -> Served:
    with answered(target, head, drafter if head else "none", NODES, PROMPTS, 48, **more) as (texts, rounds, _):
        return Served(texts, rounds)


@pytest.fixture(autouse=True)
def nodes_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random head is sure of nothing, and no pass would pay."""
    for module in (dyspec, feature):
        monkeypatch.setattr(module, "prices", lambda item: (1e-9, 1e-12))


@pytest.mark.parametrize(
    ("kind", "quantize", "patience"),
    [
        *((kind, None, 1e9) for kind in KINDS),
        *(("eagle3", "int8", 1e9), ("eagle3", "int4", 1e9), ("eagle1", "int4", 1e9)),
        *(("eagle3", None, 0.0), ("eagle1", None, 0.0)),
    ],
)
def test_the_native_proposer_is_its_twin(
    heads: Callable[[str], Path], kind: str, quantize: str | None, patience: float, target: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Every round, within a run or alone, offers and keeps as many nodes at each depth."""
    head, called = heads(kind), list[int]()
    original = FeatureProposer.propose

    def propose(self: FeatureProposer, turns: Sequence[Turn]) -> list[Draft]:
        called.append(len(turns))
        return original(self, turns)

    monkeypatch.setattr(FeatureProposer, "propose", propose)
    native = served(target, head, quantize=quantize, patience=patience)
    assert max(called, default=0) <= 1, "in Python, but for the text of one token"
    called.clear()
    monkeypatch.setattr(FeatureDrafter, "table", TreeDrafter.table)
    assert native == served(target, head, quantize=quantize, patience=patience)
    assert max(called, default=0) == (len(PROMPTS) if patience else 0)
    several = [round for rounds in native.rounds if len(rounds) > 1 or not patience for round in rounds]
    assert max(sum(round.offered) for round in several) == NODES
    assert max(len(round.offered) for round in several) > (1 if kind == "eagle1" else 2)
    if kind != "eagle1":
        assert sum(round.depth for round in several) > 5


@pytest.mark.parametrize("drafter", ["eagle3", "ngram+eagle3"])
def test_a_run_is_its_single_steps(heads: Callable[[str], Path], drafter: str, target: Path) -> None:
    """Texts are those of plain decoding, and about as many nodes are kept: a run's last draft may be cut."""
    several, single = (served(target, heads("eagle3"), drafter, patience=x) for x in (1e9, 0.0))
    assert several.texts == single.texts == served(target, None).texts
    assert max(len(rounds) for rounds in several.rounds) > 1 == max(len(rounds) for rounds in single.rounds)
    kept, alone = (sum(r.depth for rounds in it.rounds for r in rounds) for it in (several, single))
    assert kept == pytest.approx(alone, rel=0.15) and kept > 10


def test_lost_features_are_seen(heads: Callable[[str], Path], target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: features of what a run brings are not stored. The text stays, the drafts do not."""
    monkeypatch.setattr(FeatureDrafter, "table", TreeDrafter.table)
    right, keep = served(target, heads("eagle3")), FeatureHead.keep

    def forget(self: FeatureHead, slots: Sequence[int], hidden: Any) -> None:
        keep(self, slots, {tap: torch.zeros_like(states) for tap, states in hidden.items()})

    monkeypatch.setattr(FeatureHead, "keep", forget)
    wrong = served(target, heads("eagle3"))
    assert wrong.texts == right.texts and wrong.rounds != right.rounds


@pytest.mark.parametrize("kind", KINDS)
def test_the_native_layer_is_the_one_in_pytorch(kind: str, heads: Callable[[str], Path], target: Path) -> None:
    """Logits and states of a text and a tree below it, with weights in bfloat16."""
    with LLM(target, memory="100M") as llm:
        model: Any = llm.engine.model
        files = HeadFiles(heads(kind))
        outs = []
        for packing in (choose(torch.bfloat16, torch.device("cpu")), plain(torch.float32, torch.device("cpu"))):
            head = Eagle.load(files, packing)
            head.allocate(4, 16)
            head.bind(model)
            builder = RowsBuilder()
            builder.add([3, 1, 4, 1, 5], [*range(5)], [0, 1], 0, want=[2, 3, 4])
            rows = builder.build()
            stream = torch.Generator().manual_seed(2)
            rows.hidden = torch.randn(5, head.width, generator=stream)
            text = head.forward(rows)
            builder = RowsBuilder()
            builder.add([7, 8, 9], [5, 6, 7], [0, 1], 5, depths=[1, 1, 2], words=[1, 2, 6], want=[0, 1, 2])
            rows = builder.build()
            rows.hidden = torch.randn(3, head.width, generator=stream)
            tree = head.forward(rows)
            assert text.leave is not None and tree.leave is not None
            outs.append((text.logits, text.leave[1:], tree.logits, tree.leave))
        for mine, theirs in zip(*outs):
            most = theirs[theirs.abs() < 1e3].abs().max().item()
            torch.testing.assert_close(mine, theirs.float(), rtol=0.02, atol=0.02 * most)
