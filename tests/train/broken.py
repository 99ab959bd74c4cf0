"""Training that ends in the middle and goes on."""

from typing import Any

import pytest

from paceline.train import train
from paceline.train.loop import Trained, TrainingPlan, TrainingRun


def broken_and_resumed(plan: TrainingPlan, step: int, monkeypatch: pytest.MonkeyPatch) -> Trained:
    """The run of a plan that is interrupted before this step and started again."""
    advance = TrainingRun.advance

    def killed(self: TrainingRun, batches: Any) -> float:
        if self.step == step:
            raise KeyboardInterrupt
        return advance(self, batches)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingRun, "advance", killed)
        with pytest.raises(KeyboardInterrupt):
            train(plan)
    return train(plan)
