"""Training of `hydra` (draft/hydra.py): the target's own distributions as labels, the true tokens above (arXiv
2402.05109, section 4). `--set prefix=true --set layers=4` is Hydra++."""

import torch

from paceline.draft.hydra import Hydra
from paceline.train import TRAINERS, Trains
from paceline.train.method import HeadMethod


@TRAINERS.register("hydra", Trains("heads that see the tokens drafted above them; --set prefix=true: Hydra++"))
class TrainHydra(HeadMethod):
    head = Hydra
    objective = "kl"
    decay = 0.8

    def started(self) -> None:
        """The prefix layer begins as the identity: of its norm as far as one number can."""
        super().started()
        assert isinstance(self.module, Hydra)
        if self.module.config.prefix:
            with torch.no_grad():
                self.module.norm.weight.fill_(float(self.target.norm_weight.square().mean().sqrt()))
