"""`specdec`: an acceptance head for a draft model (SpecDec++, Huang et al. 2024, arXiv 2405.19715, section 4.1).

Of each text X of the target the draft model draws Y_t behind X_<t; the label of Y_t is its chance to be accepted,
min(1, p(Y_t) / q(Y_t)). The head then reads the draft model's states over a text Z that has X_t with probability
`keep`, else Y_t, and learns the labels at the latter by weighted binary cross entropy. `temperature` is that of the
serving: at 0 the draft's most probable token is drawn, and the label says whether it is the target's, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from paceline.draft.acceptance import AcceptanceHead
from paceline.train import TRAINERS, Trains
from paceline.train.features import FeatureBatch
from paceline.train.method import Loss, Method, settled
from paceline.train.student import loaded, write
from paceline.train.target import TrainingTarget


@dataclass(frozen=True)
class HeadSettings:
    draft: str = ""
    blocks: int = 3
    weight: float = 6.0
    """Weight of rejections in the loss."""
    risk: float = 0.7
    keep: float = 0.15
    temperature: float = 1.0


def weighted_bce(logits: Tensor, label: Tensor, weight: float) -> Tensor:
    """Weighted binary cross-entropy of class logits [N, 2] and labels [N] in [0, 1]; rejections count `weight`
    times."""
    log = logits.float().log_softmax(-1)
    total = weight * (1 - label) * log[:, 0] + label * log[:, 1]
    return -total.sum() / (weight * (1 - label) + label).sum().clamp(min=1e-9)


@TRAINERS.register("specdec", Trains("a head that ends a draft model's drafts in time", drafter="specdec"))
class SpecDec(Method):
    taps = ("post_norm",)

    def __init__(self, target: TrainingTarget, settings: dict[str, Any]) -> None:
        from paceline.core.errors import InputError

        self.settings = HeadSettings(**settled(HeadSettings, settings, {}, "specdec"))
        if not self.settings.draft:
            raise InputError("specdec needs the draft model that its head is for; give --set draft=DIRECTORY.")
        self.target, self.student = target, loaded(target, self.settings.draft)
        self.student.eval().requires_grad_(False)
        made = AcceptanceHead(cast(Any, self.student.config).hidden_size, self.settings.blocks, self.settings.risk)
        self.module = self.head = made

    @torch.no_grad()
    def labelled(self, batch: FeatureBatch) -> tuple[Tensor, Tensor, Tensor]:
        """(states of the draft model [B, T, H] over Z, labels [B, T] of the tokens of Z, which of them are Y)."""
        student: Any = self.student
        t = self.settings.temperature
        q = student(input_ids=batch.ids).logits[:, :-1].float()
        p = self.target.head(batch.hidden["post_norm"][:, :-1])
        if t:
            q, p = (q / t).softmax(-1), (p / t).softmax(-1)
            drawn = torch.multinomial(q.flatten(0, 1), 1).view(q.shape[:2])
            label = (p.gather(2, drawn[..., None]) / q.gather(2, drawn[..., None]).clamp(min=1e-20))[..., 0].clamp(
                max=1
            )
        else:
            drawn = q.argmax(-1)
            label = (drawn == p.argmax(-1)).float()
        swapped = (batch.learn[:, 1:] > 0) & (torch.rand(drawn.shape) >= self.settings.keep)
        text = batch.ids.clone()
        text[:, 1:] = torch.where(swapped, drawn, text[:, 1:])
        hidden = student.base_model(input_ids=text).last_hidden_state
        return hidden[:, 1:], label, swapped

    def loss(self, batch: FeatureBatch, step: int, done: float = 0.0) -> Loss:
        hidden, label, drawn = self.labelled(batch)
        logits = self.head.logits(hidden[drawn])
        hit = ((logits.detach()[:, 1] > logits.detach()[:, 0]) == (label[drawn] > 0.5)).sum()
        return Loss(weighted_bce(logits, label[drawn], self.settings.weight), [float(hit)], [float(drawn.sum())])

    def save(self, path: Path, facts: Mapping[str, Any]) -> None:
        write(self.student, self.target, path)
        self.head.save(path)
