"""Draws that stay on their device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.sample.chunks import chunks
from paceline.sample.filters import Warp, law
from paceline.sample.noise import keys_tensor
from paceline.sample.race import perturbed


def drawn(logits: Tensor, temperature: Sequence[float], keys: Sequence[int]) -> Tensor:
    """Tokens [N] int64, on their device, of logits [N, V]: what `Sampler.draw` draws by temperature alone (0: greedy,
    without a key), without waiting for the host; -1 where nothing is finite."""
    best, token = logits.max(-1)
    tokens = torch.where(best > float("-inf"), token, -1)
    sampled = [i for i, heat in enumerate(temperature) if heat]
    for part in chunks(logits) if sampled else ():
        mine = [i for i in sampled if part.start <= i < part.stop]
        if not mine:
            continue
        at = torch.tensor(mine, device=logits.device)
        log_p = law(logits[at], [Warp(temperature[i], 0, 1.0, 0.0) for i in mine])
        best, token = perturbed(log_p, keys_tensor([keys[i] for i in mine], logits.device)).max(-1)
        tokens[at] = torch.where(best > float("-inf"), token, -1)
    return tokens
