"""What the training of heads with attention of their own shares: a loss over unrolled steps, ranks, a directory."""

import json
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.draft.companion import CONFIG, WEIGHTS
from paceline.draft.layers import whole
from paceline.train.features import FeatureBatch
from paceline.train.method import Loss, Method, placed
from paceline.train.objective import Objective
from paceline.train.target import TrainingTarget

Steps = list[Tensor]
"""What a head puts out at each depth, [B, T - 2 - depth, H]: row t is of the round whose root is token t + 1."""


class UnrolledMethod(Method):
    """A method gives `unroll`, `logits`, `depth`, perhaps `known` (a draft vocabulary)."""

    target: TrainingTarget
    accuracy: tuple[tuple[float, ...], ...] = ()

    def goals(self, settings: dict[str, Any], objective: str, decay: float) -> None:
        """Take `objective` and `decay` out of what the user set."""
        decay = float(settings.pop("decay", decay))
        self.goal = Objective.parse(str(settings.pop("objective", objective)), decay)

    @property
    @abstractmethod
    def depth(self) -> int: ...

    @abstractmethod
    def unroll(self, batch: FeatureBatch) -> Steps: ...

    @abstractmethod
    def logits(self, out: Tensor) -> Tensor:
        """[N, draft vocabulary]"""

    def known(self) -> Tensor | None:
        """Ids of the draft vocabulary, ascending; None: it is the target's."""
        return None

    def loss(self, batch: FeatureBatch, step: int, done: float = 0.0) -> Loss:
        steps, post = self.unroll(batch), batch.hidden["post_norm"]
        return self.losses(steps, post, batch)

    def losses(self, steps: Steps, post: Tensor, batch: FeatureBatch) -> Loss:
        """The objective at every depth against the target's distributions, which are computed once: the distribution
        for a token is the same at whatever depth it is drafted."""
        loss, ids, weight = Loss(torch.zeros(())), self.known(), 0.0
        learn = batch.learn.bool()
        learn[:, :2] = False
        at = torch.full(learn.shape, -1, dtype=torch.int64)
        at[learn] = torch.arange(int(learn.sum()))
        states, tokens = post[:, :-1][learn[:, 1:]], batch.ids[learn]
        with torch.no_grad():
            teacher = self.target.head(states)
            inside = torch.ones(len(tokens), dtype=torch.bool)
            if ids is not None:  # what the target would say must be a word of the draft
                inside, teacher = torch.isin(teacher.argmax(-1), ids), teacher[:, ids]
        alive = torch.ones_like(learn)
        for depth, out in enumerate(steps):
            rows = out.shape[1]
            law = at[:, 2 + depth : 2 + depth + rows].flatten()
            places = (law >= 0).nonzero().flatten()
            law = law[places]
            mine = out.flatten(0, 1)[places]
            logits = self.logits(mine)
            use = inside[law].nonzero().flatten()
            if len(use):
                mark = tokens[law[use]]
                own = mark if ids is None else torch.searchsorted(ids, mark).clamp(max=len(ids) - 1)
                each = self.goal.places(
                    teacher=teacher[law[use]], logits=logits[use], token=own, hidden=states[law[use]], out=mine[use]
                )
                loss.total = loss.total + self.goal.decay**depth * each.mean()
                weight += self.goal.decay**depth
            with torch.no_grad():
                said = logits.argmax(-1) if ids is None else ids[logits.argmax(-1)]
                hit = torch.zeros(len(batch.ids) * rows, dtype=torch.bool)
                looked = torch.zeros_like(hit)
                hit[places], looked[places] = said == tokens[law], True
                before = alive[:, :rows].flatten() & looked
                loss.seen.append(float(before.sum()))
                loss.right.append(float((before & hit).sum()))
                alive = (alive[:, :rows].flatten() & hit).view(-1, rows)
        loss.total = loss.total / max(weight, 1e-9)
        return loss

    @torch.no_grad()
    def ranks(self, batch: FeatureBatch) -> Tensor:
        ids = self.known()
        out = torch.full((*batch.ids.shape, self.depth), -1, dtype=torch.int64)
        for depth, each in enumerate(self.unroll(batch)):
            rows = each.shape[1]
            logits = whole(self.logits(each.flatten(0, 1)), ids, self.target.spec.vocab)
            out[:, :rows, depth] = placed(logits, batch, depth, rows)
        return out


def write_head(
    path: Path,
    weights: Mapping[str, Tensor],
    config: Mapping[str, Any],
    method: UnrolledMethod,
    facts: Mapping[str, Any],
) -> None:
    """The directory that `--draft` takes."""
    path.mkdir(parents=True, exist_ok=True)
    proposal = {"proposal_type": "greedy", "speculative_tokens": method.depth}
    verifier = {"name_or_path": method.target.name, "architectures": [method.target.spec.family]}
    algorithm = config["speculators_model_type"]
    whole = {
        **config,
        "accuracy": method.accuracy,
        "speculators_config": {
            "algorithm": algorithm, "default_proposal_method": "greedy", "proposal_methods": [proposal],
            "verifier": verifier,
        },
        "training": dict(facts),
    }  # fmt: skip
    save_file({name: part.contiguous() for name, part in weights.items()}, path / WEIGHTS)
    (path / CONFIG).write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
