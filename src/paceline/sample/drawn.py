"""Draws that stay on their device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.warp import Warp
from paceline.sample.chunks import chunks
from paceline.sample.filters import law
from paceline.sample.noise import keys_tensor
from paceline.sample.race import perturbed


def drawn(logits: Tensor, warps: Sequence[Warp], keys: Sequence[int]) -> Tensor:
    """Tokens [N] int64, on their device, of logits [N, V]: what `Sampler.draw` draws by temperature and filters alone
    (greedy ones without a key); the host waits for the device only where top-p does; -1 where nothing is finite."""
    best, token = logits.max(-1)
    tokens = torch.where(best > float("-inf"), token, -1)
    sampled = [i for i, warp in enumerate(warps) if not warp.greedy]
    for part in chunks(logits) if sampled else ():
        mine = [i for i in sampled if part.start <= i < part.stop]
        if not mine:
            continue
        at = torch.tensor(mine, device=logits.device)
        log_p = law(logits[at], [warps[i] for i in mine])
        best, token = perturbed(log_p, keys_tensor([keys[i] for i in mine], logits.device)).max(-1)
        tokens[at] = torch.where(best > float("-inf"), token, -1)
    return tokens
