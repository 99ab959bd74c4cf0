"""Training of `clover` (draft/clover.py): states and distributions of the target as labels, the true tokens above, a
gradient through all depths (Clover-2, arXiv 2408.00264, section 3.3). `--set version=1 --set layers=1` is Clover."""

from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import InputError
from paceline.draft.clover import Clover
from paceline.draft.layers import RMSNorm
from paceline.train import TRAINERS, Trains
from paceline.train.method import HeadMethod
from paceline.train.target import TrainingTarget


@TRAINERS.register("clover", Trains("a recurrence over drafted tokens on a state enriched once a round"))
class TrainClover(HeadMethod):
    head = Clover
    objective = "smooth:10+kl"
    decay = 0.7

    def __init__(self, target: TrainingTarget, settings: dict[str, Any]) -> None:
        if str(settings.get("version", 2)) not in ("1", "2"):
            raise InputError(f"version is {settings['version']!r}, but Clover has the versions 1 and 2.")
        super().__init__(target, settings)

    def config(self, target: TrainingTarget) -> dict[str, Any]:
        return {**super().config(target), "theta": target.theta}

    def started(self) -> None:
        """The block begins as the target's last layers, where they are of its form, and what the head puts out with the
        norm of the target's states."""
        super().started()
        assert isinstance(self.module, Clover)
        with torch.no_grad():
            for index, layer in enumerate(self.module.block, len(self.target.spec.layers) - len(self.module.block)):
                weights = self.target.layer(index) if index >= 0 else None
                if weights is not None and self.module.config.ffn == self.target.spec.ffn:
                    layer.load_state_dict(weights)
            for norm in self.module.norms:
                assert isinstance(norm, RMSNorm)
                norm.weight.copy_(self.target.norm_weight)

    def teacher(self, hidden: Tensor) -> Tensor:
        return self.target.norm(hidden)
