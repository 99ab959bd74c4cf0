"""Training of `medusa` (draft/medusa.py): heads on a frozen target (Medusa-1, arXiv 2401.10774, section 3.2.1)."""

from paceline.draft.medusa import Medusa
from paceline.train import TRAINERS, Trains
from paceline.train.method import HeadMethod


@TRAINERS.register("medusa", Trains("heads that guess each of the next tokens apart, from one hidden state"))
class TrainMedusa(HeadMethod):
    head = Medusa
    objective = "kl"
    decay = 0.8
