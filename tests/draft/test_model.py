"""The draft model's book-keeping, seen from the text it drafts on the toy."""

import dataclasses

from paceline.core.params import SamplingParams
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
    assert engine.draft_model is not None
    forward = engine.draft_model.forward
    engine.draft_model.forward = lambda rows: (sizes.append(len(rows.token)), forward(rows))[1]  # type: ignore[method-assign]
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
        assert engine.drafter_errors == [] and request.finish == "error"
        assert "allowed_tokens and bad_words" in str(request.error)
