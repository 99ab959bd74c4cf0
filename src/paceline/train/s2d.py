"""`s2d`: one draft model of which several depths draft by themselves (sorted fine-tuning: S2D, Kavehzadeh et al. 2024,
arXiv 2407.01955, section 3.1).

Loss: the mean over the exits of next-token cross entropy, each behind the same final norm and head. The target's
distribution is not used, so one draft serves all targets of the vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import InputError
from paceline.draft.exits import Exits
from paceline.train import TRAINERS, Trains
from paceline.train.features import FeatureBatch
from paceline.train.method import Loss
from paceline.train.student import DraftMethod, StudentSettings
from paceline.train.target import TrainingTarget


@dataclass(frozen=True)
class SortedSettings(StudentSettings):
    layers: int = 6
    exits: str = "2,4,6"
    """Layers behind which it may stop, ascending; the last one is all of them."""
    threshold: float = 0.5
    """Threshold of all exits but the last."""


@TRAINERS.register("s2d", Trains("one draft model with several exits, for several targets", drafter="s2d"))
class Sorted(DraftMethod):
    name = "s2d"
    by_layer = True
    settings_type = SortedSettings
    settings: SortedSettings

    def __init__(self, target: TrainingTarget, settings: dict[str, Any]) -> None:
        super().__init__(target, settings)
        depth = self.student.config.num_hidden_layers
        try:
            layers = [int(each) for each in self.settings.exits.split(",")]
            self.exits = Exits(layers, [self.settings.threshold] * (len(layers) - 1) + [0.0])
            fits = layers[-1] == depth
        except ValueError:
            fits = False
        if not fits:
            raise InputError(f"exits are {self.settings.exits!r}, but they must ascend to {depth}, the last layer.")

    def sub(self, ids: Tensor) -> list[Tensor]:
        """Logits [B, T, V] at each exit."""
        out = self.student(input_ids=ids, output_hidden_states=True)
        inner, head = self.student.model, self.student.lm_head
        made = [head(inner.norm(out.hidden_states[layer])) for layer in self.exits.layers[:-1]]
        return [*made, out.logits]  # the library's last hidden state has passed the norm

    def loss(self, batch: FeatureBatch, step: int, done: float = 0.0) -> Loss:
        batch = self.rollout.next(batch, self.taps)
        wanted = batch.learn[:, 1:] > 0
        losses = [self.compared(batch, wanted, logits[:, :-1]) for logits in self.sub(batch.ids)]
        return Loss(torch.stack([loss.total for loss in losses]).mean(), losses[-1].right, losses[-1].seen)

    def save(self, path: Path, facts: Mapping[str, Any]) -> None:
        super().save(path, facts)
        self.exits.save(path)
