"""Training of drafters: one loop, and one file for each method.

**The contract of a method.** A file in this folder registers one class under the name that `paceline train NAME` has:

    @TRAINERS.register("medusa", Trains("heads that guess each depth apart"))
    class Medusa(HeadMethod): ...

The loop (`train/loop.py`) makes it once, `Method(target, settings)`, with what the user set (`--set KEY=VALUE`), and
uses:

- `module`: the `torch.nn.Module` whose parameters with `requires_grad` are trained;
- `taps`: the target's hidden states that a batch must bring ((): none);
- `see(samples)`: once, before anything else, the texts that it will learn from (a draft vocabulary comes of them);
- `loss(batch, step) -> Loss`: a scalar with a gradient, and what was seen: for each depth how many of the counted
  places were right given that all before were. `step` counts from 0; draw from torch's own generator, which the loop
  seeds for every step, so that a resumed run draws the same;
- `ranks(batch) -> Tensor`: on held-out text, the rank [places, depths] that the true token has at each depth where the
  true tokens are above, 0 the first; simulated tau and the accuracies come from it (`train/evaluate.py`). None where a
  method has no such thing;
- `save(path, facts)`: write the directory that `--draft` takes.

`HeadMethod` (`train/method.py`) has all of it for a `Head` (draft/head.py): such a method is one `config`. Its
`unroll(batch)` gives what it says at each depth, and an `Objective` (`train/objective.py`) makes the loss of that.

A batch (`train/features.py`) is `ids` [B, T], `learn` [B, T] (is this token one to predict?), `length` [B] and `hidden`
{tap: [B, T, H]}; the state of row t has read ids[:, t]. What follows it is ids[:, t + 1], the *root* of a round; a
draft of depth d (0 first) at row t is for ids[:, t + 2 + d], and the target's own distribution for it is
`head(hidden[:, t + 1 + d])`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.core.registry import Registry

if TYPE_CHECKING:
    from paceline.train.loop import Trained, TrainingPlan
    from paceline.train.method import Method
    from paceline.train.target import TrainingTarget


@dataclass(frozen=True, slots=True)
class Trains:
    """A method's card."""

    summary: str
    data: str = "answers"
    """Data that the method learns from: `answers` of the target to the prompts, or the `text` as it is given."""
    drafter: str | None = None
    """Drafter that serves the result; None: the one with the method's name."""
    lr: float = 1e-3
    """Learning rate, where none is given."""
    model: bool = False
    """It makes a model that drafts for itself, not a drafter for the target."""


TRAINERS: "Registry[Callable[[TrainingTarget, dict[str, Any]], Method]]" = Registry("trainer", "paceline.train")


def train(plan: "TrainingPlan") -> "Trained":
    """Train as the plan says, or go on with what was begun in its directory. See `train.loop.Plan`."""
    from paceline.train.loop import train

    return train(plan)
