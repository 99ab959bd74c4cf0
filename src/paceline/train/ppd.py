"""Training of `ppd` (draft/ppd.py): the embeddings of m prompt tokens, by what the frozen target says behind them
(Chen et al. 2024, arXiv 2405.18628, section 3.3). The j-th learns the target's distribution j places on, with a weight
of 0.8 ** (j - 1). A text is used at many cuts at once: a chain behind a row sees the text up to there, and no row sees
it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.core.errors import InputError
from paceline.draft.head import HeadConfig
from paceline.draft.ppd import PPD
from paceline.train import TRAINERS, Trains
from paceline.train.features import FeatureBatch
from paceline.train.heads import Steps, UnrolledMethod, write_head
from paceline.train.method import Loss
from paceline.train.target import TrainingTarget
from paceline.train.through import Through

CUTS = 96
"""Cuts of a batch."""


class PromptsModule(nn.Module):
    def __init__(self, first: Tensor) -> None:
        super().__init__()
        self.prompts = nn.Embedding(len(first), first.shape[1], _weight=first)


@TRAINERS.register("ppd", Trains("prompt embeddings that the target itself reads", lr=1e-2))
class TrainPpd(UnrolledMethod):
    def __init__(self, target: TrainingTarget, settings: dict[str, Any]) -> None:
        settings, spec = dict(settings), target.spec
        self.goals(settings, "kl", 0.8)
        depth, self.cuts = int(settings.pop("depth", 3)), int(settings.pop("cuts", CUTS))
        if settings or depth < 1 or self.cuts < 1:
            raise InputError(
                f"ppd has the settings depth and cuts, of at least 1, and objective; not {sorted(settings)}."
            )
        self.config = HeadConfig(width=spec.hidden, vocab=spec.vocab, max_len=spec.max_len, depth=depth)
        self.target, self.taps, self.through = target, (), Through(target)
        table = target.embed(torch.arange(spec.vocab))
        self.module: PromptsModule = PromptsModule(table.mean(0) + 0.1 * table.std() * torch.randn(depth, spec.hidden))

    @property
    def depth(self) -> int:
        return self.config.depth

    def unroll(self, batch: FeatureBatch) -> Steps:
        """Outputs of all rows whose second next token is learned; zeros elsewhere."""
        text, _ = self.through.text(batch.ids)
        rows, cuts = batch.learn[:, 2:].nonzero().unbind(1)
        made = [
            self.through.chains(text, cut, row, self.module.prompts.weight)
            for cut, row in zip(torch.split(cuts, 256), torch.split(rows, 256))
        ]
        width, length = self.config.width, batch.ids.shape[1]
        whole = torch.zeros(len(batch.ids), length, self.depth, width)
        whole[rows, cuts] = torch.cat(made)
        return [whole[:, : length - 2 - depth, depth] for depth in range(self.depth)]

    def logits(self, out: Tensor) -> Tensor:
        return self.target.head(out)

    def loss(self, batch: FeatureBatch, step: int, done: float = 0.0) -> Loss:
        text, post = self.through.text(batch.ids)
        learn = batch.learn.bool()
        rows, cuts = learn[:, 1 + self.depth :].nonzero().unbind(1)  # whose whole chain has tokens to learn
        some = torch.randperm(len(cuts))[: self.cuts]
        rows, cuts = rows[some], cuts[some]
        loss = Loss(self.module.prompts.weight.sum() * 0)
        if not len(cuts):
            return loss
        out = self.through.chains(text, cuts, rows, self.module.prompts.weight)
        alive, weight = torch.ones(len(cuts), dtype=torch.bool), 0.0
        for j in range(self.depth):
            with torch.no_grad():
                teacher = self.target.head(post[rows, cuts + 1 + j])
            logits, token = self.target.head(out[:, j]), batch.ids[rows, cuts + 2 + j]
            each = self.goal.places(
                teacher=teacher, logits=logits, token=token, hidden=post[rows, cuts + 1 + j], out=out[:, j]
            )
            loss.total = loss.total + self.goal.decay**j * each.mean()
            weight += self.goal.decay**j
            hit = logits.argmax(-1) == token
            loss.seen.append(float(alive.sum()))
            loss.right.append(float((alive & hit).sum()))
            alive = alive & hit
        loss.total = loss.total / weight
        return loss

    def save(self, path: Path, facts: Mapping[str, Any]) -> None:
        config = {
            "architectures": ["PpdSpeculator"], "speculators_model_type": PPD, "speculators_version": "0.1.0",
            **self.config.written(),
        }  # fmt: skip
        write_head(path, {"prompts.weight": self.module.prompts.weight.detach()}, config, self, facts)
