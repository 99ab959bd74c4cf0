"""Predictors learn what comes."""

import numpy as np
import pytest

from paceline.cluster.workflow.predict import Corrected, FittedPredictor, SecondsTable
from paceline.cluster.workflow.tasks import CallWork, Instance
from paceline.core.errors import InputError

ONE = Instance("x", "k")


def test_a_line_is_found_from_noisy_calls() -> None:
    rng, fitted = np.random.default_rng(0), FittedPredictor({"k": (1.0, 1.0, 1.0)})
    for _ in range(400):
        work = CallWork("s", float(rng.uniform(100, 5000)), float(rng.uniform(10, 500)))
        true = 0.2 + 0.0003 * work.tokens_in + 0.03 * work.tokens_out
        fitted.learn(work, ONE, true * float(rng.normal(1.0, 0.05)))
    assert fitted.seconds(CallWork("s", 2000, 200), ONE) == pytest.approx(0.2 + 0.6 + 6.0, rel=0.05)


def test_a_slowed_instance_is_known_after_some_calls_also_for_other_steps() -> None:
    corrected = Corrected(SecondsTable({"k": {"a": 1.0, "b": 2.0}}), rate=0.3)
    other = Instance("y", "k")
    for _ in range(20):
        corrected.learn(CallWork("a"), ONE, 3.0)
    assert corrected.seconds(CallWork("a"), ONE) == pytest.approx(3.0, rel=0.01)
    assert corrected.seconds(CallWork("b"), ONE) == pytest.approx(6.0, rel=0.01)
    assert corrected.seconds(CallWork("a"), other) == 1.0


def test_a_table_learns_and_guesses_what_it_has_not_seen() -> None:
    table = SecondsTable({"k": {"a": 1.0, "b": 3.0}}, rate=0.5)
    assert table.seconds(CallWork("new"), ONE) == 2.0
    table.learn(CallWork("new"), ONE, 8.0)
    table.learn(CallWork("new"), ONE, 4.0)
    assert table.seconds(CallWork("new"), ONE) == 6.0
    with pytest.raises(InputError, match="known are k"):
        table.seconds(CallWork("a"), Instance("z", "other"))
