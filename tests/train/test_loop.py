"""The loop: it learns, goes on where it was to the bit, and stops at what cannot be trained."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from paceline import LLM, SamplingParams
from paceline.cli import app
from paceline.core.errors import CapacityError, InputError
from paceline.train import TRAINERS, train
from paceline.train.evaluate import Measurement, engine_tau
from paceline.train.loop import TrainingPlan, opened
from paceline.train.method import HeadMethod
from tests.tiny import tiny_checkpoint
from tests.train.broken import broken_and_resumed

LINES = [
    {"text": f"Tom has {n} apples and buys {n + 1} more. How many apples does he have now? {2 * n + 1}."}
    for n in range(40)
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loop")
    tiny_checkpoint(path / "target", seed=1)
    (path / "data.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    return path


def plan(place: Path, out: str, **changes: Any) -> TrainingPlan:
    base: dict[str, Any] = {
        "method": "medusa", "target": place / "target", "data": (place / "data.jsonl",), "out": place / out,
        "minutes": None, "steps": 12, "dtype": "float32", "answers": False, "tokens": 256, "warmup": 2, "lr": 3e-3,
        "held": 4, "settings": {"depth": 2},
    }  # fmt: skip
    return TrainingPlan(**{**base, **changes})


SETTINGS: dict[str, dict[str, Any]] = {
    "medusa": {"draft_vocab": 150}, "hydra": {"prefix": True, "layers": 2},
    "clover": {"layers": 1, "objective": "tvd+smooth:3", "draft_vocab": 150, "own_head": True},
}  # fmt: skip


@pytest.mark.parametrize(
    "method, optimizer", [*((method, "adamw") for method in SETTINGS), ("hydra", "muon"), ("falcon", "muon")]
)
def test_a_run_that_was_killed_ends_with_the_same_bits(
    method: str, optimizer: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine: dict[str, Any] = {
        "method": method, "settings": {"depth": 2, **SETTINGS.get(method, {})}, "optimizer": optimizer,
    }  # fmt: skip
    whole = train(plan(place, f"{method}-{optimizer}-whole", **mine))
    broken = plan(place, f"{method}-{optimizer}-broken", save_seconds=0.0, **mine)
    again = broken_and_resumed(broken, 7, monkeypatch)
    steps = [line.split(",")[0] for line in (broken.out / "log.csv").read_text().splitlines()]
    assert steps == ["step", "10"]
    assert whole.steps == again.steps == 12 and whole.tokens == again.tokens
    one, other = (load_file(it.out / "model.safetensors") for it in (whole, again))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert whole.scores == again.scores


def test_it_learns_and_serves(place: Path) -> None:
    """The loss falls, accuracy rises, and the engine serves what came of it with plain decoding's text."""
    seen: list[Any] = []
    from paceline.train.loop import train as run

    made = run(plan(place, "learns", method="hydra", steps=60, lr=1e-2), seen.append)
    assert seen[-1].loss < 0.8 * seen[0].loss and made.scores is not None
    header, *rows = (made.out / "log.csv").read_text().splitlines()
    assert "loss: " in (made.out / "curve.svg").read_text(), "the log's picture"
    assert header == "step,tokens,seconds,loss,simulated_tau,accuracy_1,accuracy_2" and len(rows) == 6
    with LLM(place / "target", made.out, dtype="float32", memory="100M", nodes=4) as llm:
        for drafter in ("hydra", "auto"):
            params = SamplingParams(temperature=0.0, max_tokens=20, drafter=drafter, ignore_eos=True)
            plain = replace(params, drafter="none")
            texts = [llm.generate("Tom has 3 apples", p, progress=False)[0].token_ids for p in (plain, params)]
            assert texts[0] == texts[1]


