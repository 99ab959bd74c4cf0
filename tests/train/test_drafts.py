"""Small draft models and decision heads: they learn, go on to the bit, and the engine serves what came of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paceline.core.errors import InputError
from paceline.train import TRAINERS, train
from paceline.train.data import Sample
from paceline.train.evaluate import engine_tau
from paceline.train.fastdraft import ffn, fit
from paceline.train.features import FeatureSource
from paceline.train.judge import auc, final
from paceline.train.loop import TrainingPlan
from paceline.train.rollout import Rollout
from paceline.train.specdec import weighted_bce
from paceline.train.student import DraftMethod
from paceline.train.target import TrainingTarget
from tests.tiny import tiny_checkpoint
from tests.train.broken import broken_and_resumed

LINES = [
    {"prompt": f"Tom has {n} apples and buys {n + 1} more. How many?", "answer": f"He has {2 * n + 1} now."}
    for n in range(40)
]
SHAPE = {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 48}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drafts")
    tiny_checkpoint(path / "target", seed=1)
    tiny_checkpoint(path / "draft", seed=2)
    tiny_checkpoint(path / "foreign", "qwen2", vocab=300)
    (path / "data.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    return path


def plan(place: Path, out: str, method: str, settings: dict[str, Any], **changes: Any) -> TrainingPlan:
    base: dict[str, Any] = {
        "minutes": None, "steps": 6, "dtype": "float32", "answers": False, "tokens": 256, "warmup": 2, "lr": 3e-3,
        "held": 4,
    }  # fmt: skip
    return TrainingPlan(
        method=method, target=place / "target", data=(place / "data.jsonl",), out=place / out, settings=settings,
        **{**base, **changes},
    )  # fmt: skip


def settings(place: Path, method: str) -> dict[str, Any]:
    draft = {"draft": str(place / "draft")}
    known: dict[str, dict[str, Any]] = {
        "distillspec": {**draft, "objective": "tvd+kl:0.5", "rollout": "mixed"}, "fastdraft": SHAPE,
        "s2d": {**SHAPE, "exits": "1,2"}, "specdec": {**draft, "blocks": 1},
        "crossvocab": {"draft": str(place / "foreign")}, "surrogate": {"first": 1, "stands": 1},
    }  # fmt: skip
    return known[method]


@pytest.mark.parametrize("method", ["distillspec", "fastdraft", "s2d", "specdec", "crossvocab", "surrogate"])
def test_killed_and_resumed_is_bit_equal_and_serves(method: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = settings(place, method)
    whole = train(plan(place, f"{method}-whole", method, mine))
    broken = plan(place, f"{method}-broken", method, mine, save_seconds=0.0)
    again = broken_and_resumed(broken, 4, monkeypatch)
    files = [sorted(file.relative_to(it.out) for file in it.out.rglob("*.safetensors")) for it in (whole, again)]
    assert files[0] == files[1] and files[0]
    for file in files[0]:
        one, other = load_file(whole.out / file), load_file(again.out / file)
        assert all(torch.equal(one[name], other[name]) for name in one), file
    serves = TRAINERS.card(method).drafter
    assert serves is not None
    made = engine_tau(place / "target", whole.out, whole.held[:2], [serves], None, 12, "float32")
    assert made.same[serves]


@pytest.mark.parametrize("objective", ["kl", "reverse", "jsd", "tvd", "lk"])
def test_every_divergence_brings_the_laws_together(place: Path, objective: str) -> None:
    target = TrainingTarget(place / "target", "float32")
    method = TRAINERS.get("distillspec")(target, {"draft": str(place / "draft"), "objective": objective,
                                                 "rollout": "data"})  # fmt: skip
    assert isinstance(method, DraftMethod)
    samples = [Sample(tuple(torch.randint(320, (40,)).tolist()), 1) for _ in range(4)]
    batch = FeatureSource(target, samples, method.taps).batch(range(4))

    def met() -> float:
        with torch.no_grad():
            p = target.head(batch.hidden["post_norm"]).softmax(-1)
            return float(torch.minimum(p, method.logits(batch.ids).softmax(-1)).sum(-1).mean())

    before, optimizer = met(), torch.optim.AdamW(method.module.parameters(), lr=3e-3)
    for step in range(12):
        optimizer.zero_grad()
        method.loss(batch, step).total.backward()
        optimizer.step()
    assert met() > before + 0.01


def test_rollouts_come_from_whom_they_say(place: Path) -> None:
    target = TrainingTarget(place / "target", "float32")
    method = TRAINERS.get("distillspec")(target, {"draft": str(place / "draft")})
    samples = [Sample(tuple(range(5, 30)), 6) for _ in range(20)]
    batch = FeatureSource(target, samples, ("post_norm",)).batch(range(20))
    for kind, share, most in (("data", 0.5, 0), ("policy", 0.0, 20), ("mixed", 0.5, None)):
        torch.manual_seed(3)
        rollout = Rollout.of(kind, share, 1.0, target, method.module)
        made = rollout.next(batch, ("post_norm",))
        assert rollout.counts["policy"] + rollout.counts["data"] == 20
        assert (0 < rollout.counts["policy"] < 20) if most is None else rollout.counts["policy"] == most
        own = sum(made.ids[row, : made.length[row]].tolist() != list(range(5, 30)) for row in range(20))
        assert own == rollout.counts["policy"]
        assert all(made.ids[row, :6].tolist() == list(range(5, 11)) for row in range(20))
        assert made.hidden["post_norm"].shape[:2] == made.ids.shape
    with pytest.raises(InputError, match="must be one of data"):
        Rollout.of("teacher", 0.5, 1.0, target, method.module)


def test_weighted_bce_is_its_formula() -> None:
    logits, label = torch.randn(9, 2), torch.rand(9)
    a = logits.softmax(-1)[:, 1]
    for weight in (1.0, 6.0):
        want = -(weight * (1 - label) * (1 - a).log() + label * a.log()).sum()
        want = want / (weight * (1 - label) + label).sum()
        torch.testing.assert_close(weighted_bce(logits, label, weight), want)


def test_final_answers_and_areas() -> None:
    assert [final(text) for text in ("so 3 + 4 = 7.", "#### 1,200 dollars 5", "none", "it is -2.5")] == [
        "7", "1200", None, "-2.5",
    ]  # fmt: skip
    assert auc([3, 2, 1], [True, True, False]) == 1 and auc([1, 1], [True, False]) == 0.5


def test_a_shape_is_fitted_by_cost() -> None:
    def cost(shape: tuple[int, int]) -> float:
        return shape[0] * shape[1] * 1e-10

    shallow = fit(8192, 1e-3, overhead=4e-4, cost=cost)
    deep = fit(8192, 1e-3, overhead=0.0, cost=cost)
    assert shallow.seconds <= 1e-3 and deep.parameters > shallow.parameters and shallow.layers == 1
    assert shallow.settings["ffn"] == ffn(shallow.width)
    with pytest.raises(InputError, match="allow more time"):
        fit(8192, 1e-9, cost=cost)


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        ("specdec", {}, "needs the draft model"),
        ("judge", {}, "needs the draft model"),
        ("s2d", {**SHAPE, "exits": "1,3"}, "must ascend to 2"),
        ("fastdraft", {**SHAPE, "depth": 3}, "has no setting 'depth'"),
        ("fastdraft", {**SHAPE, "heads": 5}, "do not divide"),
        ("distillspec", {**SHAPE, "objective": "l2"}, "is not known"),
        ("distillspec", {"draft": "/nowhere"}, "."),
    ],
)
def test_bad_settings_are_refused(place: Path, method: str, given: dict[str, Any], said: str) -> None:
    from paceline.core.errors import PacelineError

    with pytest.raises(PacelineError, match=said):
        train(replace(plan(place, "bad", method, given)))


def test_a_recurrent_draft(place: Path) -> None:
    """A fresh Mamba-2 of two layers: its directory is a draft as any other, and the text stays."""
    mine = plan(place, "mamba2", "fastdraft", {**SHAPE, "family": "mamba2"})
    made = train(mine)
    assert json.loads((made.out / "config.json").read_text())["model_type"] == "mamba2"
    assert engine_tau(place / "target", made.out, made.held[:2], ["model"], None, 12, "float32").same["model"]
    for method, wrong in (("fastdraft", {"family": "rwkv"}), ("s2d", {"family": "mamba2", "exits": "1,2"})):
        with pytest.raises(InputError, match="family"):
            train(plan(place, "wrong", method, {**SHAPE, **wrong}))
