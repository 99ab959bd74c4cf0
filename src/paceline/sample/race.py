"""The Gumbel race: argmax over tokens of log p + noise."""

import torch
from torch import Tensor

from paceline.core.noise import gumbel


def perturbed(scores: Tensor, keys: Tensor) -> Tensor:
    """scores + Gumbel noise, float64 [N, V]; `keys` int64 [N]."""
    return scores.to(torch.float64) + gumbel(keys, torch.arange(scores.shape[-1], device=scores.device))


def race(scores: Tensor, keys: Tensor) -> list[int]:
    """Winner of each row of log-probabilities [N, V], the lowest id at ties, or -1 where nothing is finite."""
    return winners(perturbed(scores, keys))


def winners(scores: Tensor) -> list[int]:
    """Row-wise argmax, the lowest id at ties; -1 where the largest score is -inf or NaN."""
    best, token = scores.max(-1)
    return torch.where(best > float("-inf"), token, -1).tolist()