@pytest.mark.parametrize("method", SETTINGS)
def test_the_engines_tau_is_the_simulated_one(method: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the target's own greedy answers, with chains: the same number of rounds, token for token."""
    from paceline.draft import grow
    from paceline.train.data import answered
    from paceline.train.evaluate import chain, evaluate
    from paceline.train.features import FeatureSource
    from paceline.train.target import TrainingTarget

    settings = {"depth": 3, **SETTINGS[method]}
    made = train(plan(place, f"{method}-tau", method=method, settings=settings, steps=40, lr=1e-2))
    target = TrainingTarget(place / "target", "float32")
    samples = answered(target, [{"prompt": line["text"][:30]} for line in LINES[:6]], 64, answer=24)
    trained = TRAINERS.get(method)(target, settings)
    assert isinstance(trained, HeadMethod)
    trained.module.load_state_dict(load_file(made.out / "model.safetensors"))
    scores = evaluate(trained, FeatureSource(target, samples, trained.taps), range(len(samples)))
    monkeypatch.setattr(grow, "best", lambda *of: chain(3))
    measured = engine_tau(place / "target", made.out, samples, [method], 3, answer=24, dtype="float32")
    assert scores is not None and measured.same[method]
    assert measured.tau[method] == pytest.approx(scores.tau) and measured.tau["none"] == 1.0


def test_a_loss_that_is_not_finite_stops_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = HeadMethod.loss

    def bad(self: Any, batch: Any, step: int, done: float) -> Any:
        made = loss(self, batch, step)
        made.total = made.total * (float("nan") if step == 3 else 1.0)
        return made

    monkeypatch.setattr(HeadMethod, "loss", bad)
    with pytest.raises(InputError, match=r"loss of step 3 is nan, in the batch of texts \[\d+"):
        train(plan(place, "nan"))


@pytest.mark.parametrize(("changes", "message"), [
    ({"minutes": None, "steps": None}, "Neither minutes nor steps"), ({"steps": 0}, "steps is 0"),
    ({"method": "guessing"}, "Unknown trainer 'guessing'; known are"),
    ({"settings": {"colour": "red"}}, "medusa has no setting 'colour'; it has depth"),
    ({"settings": {"depth": "many"}}, "depth is 'many'"), ({"settings": {"depth": 0}}, "at least one token"),
    ({"settings": {"objective": "love"}}, "'love' is not known"), 
    ({"method": "clover", "settings": {"version": 3}}, "versions 1 and 2"),
    ({"answers": True}, "no prompt"),
])  # fmt: skip
def test_bad_input_is_refused_in_a_sentence(changes: dict[str, Any], message: str, place: Path) -> None:
    with pytest.raises(InputError, match=message):
        train(plan(place, "bad", **changes))


def test_prompts_may_be_learned_from_but_what_is_held_out_stays(place: Path) -> None:
    lines = [{"prompt": f"Tom has {n} apples.", "answer": f"He has {n}."} for n in range(20)]
    (place / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for whole in (False, True):
        mine = plan(place, f"whole-{whole}", data=(place / "pairs.jsonl",), whole=whole)
        run, held = opened(mine)
        starts = [sample.start for sample in run.source.samples]
        assert held == 2 and min(starts[:held]) > 1
        assert (max(starts[held:]) == 1) == whole


def test_a_run_may_be_made_longer(place: Path) -> None:
    """More steps, or more time, than it had: the learning rate does not stay at its end."""
    assert train(plan(place, "longer", steps=4)).steps == 4
    assert train(plan(place, "longer", steps=8)).steps == 8
    state = torch.load(place / "longer" / "state.pt", weights_only=True)
    assert state["cool"] == (7, 1) and state["optimizers"][0]["param_groups"][0]["lr"] == 0.0
    timed = train(plan(place, "timed", steps=None, minutes=0.005))
    more = train(plan(place, "timed", steps=None, minutes=0.05))
    assert more.steps > timed.steps


def test_going_on_with_other_settings_is_refused(place: Path) -> None:
    train(plan(place, "other", steps=2))
    with pytest.raises(InputError, match=r"a training with lr = 0.003, not 0.1; give the same settings"):
        train(plan(place, "other", steps=4, lr=0.1))
    torch.save([1.0], place / "other" / "of another program.pt")
    for written in (b"torn", (place / "other" / "of another program.pt").read_bytes()):
        (place / "other" / "state.pt").write_bytes(written)
        with pytest.raises(InputError, match="delete it to start again"):
            train(plan(place, "other", steps=4))


def test_memory_that_ends_while_a_checkpoint_is_read_blames_no_file(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(plan(place, "little", steps=2))

    def fail(*args: Any, **names: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(CapacityError, match=r"state\.pt does not fit into the memory"):
        train(plan(place, "little", steps=4))


def test_from_the_command_line(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = CliRunner()
    listed = run.invoke(app, ["train", "list"])
    assert all(name in listed.output for name in TRAINERS.names())
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": it["text"][:30]}) for it in LINES[:12]))
    asked = [
        "train", "medusa", "--target", str(place / "target"), "--data", str(tmp_path / "prompts.jsonl"), "--dtype",
        "float32", "--out", str(tmp_path / "out"), "--steps", "3", "--set", "depth=2", "--answer", "20",
    ]  # fmt: skip
    made = run.invoke(app, asked)
    assert made.exit_code == 0, made.output
    assert "3 steps" in made.output and "the same text as plain decoding" in made.output
    assert "On 1 held-out texts" in made.output and "Too few texts to tell drafters apart" in made.output
    assert "It drafted nothing there" not in made.output
    assert (tmp_path / "out" / "log.csv").read_text().splitlines()[1].startswith("3,")
    assert (tmp_path / "out" / "model.safetensors").is_file() and (tmp_path / "out" / "state.pt").is_file()
    nothing = Measurement({"medusa": 1.0}, {"medusa": True}, {}, {"medusa": 0})
    monkeypatch.setattr("paceline.train.evaluate.engine_tau", lambda *given: nothing)
    again = run.invoke(app, asked)
    assert again.exit_code == 0 and "It drafted nothing there" in again.output
    for wrong, message in ((["--set", "depth"], "is not KEY=VALUE"), (["--minutes", "0"], "minutes is 0")):
        refused = run.invoke(app, [*asked, *wrong])
        assert refused.exit_code == 2 and message in refused.output + refused.stderr
