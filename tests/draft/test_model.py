"""The draft model's book-keeping, seen from the text it drafts on the toy."""

import dataclasses

import pytest

from paceline.core.params import SamplingParams
from paceline.core.request import SpecStats
from paceline.draft.model import ModelDrafter
from tests.lossless.cases import Setting, Wish, run


def params(**changes: object) -> SamplingParams:
    base = {"temperature": 0.0, "max_tokens": 24, "seed": 1, "drafter": "model", "ignore_eos": True}
    return SamplingParams(**{**base, **changes}).resolve({})


def test_the_targets_twin_is_always_right() -> None:
    """A draft equal to the target is accepted whole in every step, also after it had to catch up."""
    engine = Setting(draft_noise=0.0, nodes={"model": 4}).engine()
    for temperature in (0.0, 1.0):
        [[request]] = run(engine, [Wish([1, 2, 3, 4, 5], params(temperature=temperature))])
        assert request.stats.accepted == request.stats.drafted > 0
        assert request.stats.passes == 24 - request.stats.accepted


def test_a_doubtful_draft_ends_early() -> None:
    """Nodes a step follow the draft's own confidence: more of a sharp table than of a flat one."""
    lengths = []
    for sharpness in (0.3, 8.0):
        engine = Setting(sharpness=sharpness, draft_noise=0.0, nodes={"model": 6}).engine()
        [[request]] = run(engine, [Wish([1, 2, 3, 4, 5], params())])
        lengths.append(request.stats.drafted / request.stats.passes)
    assert lengths[0] <= 2 < lengths[1]


def test_each_pass_computes_only_what_is_missing() -> None:
    """After a step the draft feeds the tokens since its frontier and then its own: at most two, then one at a time."""
    setting = Setting(nodes={"model": 3}, draft_noise=1.0)
    engine = setting.engine()
    sizes: list[int] = []
    assert engine.components["draft"] is not None
    forward = engine.components["draft"].forward
    engine.components["draft"].forward = lambda rows: (sizes.append(len(rows.token)), forward(rows))[1]  # type: ignore[method-assign]
    run(engine, [Wish([1, 2, 3, 4, 5], params())])
    assert sizes[0] == 5
    assert max(sizes[1:]) <= 2


def test_prompt_chunks_are_followed() -> None:
    """While a long prompt is computed in chunks the draft model keeps pace, so the first draft is not late."""
    engine = Setting(nodes={"model": 3}, row_budget=8, max_requests=2, draft_noise=0.0).engine()
    [[request]] = run(engine, [Wish([i % 7 for i in range(30)], params(max_tokens=8))])
    assert request.stats.accepted == request.stats.drafted > 0


def test_a_masked_out_place_is_not_drafted() -> None:
    """Where no token may be drawn the draft ends; the request fails there with its own message, plain or not."""
    wish = params(allowed_tokens=(2, 3), bad_words=((3, 2), (3, 3)), temperature=1.0)
    for drafter in ("none", "model"):
        engine = Setting(draft_noise=0.0).engine()
        [[request]] = run(engine, [Wish([1, 2, 3], dataclasses.replace(wish, drafter=drafter))])
        assert engine.drafters.errors == [] and request.finish == "error"
        assert "allowed_tokens and bad_words" in str(request.error)


PATIENT = Setting(nodes={"model": 3}, draft_noise=0.5, patience_ms=1e9)


@dataclasses.dataclass
class Told:
    """What a request tells of itself, and the most passes of a step."""

    output: list[int]
    authors: list[str | None]
    finish: str | None
    stats: SpecStats
    most: int


def told(setting: Setting, **changes: object) -> Told:
    engine, passes = setting.engine(), list[int]()
    engine.recorder.ran = lambda *step: passes.append(step[2].passes)  # type: ignore[method-assign]
    [[request]] = run(engine, [Wish([1, 2, 3, 4, 5], params(**changes))])
    return Told(request.output, request.authors, request.finish, request.stats, max(passes))


def test_a_run_tells_what_its_passes_would() -> None:
    """Tokens, who drafted them, how many were kept, in how many passes: also where a stop ends it."""
    for changes in ({}, {"temperature": 1.0}, {"stop_token_ids": (3,)}, {"max_tokens": 12}):
        single = told(dataclasses.replace(PATIENT, patience_ms=0.0), **changes)
        several = told(PATIENT, **changes)
        assert several.output == single.output and several.finish == single.finish
        assert several.most > 1 == single.most
        drafted = several.authors.count("model")
        assert (
            several.stats.accepted == drafted and len(several.authors) == len(several.output) == several.stats.generated
        )
        ends = several.authors[-1] == "model"  # then its pass has drawn nothing else
        assert several.stats.passes == several.authors.count(None) + ends and drafted


def test_a_draft_model_that_fails_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on without it, and so does the request."""
    plain = told(PATIENT, drafter="none")

    def fail(self: ModelDrafter, asks: object, view: object) -> None:
        raise RuntimeError("no draft today")

    monkeypatch.setattr(ModelDrafter, "propose", fail)
    failed = told(PATIENT)
    assert failed.output == plain.output and failed.stats.drafted <= 6  # in its first steps, of one pass


@pytest.mark.parametrize("patience", [0.0, 1e9])
def test_a_drafter_that_cannot_be_made(patience: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs its requests their speed, no more."""

    def fail(self: ModelDrafter, host: object) -> None:
        raise RuntimeError("not today")

    plain = told(PATIENT, drafter="none")
    monkeypatch.setattr(ModelDrafter, "__init__", fail)
    assert told(dataclasses.replace(PATIENT, patience_ms=patience)).output == plain.output


def test_who_lags_too_far_for_a_run_drafts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelDrafter, "propose", lambda self, asks, view: None)
    assert told(PATIENT) == told(dataclasses.replace(PATIENT, patience_ms=0.0))
