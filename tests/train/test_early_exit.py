"""`early_exit`: the target trained on with layers left out and losses at its exits drafts better, and says so."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paceline.core.errors import InputError
from paceline.model.load import load_model
from paceline.train import TRAINERS, train
from paceline.train.early_exit import EarlyExitTraining
from paceline.train.evaluate import engine_tau
from paceline.train.features import FeatureBatch
from paceline.train.loop import TrainingPlan
from paceline.train.target import TrainingTarget
from tests.tiny import tiny_checkpoint
from tests.train.broken import broken_and_resumed

LAYERS = 5


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("early-exit")
    tiny_checkpoint(path / "target", seed=1, layers=LAYERS)
    lines = [{"prompt": f"Tom has {n} apples.", "answer": f"He has {2 * n + 1} now."} for n in range(40)]
    (path / "data.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture(scope="module")
def target(place: Path) -> TrainingTarget:
    return TrainingTarget(place / "target", "float32")


def method(target: TrainingTarget, **settings: Any) -> EarlyExitTraining:
    made = TRAINERS.get("early_exit")(target, settings)
    assert isinstance(made, EarlyExitTraining)
    return made


def plan(place: Path, out: str, **changes: Any) -> TrainingPlan:
    base: dict[str, Any] = {
        "minutes": None, "steps": 6, "dtype": "float32", "answers": False, "tokens": 256, "warmup": 2, "held": 4,
        "method": "early_exit", "target": place / "target", "data": (place / "data.jsonl",),
    }  # fmt: skip
    return TrainingPlan(**{**base, **changes}, out=place / out)


def test_a_layer_that_is_left_out_passes_its_input_on(target: TrainingTarget) -> None:
    """For that text of a batch alone; without any, states are those of the library's pass."""
    made, ids = method(target), torch.randint(300, (2, 9))
    with torch.no_grad():
        whole = made.states(ids)
        made.kept = [torch.tensor([True, layer != 2]).view(2, 1, 1) for layer in range(LAYERS)]
        mixed = made.states(ids)
        made.kept = []
        logits = made.logits(ids)
    assert len(whole) == len(mixed) == LAYERS
    assert torch.equal(mixed[2][1], mixed[1][1]) and not torch.equal(mixed[2][0], mixed[1][0])
    assert all(torch.equal(a[0], b[0]) for a, b in zip(whole, mixed)) and not torch.equal(whole[3][1], mixed[3][1])
    torch.testing.assert_close(made.head(whole[-1][0]), logits[0])


def test_chances_grow_from_nothing_to_the_given_one(target: TrainingTarget) -> None:
    chances = method(target, dropout=0.3).chances()
    assert chances[0] == 0 and chances[-1] == pytest.approx(0.3) and chances == sorted(chances)


@pytest.mark.parametrize("growing", [False, True])
def test_exits_take_turns_and_share_their_part_of_the_loss(target: TrainingTarget, growing: bool) -> None:
    made, seen = method(target, rotate=3, share=0.25, growing=growing), set[int]()
    for step in range(3):
        weights = made.exits(step)
        assert sum(weights.values()) == pytest.approx(0.25)
        assert seen.isdisjoint(weights) and len(weights) > 0
        ordered = [weights[layer] for layer in sorted(weights)]
        assert (ordered == sorted({*ordered})) if growing else len({*ordered}) == 1
        seen |= weights.keys()
    assert seen == {*range(1, LAYERS)}
    assert {*made.exits(0), *made.exits(1), *made.exits(2)} == seen
    few = method(target, rotate=2, deepest=2)
    assert [*few.exits(0), *few.exits(1)] == [2, 1]
    assert all(len(method(target, rotate=9).exits(step)) == 1 for step in range(9))


@pytest.mark.parametrize("soft", [False, True])
def test_exits_come_to_agree_with_the_last_layer(target: TrainingTarget, soft: bool) -> None:
    made = method(target, soft=soft, rotate=1, share=0.7)
    ids = torch.randint(300, (4, 40))
    batch = FeatureBatch(ids, torch.ones_like(ids, dtype=torch.float32), torch.tensor([40] * 4))

    def agreeing() -> float:
        with torch.no_grad():
            states = made.states(ids)
            own = made.head(states[-1].flatten(0, 1)).argmax(-1)
            return float((made.head(states[1].flatten(0, 1)).argmax(-1) == own).double().mean())

    before, optimizer = agreeing(), torch.optim.AdamW(made.module.parameters(), lr=3e-3)
    for step in range(20):
        torch.manual_seed(step)
        optimizer.zero_grad()
        torch.autograd.backward(made.loss(batch, step).total)
        optimizer.step()
    assert agreeing() > before + 0.1


def test_a_run_is_resumed_bit_equal_and_makes_a_model_that_says_what_it_is(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(plan(place, "whole"))
    again = broken_and_resumed(plan(place, "broken", save_seconds=0.0), 4, monkeypatch)
    one, other = (load_file(out / "model.safetensors") for out in (whole.out, again.out))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert whole.scores is not None and whole.scores.tau >= 1
    assert load_model(whole.out, dtype="float32").spec.early_exit
    made = engine_tau(whole.out, None, whole.held[:2], ["del", "early_exit"], None, 12, "float32")
    assert all(made.same.values())


@pytest.mark.parametrize(
    "settings", [{"dropout": 1.0}, {"share": 0.0}, {"rotate": 0}, {"layer": LAYERS}, {"deepest": LAYERS}]
)
def test_settings_out_of_range_are_named(target: TrainingTarget, settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        method(target, **settings)
