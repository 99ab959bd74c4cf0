"""`surrogate`: a small block that imitates a run of the model's layers (BlockLLM, arXiv 2404.18322, section 5.4).

The result is a draft model: the model's own layers below `first` and from `last` on, its embedding, norm and head, all
as they are, and between them `stands` layers in place of those from `first` to `last`. They begin as copies of layers
of the run, evenly spread, and learn the model's distribution and its last hidden states. Where the run's layers are a
slow way off, this block says here what they will say; the model verifies, by replay of the drafted rows through the
true layers, so the text is the model's. What both have in common is in memory once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from paceline.core.errors import InputError, RefusalError
from paceline.train import TRAINERS, Trains
from paceline.train.features import FeatureBatch
from paceline.train.method import Loss
from paceline.train.student import DraftMethod, StudentSettings
from paceline.train.target import TrainingTarget


@dataclass(frozen=True)
class SurrogateSettings(StudentSettings):
    first: int = -1
    """First layer of the run; -1: two fifths of the layers are below it."""
    last: int = 0
    """Layer behind the run; 0: it goes to the end."""
    stands: int = 2
    """Layers that stand in for it."""


@TRAINERS.register("surrogate", Trains("a small block that stands in for a run of the model's layers", drafter="model"))
class SurrogateTraining(DraftMethod):
    name = "surrogate"
    by_layer = True
    settings_type = SurrogateSettings
    settings: SurrogateSettings
    preset: ClassVar[Mapping[str, Any]] = {"objective": "kl+smooth:0.5"}

    def __init__(self, target: TrainingTarget, settings: dict[str, Any]) -> None:
        if "draft" in settings:
            raise InputError("surrogate begins with the target's own layers; leave draft out.")
        super().__init__(target, {"draft": str(target.path), **settings})
        s, config = self.settings, self.student.config
        count = config.num_hidden_layers
        first, last = 2 * count // 5 if s.first < 0 else s.first, s.last or count
        if not 0 <= first < last <= count or not 1 <= s.stands <= last - first:
            raise InputError(
                f"first {first}, last {last} and stands {s.stands} are no run of {count} layers with stand-ins."
            )
        if getattr(config, "layer_types", None) and len({*config.layer_types}) > 1:
            raise RefusalError("surrogate takes models whose layers are all of one kind.")
        own = self.student.model.layers
        copies = [first + ((2 * i + 1) * (last - first)) // (2 * s.stands) for i in range(s.stands)]
        kept = [*range(first), *copies, *range(last, count)]
        self.student.model.layers = torch.nn.ModuleList([own[i] for i in kept])
        for place, layer in enumerate(self.student.model.layers):
            layer.self_attn.layer_idx = place
        config.num_hidden_layers = len(kept)
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[: len(kept)]
        self.student.requires_grad_(False)
        learns = torch.nn.ModuleList(self.student.model.layers[first : first + s.stands])
        learns.requires_grad_(True)
        self.module = learns

    def loss(self, batch: FeatureBatch, step: int, done: float = 0.0) -> Loss:
        batch = self.rollout.next(batch, self.taps)
        wanted = batch.learn[:, 1:] > 0
        out = self.student.model(input_ids=batch.ids).last_hidden_state[:, :-1][wanted]
        token, state = batch.ids[:, 1:][wanted], batch.hidden["post_norm"][:, :-1][wanted]
        with torch.no_grad():
            teacher = self.target.head(state) / self.settings.temperature
        logits = self.student.lm_head(out).float()
        places = self.goal.places(
            teacher=teacher, logits=logits / self.settings.temperature, token=token, hidden=state.float(), out=out
        )
        hit = float((logits.detach().argmax(-1) == token).sum())
        return Loss(places.mean(), [hit], [float(len(token))])
