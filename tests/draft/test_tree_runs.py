"""Trees of a draft model inside runs: the text of single steps, drafted and accepted as single steps would."""

import dataclasses

import pytest

from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.draft.tree import TreeProposer
from tests.lossless.cases import Setting, Wish, run

PATIENT = Setting(nodes={"topk": 6}, draft_noise=0.6, patience_ms=1e9, block_size=2)


def served(setting: Setting, **changes: object) -> tuple[Request, int]:
    """A request, and the most passes of a step."""
    engine, passes = setting.engine(), list[int]()
    engine.recorder.ran = lambda *step: passes.append(step[2].passes)  # type: ignore[method-assign]
    base = {"temperature": 0.0, "seed": 3, "max_tokens": 30, "ignore_eos": True, "drafter": "topk", **changes}
    wish = Wish([1, 2, 3, 4, 5], SamplingParams(**base).resolve({}))  # type: ignore[arg-type]
    [[request]] = run(engine, [wish])
    assert not engine.drafters.errors
    return request, max(passes)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_run_is_its_single_steps(temperature: float) -> None:
    """Tokens, who drafted them, and nodes per depth: but for the last tree, which has only the rows that are left."""
    several, most = served(PATIENT, temperature=temperature)
    single, one = served(dataclasses.replace(PATIENT, patience_ms=0.0), temperature=temperature)
    assert most > 1 == one and several.output == single.output
    assert several.authors[:20] == single.authors[:20] and several.authors.count("topk") > 5
    assert several.stats.passes == pytest.approx(single.stats.passes, abs=2)
    assert several.stats.drafted > 20 and several.stats.offered[0] > several.stats.passes, "trees, not chains"


def test_what_is_accepted_off_the_first_path_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the draft model's rows stay where they were; its next drafts are worse, the text is the same."""
    right, _ = served(PATIENT)
    monkeypatch.setattr(TreeProposer, "move", lambda self, source, target: None)
    wrong, _ = served(PATIENT)
    assert wrong.output == right.output and wrong.stats.accepted < right.stats.accepted
