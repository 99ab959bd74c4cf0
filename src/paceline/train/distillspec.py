"""`distillspec`: a draft model learns its target's distribution (DistillSpec, Zhou et al. 2023, arXiv 2310.08461).

Divergence (`--set objective=kl|reverse|jsd|tvd|lk`) and source of texts (`--set rollout=data|policy|mixed`) are
options: which is best depends on task and temperature. A draft's chance to be accepted is 1 - tvd. With `objective=ce`
and the target's answers it is sequence-level distillation.
"""

from typing import ClassVar

from paceline.train import TRAINERS, Trains
from paceline.train.student import DraftMethod


@TRAINERS.register("distillspec", Trains("a draft model that learns its target's distribution", drafter="model"))
class DistillSpec(DraftMethod):
    name = "distillspec"
    preset: ClassVar = {"objective": "kl", "rollout": "mixed"}
