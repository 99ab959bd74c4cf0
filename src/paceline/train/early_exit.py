"""`early_exit`: the target itself, trained on so that its lower layers draft (LayerSkip, Elhoushi et al. 2024, arXiv
2404.16710).

Of L layers, layer l (from 0) is left out for a text of a batch with the chance (section 4.1.1)

    dropout * (exp(l ln 2 / (L - 1)) - 1),

and the loss adds to that of the last layer those of exits, each behind the same final norm and head (section 4.1.2):

    loss = (1 - share) CE(last layer) + share * sum over exits of e(l) J(l) / sum of e(l).

A step takes every `rotate`-th exit of 1 .. `deepest`, in turn. Weights e(l) grow as 1 + .. + l with
`growing`; without, all are alike. J is cross entropy with the next token, or (`soft`) with the last layer's own
distribution: what a draft has to match.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core.errors import InputError, RefusalError
from paceline.train import TRAINERS, Trains
from paceline.train.features import FeatureBatch
from paceline.train.method import Loss
from paceline.train.student import TAU_DEPTH_TOKENS, DraftMethod, StudentSettings
from paceline.train.target import TrainingTarget


@dataclass(frozen=True)
class ExitSettings(StudentSettings):
    dropout: float = 0.1
    """Chance of the last layer to be left out; that of the first is 0."""
    share: float = 0.5
    """Share of the exits in the loss."""
    rotate: int = 4
    deepest: int = 0
    """Exits are those behind 1 .. `deepest` layers; 0: behind all but the last. A short training has few to spare."""
    growing: bool = False
    soft: bool = True
    layer: int = 0
    """Exit whose drafts are simulated on held-out texts; 0: that behind a quarter of the layers."""


@TRAINERS.register(
    "early_exit", Trains("the model itself, trained on to draft with its lower layers", drafter="del", model=True)
)
class EarlyExitTraining(DraftMethod):
    name = "early_exit"
    by_layer = True
    settings_type = ExitSettings
    settings: ExitSettings
    preset: ClassVar[Mapping[str, Any]] = {"objective": "ce"}

    def __init__(self, target: TrainingTarget, settings: dict[str, Any]) -> None:
        super().__init__(target, {"draft": str(target.path), **settings})
        s = self.settings
        inner: Any = getattr(self.student, "model", None)
        if not all(hasattr(inner, part) for part in ("layers", "norm")) or self.taps:
            raise RefusalError(
                f"{target.name} has no list of layers behind one norm in the library transformers, or the objective is "
                "not ce; early_exit trains models of the llama, mistral and qwen2 kind, with objective ce."
            )
        self.depth, most = len(inner.layers), len(inner.layers) - 1
        fits = 0 <= s.layer <= most and 0 <= s.deepest <= most
        if not (0 <= s.dropout < 1 and 0 < s.share < 1 and s.rotate >= 1 and fits):
            raise InputError(
                f"dropout is {s.dropout}, share {s.share}, rotate {s.rotate}, deepest {s.deepest} and layer {s.layer}; "
                f"give dropout in [0, 1), share in (0, 1), rotate of at least 1, deepest and layer up to {most}."
            )
        self.layer = s.layer or max(1, self.depth // 4)
        self.kept: list[Tensor] = []
        """[B, 1, 1] of each layer, in a step: does the text keep it?"""
        self.behind: list[Tensor] = []
        """[B, T, H] behind each layer of the latest pass."""
        for number, block in enumerate(inner.layers):
            block.register_forward_hook(self.left_out(number))

    def left_out(self, number: int) -> Any:
        """Hook that returns a layer's input in place of its output for texts that skip the layer, and keeps the
        result."""

        def hook(block: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            mixed = torch.where(self.kept[number], output, args[0]) if self.kept else output
            self.behind.append(mixed)
            return mixed

        return hook

    def chances(self) -> list[float]:
        """Chance of each layer to be left out."""
        last = max(1, self.depth - 1)
        return [self.settings.dropout * math.expm1(layer * math.log(2) / last) for layer in range(self.depth)]

    def exits(self, step: int) -> dict[int, float]:
        """{layers run: weight} of the exits of a step; the weights add up to `share`."""
        s = self.settings
        deepest = s.deepest or self.depth - 1
        stride = min(s.rotate, deepest)
        mine = [layer for layer in range(1, deepest + 1) if (layer - step) % stride == 0]
        raw = [layer * (layer + 1) / 2 if s.growing else 1.0 for layer in mine]
        return {layer: s.share * weight / sum(raw) for layer, weight in zip(mine, raw)}

    def states(self, ids: Tensor) -> list[Tensor]:
        """[B, T, H] behind 1, 2, .. layers, before the final norm."""
        self.behind = []
        self.student.model(input_ids=ids, use_cache=False)
        made, self.behind = self.behind, []
        return made

    def head(self, states: Tensor) -> Tensor:
        """Logits [N, V], float32."""
        made: Tensor = self.student.lm_head(self.student.model.norm(states))
        return made.float()

    def loss(self, batch: FeatureBatch, step: int, done: float = 0.0) -> Loss:
        wanted = batch.learn[:, 1:] > 0
        token = batch.ids[:, 1:][wanted]
        self.kept = [torch.rand(len(batch.ids), 1, 1) >= chance for chance in self.chances()]
        try:
            states = self.states(batch.ids)
        finally:
            self.kept = []
        last = self.head(states[-1][:, :-1][wanted])
        law = last.detach().softmax(-1)
        total = (1 - self.settings.share) * F.cross_entropy(last, token)
        right = list[float]()
        for layer, weight in self.exits(step).items():
            mine = self.head(states[layer - 1][:, :-1][wanted])
            total = total + weight * F.cross_entropy(mine, law if self.settings.soft else token)
            right.append(float((mine.detach().argmax(-1) == last.argmax(-1)).sum()))
        return Loss(total, right[:1], [float(len(token))])

    @torch.no_grad()
    def ranks(self, batch: FeatureBatch) -> Tensor:
        """[B, T, DEPTH]: of the whole model's most probable token, at `layer`: its simulated tau is of drafts from
        there, along the text."""
        states = self.states(batch.ids)
        count = batch.ids.shape[1]
        own = self.head(states[-1].flatten(0, 1)).argmax(-1)[:, None]
        logits = self.head(states[self.layer - 1].flatten(0, 1))
        rank = (logits > logits.gather(1, own)).sum(-1).view(-1, count)[:, :-1]
        known = torch.arange(1, count)[None] < batch.length[:, None]
        rank = F.pad(torch.where(known, rank, -1), (0, TAU_DEPTH_TOKENS + 1), value=-1)
        return torch.stack([rank[:, 1 + depth : 1 + depth + count] for depth in range(TAU_DEPTH_TOKENS)], -1)

    def save(self, path: Path, facts: Mapping[str, Any]) -> None:
        self.student.config.early_exit = True
        super().save(path, facts)
