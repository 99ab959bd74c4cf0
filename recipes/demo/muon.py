"""Muon (Jordan et al., 2024) in float32: torch's own runs its iteration in bfloat16, slow on plain CPUs."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor


def orthogonalize(g: Tensor) -> Tensor:
    """Newton-Schulz iteration of degree 5 on float32 [n, rows, cols], each matrix by itself."""
    tall = g.size(1) > g.size(2)
    x: Tensor = g / (g.norm(dim=(1, 2), keepdim=True) + 1e-7)
    x = x.mT if tall else x
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x


class Muon:
    """Momentum with orthogonalized steps for weight matrices; matrices of one shape go as one batch."""

    def __init__(self, parameters: Iterable[Tensor], momentum: float = 0.95, decay: float = 0.1) -> None:
        groups: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for parameter in parameters:
            groups[parameter.shape].append(parameter)
        self.groups = [(group, torch.zeros(len(group), *shape)) for shape, group in groups.items()]
        self.momentum, self.decay = momentum, decay

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for group, velocity in self.groups:
            gradient = torch.stack([p.grad for p in group if p.grad is not None])
            velocity.lerp_(gradient, 1 - self.momentum)
            update = orthogonalize(gradient.lerp(velocity, self.momentum))
            scale = max(1.0, update.size(1) / update.size(2)) ** 0.5
            for parameter, delta in zip(group, update, strict=True):
                parameter.mul_(1 - lr * self.decay).sub_(lr * scale * delta)
