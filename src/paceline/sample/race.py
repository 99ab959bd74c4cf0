"""The Gumbel race: argmax over tokens of log p + noise.

`argmax(log p - log(-log u))` is `argmin(E / p)` with E = -log u, and E >= v = 1 - u. So v / p bounds every token's time
from below with neither logarithm nor float64, and only the few tokens whose bound is within the best one's time are
computed exactly.
"""

from array import array
from ctypes import CDLL

import torch
from torch import Tensor

from paceline.native.build import library
from paceline.sample.chunks import chunks
from paceline.sample.noise import counts, gumbel

EXACT_RACE_TOKENS = 1024
"""Tokens a row up to which all survivors of filters race exactly."""


def perturbed(scores: Tensor, keys: Tensor) -> Tensor:
    """scores + Gumbel noise, float64 [N, V]; `keys` int64 [N]. `winners` of it is the slow twin of `race`."""
    return scores.to(torch.float64) + gumbel(keys, torch.arange(scores.shape[-1], device=scores.device))


def native(scores: Tensor) -> CDLL | None:
    """The library, where it can read these scores."""
    return library() if scores.is_cpu and scores.dtype is torch.float32 else None


def winners(scores: Tensor) -> list[int]:
    """Row-wise argmax, the lowest id at ties; -1 where the largest score is -inf or one is NaN."""
    it = native(scores)
    if it is None:
        return torch_winners(scores)
    rows, width = scores.shape
    scores, won = scores.contiguous(), array("q", bytes(8 * rows))
    it.paceline_winners(scores.data_ptr(), rows, width, torch.get_num_threads(), won.buffer_info()[0])
    return won.tolist()


def torch_winners(scores: Tensor) -> list[int]:
    """`winners` without the native library, on any device: its reference form."""
    best, token = scores.max(-1)
    return torch.where(best > float("-inf"), token, -1).tolist()


def race(scores: Tensor, keys: Tensor, sparse: bool = False) -> list[int]:
    """Winner of each row of log-probabilities [N, V], the lowest id at ties, -1 where nothing is finite.

    `sparse`: filters probably left few tokens a row.
    """
    it = native(scores)
    if it is None:
        parts = chunks(scores)
        return [token for part in parts for token in torch_race(scores[part], keys[part], sparse)]
    rows, width = scores.shape
    scores, won = scores.contiguous(), array("q", bytes(8 * rows))
    threads, to = torch.get_num_threads(), won.buffer_info()[0]
    it.paceline_race(scores.data_ptr(), rows, width, keys.data_ptr(), threads, to)
    return won.tolist()


def torch_race(scores: Tensor, keys: Tensor, sparse: bool = False) -> list[int]:
    """`race` without the native library, on any device: its reference form."""
    row, token = (scores > float("-inf")).nonzero(as_tuple=True) if sparse else contenders(scores, keys)
    if len(row) > EXACT_RACE_TOKENS * len(scores):
        row, token = contenders(scores, keys)
    value = scores[row, token].to(torch.float64) + gumbel(keys[row], token[:, None])[:, 0]
    best = [(float("-inf"), -1)] * len(scores)
    for i, t, x in zip(row.tolist(), token.tolist(), value.tolist()):
        if x > best[i][0]:
            best[i] = (x, t)
    return [t for _, t in best]


def contenders(scores: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """(row [C], token [C]) of every token that can win its row, ascending; a few dozen a row.

    With p scaled to a maximum of 1, the token of the smallest bound b = v / p has v <= b, and -log(1 - v) / v grows
    with v, so its time is at most -log(1 - b); a candidate with a larger bound has lost. 1.0001 covers float32.
    """
    rest = counts(keys, torch.arange(scores.shape[-1], device=scores.device)).bitwise_xor_((1 << 52) - 1)
    v = rest.to(torch.float32).add_(0.5)  # 1 - u in units of 2**-52
    p = (scores - scores.amax(-1, keepdim=True)).exp_().to(torch.float32)
    bound = v.div_(p)
    least = bound.amin(-1, keepdim=True).to(torch.float64) * (2.0**-52 * 1.0001)
    limit = -torch.log1p(-least.clamp(max=1 - 2.0**-53)) * (2.0**52 * 1.0001)
    row, token = (bound <= limit.to(torch.float32)).nonzero(as_tuple=True)
    return row, token
