"""Heads with attention of their own say in a drafter, node by node, what their module says of whole texts."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.draft import dyspec, feature
from paceline.draft.tree import Tree
from paceline.train import TRAINERS
from paceline.train.data import Sample
from paceline.train.features import FeatureSource
from paceline.train.target import TrainingTarget
from paceline.train.through import Through
from tests.tiny import randomise, tiny_checkpoint

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle3": ("eagle3", {"draft_vocab": 300}),
    "eagle3 normed": ("eagle3", {"norm_before_residual": True}),
    "eagle1": ("eagle3", {"fused": False}),
    "falcon": ("falcon", {}),
    "longspec": ("longspec", {"window": 8}),
    "falcon3": ("falcon", {"block": 3, "depth": 6}),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TrainingTarget:
    return TrainingTarget(tiny_checkpoint(tmp_path_factory.mktemp("target"), layers=6, seed=3), "float32")


@pytest.mark.parametrize("case", CASES)
def test_the_drafter_says_what_was_trained(
    case: str, target: TrainingTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes are free here: a random head is sure of nothing, and no pass would pay. What is drafted beside the prompt's
    own pass, from a text without rows, is left out."""
    for module in (dyspec, feature):
        monkeypatch.setattr(module, "prices", lambda item: (0.0, 1e-12))
    name, settings = CASES[case]
    torch.manual_seed(1)  # which of the first weights stay: under some, no path is as deep as this test asks for
    method: Any = TRAINERS.get(name)(target, dict(settings))
    randomise(method.module, 1)
    method.see([Sample(tuple(range(5, 310)), 1)])
    method.save(tmp_path, {})
    seen: list[tuple[list[int], int, torch.Tensor]] = []
    with LLM(target.path, tmp_path, name, dtype="float32", nodes=12, memory="100M") as llm:
        drafter: Any = llm.engine.drafters.drafter(name)
        level = drafter._level

        def watch(places: list[tuple[Tree, int]], logits: torch.Tensor, tables: list[torch.Tensor]) -> None:
            for row, (tree, place) in zip(logits, places):
                path = list(tree.path(place))
                if len(path) < method.depth and tree.ask.txn.base:
                    seen.append((tree.ask.request.tokens[: tree.known] + path, len(path), row.clone()))
            level(places, logits, tables)

        drafter._level = watch
        params = SamplingParams(temperature=0.8, top_k=0, seed=1, max_tokens=24, ignore_eos=True)
        llm.generate([[*range(7, 40)], [9, 8, 7]], params, progress=False)
        assert llm.engine.drafters.errors == []
    assert len({depth for _, depth, _ in seen}) >= 3 and len(seen) > 60
    method.module.eval()
    for text, depth, row in seen[:: max(1, len(seen) // 60)]:
        root = len(text) - 1 - depth
        ids = [*text, 0, 0]  # what is drafted, and what comes behind it, is not looked at
        batch = FeatureSource(target, [Sample(tuple(ids), 1)], method.taps).batch([0])
        with torch.no_grad():
            mine = method.logits(method.unroll(batch)[depth][0, root - 1])
        known = method.known()
        want = row if known is None else row[known]
        torch.testing.assert_close(mine.float(), want, rtol=1e-3, atol=2e-3)


def test_gradients_go_through_the_target_as_it_is(target: TrainingTarget) -> None:
    """The pass that prompts are trained through is the decoder's."""
    ids = torch.tensor([[*range(5, 30)], [*range(50, 75)]])
    _, post = Through(target).text(ids)
    batch = FeatureSource(target, [Sample(tuple(row), 1) for row in ids.tolist()], ("post_norm",)).batch([0, 1])
    torch.testing.assert_close(post, batch.hidden["post_norm"], rtol=1e-3, atol=2e-3)


def test_prompts_say_in_the_engine_what_was_trained(target: TrainingTarget, tmp_path: Path) -> None:
    method: Any = TRAINERS.get("ppd")(target, {})
    method.save(tmp_path, {})
    seen: list[tuple[list[int], torch.Tensor]] = []
    with LLM(target.path, tmp_path, "ppd", dtype="float32", nodes=14, memory="100M") as llm:
        drafter: Any = llm.engine.drafters.drafter("ppd")
        learn = drafter.learn

        def watch(view: Any) -> None:
            for ask in view.asks:
                if ask.place not in view.probes:
                    continue
                state, nodes = view.slots[ask.request.id], view.accepted(ask)
                path = state.path[nodes[-1]] if nodes else ()
                mine = [i for i, of in enumerate(state.probes) if of == path and i < len(view.probes[ask.place])]
                committed = [*ask.txn.lease.tokens]
                seen.append((committed, view.probes[ask.place][mine].clone()))
            learn(view)

        drafter.learn = watch
        params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
        llm.generate([[*range(7, 40)], [9, 8, 7]], params, progress=False)
        assert llm.engine.drafters.errors == []
    assert len(seen) > 10
    through = Through(target)
    for ids, logits in seen:
        text, _ = through.text(torch.tensor([ids]))
        cut, row = torch.tensor([len(ids) - 1]), torch.zeros(1, dtype=torch.int64)
        with torch.no_grad():
            out = method.logits(through.chains(text, cut, row, method.module.prompts.weight)[0])
        torch.testing.assert_close(out[: len(logits)], logits.float(), rtol=1e-3, atol=2e-3)


def test_glancing_answers_as_many_rows_as_its_share_says(target: TrainingTarget) -> None:
    """At first rows of blocks that are learned, and nowhere else; the first of a block sees the whole of it."""
    method: Any = TRAINERS.get("falcon")(target, {"block": 2})
    randomise(method.module, 1)
    batch = FeatureSource(
        target, [Sample(tuple(range(5, 45)), 9), Sample(tuple(range(60, 99)), 20)], method.taps
    ).batch([0, 1])
    x, embedded = method.entry(batch)
    with torch.no_grad():
        out = method.module.blocks(x, 1)[:, : batch.ids.shape[1] - 3]
    learn = batch.learn[:, 3 : 3 + out.shape[1]].bool()
    wrong = int((method.logits(out).argmax(-1) != batch.ids[:, 3 : 3 + out.shape[1]])[learn].sum())
    changed = (method.glanced(x, embedded, batch, 1, 0.4) != x).any(-1)
    rows = changed.nonzero()
    assert int(changed.sum()) == int(0.4 * wrong) > 3
    assert ((rows[:, 1] + 1) % 2 == 0).all() and batch.learn[rows[:, 0], rows[:, 1] + 2].all()
    again = x.clone()
    again[:, 9] += 1.0  # rows 9 and 10 are a block: row 9 + phase is even
    with torch.no_grad():
        moved = (method.module.blocks(again, 1) - method.module.blocks(x, 1)).abs().amax((0, 2)) > 1e-6
    assert not moved[:8].any() and moved[8:].all()
