"""What turns gradients into steps: AdamW for all weights, or Muon for matrices and AdamW for the rest."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

OPTIMIZER_NAMES = ("adamw", "muon")
OUTPUT_MATRICES = ("lm_head", "output")
"""Parts of a weight's name that say that it is a matrix onto a vocabulary: a row there is a token's, so it is not
orthogonalized."""
FASTER = 20 / 3
"""Muon's learning rate over AdamW's: its steps have the size of a rotation, not of a sign."""


def orthogonalize(g: Tensor) -> Tensor:
    """Newton-Schulz iteration of degree 5 on float32 [n, rows, cols], each matrix by itself."""
    tall = g.size(1) > g.size(2)
    x: Tensor = g / (g.norm(dim=(1, 2), keepdim=True) + 1e-7)
    x = x.mT if tall else x
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x


class Muon(Optimizer):
    """Momentum with orthogonalized steps for matrices (Jordan et al., 2024), in float32: torch's own runs its iteration
    in bfloat16, slow on plain CPUs. Matrices of one shape go as one batch, whose velocity the first of them holds."""

    def __init__(
        self, parameters: Iterable[Tensor], lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.1
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise NotImplementedError("Muon takes the gradients as they are.")
        for group in self.param_groups:
            batches: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                batches[parameter.shape].append(parameter)
            for batch in batches.values():
                self.advance(batch, group)

    def advance(self, batch: list[Tensor], group: dict[str, Any]) -> None:
        """Move a batch of matrices. Nothing moves if none has a gradient; else a missing gradient counts as zero."""
        if all(p.grad is None for p in batch):
            return
        state = self.state[batch[0]]
        gradient = torch.stack([torch.zeros_like(p) if p.grad is None else p.grad for p in batch])
        velocity = state.setdefault("velocity", torch.zeros_like(gradient))
        velocity.lerp_(gradient, 1 - group["momentum"])
        update = orthogonalize(gradient.lerp(velocity, group["momentum"]))
        scale = max(1.0, update.size(1) / update.size(2)) ** 0.5
        for parameter, delta in zip(batch, update, strict=True):
            parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * scale * delta)


def optimizers(name: str, module: nn.Module, lr: float, weight_decay: float) -> list[tuple[Optimizer, float]]:
    """(optimizer, its learning rate where the rate is 1) for the weights of a module that want gradients."""
    weights = {part: weight for part, weight in module.named_parameters() if weight.requires_grad}
    matrices = list[Tensor]()
    if name == "muon":
        tables = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
        matrices = [
            weight for part, weight in weights.items()
            if weight.ndim == 2 and min(weight.shape) > 1 and id(weight) not in tables
            and not set(part.split(".")) & set(OUTPUT_MATRICES)
        ]  # fmt: skip
    chosen = {id(weight) for weight in matrices}
    rest = [weight for weight in weights.values() if id(weight) not in chosen]
    made = list[tuple[Optimizer, float]]()
    if rest:
        adam = torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=weight_decay, fused=True)
        made.append((adam, lr))
    if matrices:
        made.append((Muon(matrices, lr=FASTER * lr, weight_decay=weight_decay), FASTER * lr))
    return made
