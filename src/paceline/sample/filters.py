"""Temperature, min-p, top-k, top-p: from processed logits to the distribution that is drawn from.

Every filter is one *floor* per row: tokens with a logit below it are removed, tokens equal to it stay. So ties at a
boundary are kept together, whatever their order in memory, and no result depends on a sort's treatment of equals.
Every operation treats rows independently, so a row's distribution does not depend on its batch mates, bit for bit.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.warp import Warp
from paceline.native.structs import warps_in
from paceline.sample.race import native

NUCLEUS = (64, 1024)
"""How many of the most probable tokens top-p looks through for its boundary before it sorts a row."""


def temper(logits: Tensor, warps: Sequence[Warp]) -> Tensor:
    """logits [L, V] divided by each row's temperature; the argument itself when all are 1.

    Always by a tensor: a division by a Python number may be done as a product with its reciprocal, and then a row
    would depend on whether its batch mates share its temperature. Below 1e-30 nothing changes but an overflow.
    """
    if all(w.temperature == 1 for w in warps):
        return logits
    return logits / torch.tensor([[max(w.temperature, 1e-30)] for w in warps], dtype=logits.dtype, device=logits.device)


def min_p_floor(z: Tensor, min_p: Sequence[float]) -> Tensor:
    """Floor [L, 1]: min_p times the most probable token's probability."""
    return z.amax(-1, keepdim=True) + torch.tensor(min_p, dtype=z.dtype, device=z.device)[:, None].log()


def top_k_floor(z: Tensor, top_k: Sequence[int]) -> Tensor:
    """Floor [L, 1]: the k-th largest logit."""
    ks = [min(k, z.shape[-1]) for k in top_k]
    values = z.topk(max(ks), dim=-1).values
    return values.gather(-1, torch.tensor(ks, device=z.device)[:, None] - 1)


def top_p_floor(log_p: Tensor, top_p: Sequence[float]) -> Tensor:
    """Floor [L, 1]: the log-probability with which the most probable tokens' probability reaches top_p.

    The sum runs in float64 over a few of the most probable; only rows that do not reach top_p go on to more.
    """
    whole = log_p.to(torch.float64).exp().sum(-1, keepdim=True)  # 1 to seven digits: the last tokens weigh less
    p = torch.tensor(top_p, dtype=torch.float64, device=log_p.device)[:, None] * whole
    floor = torch.empty_like(log_p[:, :1])
    todo = torch.arange(len(top_p), device=log_p.device)
    size = log_p.shape[-1]
    for count in (*(n for n in NUCLEUS if n < size), size):
        values, cum = nucleus(log_p[todo], count)
        at = (cum < p[todo]).sum(-1, keepdim=True)
        floor[todo] = values.gather(-1, at.clamp(max=count - 1))
        todo = todo[at[:, 0] == count]
        if not len(todo):
            break
    return floor


def nucleus(log_p: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest log-probabilities in order and their cumulative probability (float64), both [L, count]."""
    values = log_p.topk(count, dim=-1).values if count < log_p.shape[-1] else log_p.sort(-1, descending=True).values
    return values, values.to(torch.float64).exp().cumsum(-1)


FILTERS = (("min_p", min_p_floor, 0), ("top_k", top_k_floor, 0), ("top_p", top_p_floor, 1))
"""(parameter, its floor, the value that switches it off), in the order they are applied."""


def narrow(z: Tensor, warps: Sequence[Warp]) -> Tensor:
    """z [L, V] after temperature, with -inf below the floors of min-p, top-k and top-p, in this order; each filter
    sees what the one before it left. Rows may come back shifted by a constant."""
    for name, floor_of, off in FILTERS:
        values = [getattr(w, name) for w in warps]
        on = [i for i, value in enumerate(values) if value != off]
        if not on:
            continue
        part = z if len(on) == len(warps) else z[on]
        part = part.log_softmax(-1) if name == "top_p" else part
        part = part.masked_fill(part < floor_of(part, [values[i] for i in on]), float("-inf"))
        z = part if len(on) == len(warps) else z.index_copy(0, torch.tensor(on, device=z.device), part)
    return z


def law(logits: Tensor, warps: Sequence[Warp]) -> Tensor:
    """log p [L, V] of sampled rows. A row without any finite logit comes back as NaN. Where the native library can read
    them, as its own runs of passes have it, bit for bit."""
    it = native(logits)
    if it is None:
        return torch_law(logits, warps)
    rows, width = logits.shape
    logits = logits.contiguous()
    log_p, threads = torch.empty_like(logits), torch.get_num_threads()
    it.paceline_law(logits.data_ptr(), rows, width, warps_in(warps), threads, log_p.data_ptr())
    return log_p


def torch_law(logits: Tensor, warps: Sequence[Warp]) -> Tensor:
    """`law` without the native library, on any device: its reference form."""
    return narrow(temper(logits, warps), warps).log_softmax(-1)


def boundary(logits: Tensor, warps: Sequence[Warp]) -> list[float]:
    """How far each row's surviving set is from another one, from the logits before temperature; inf if nothing filters.

    The smallest over the active filters of: the gap between the last kept and the first removed logit (top-k, top-p:
    the two would swap), the distance of a logit to the floor (min-p), the distance of a cumulative probability to
    top_p. A change of all log-probabilities by less than half of it leaves the set as it is.
    """
    z = temper(logits, warps).to(torch.float64)
    return [float("inf") if warp.greedy else _gap(z[i : i + 1], warp) for i, warp in enumerate(warps)]


def _gap(z: Tensor, warp: Warp) -> float:
    gap = float("inf")
    for name, floor_of, off in FILTERS:
        value = getattr(warp, name)
        if value == off:
            continue
        z = z.log_softmax(-1)
        floor = floor_of(z, [value])
        removed = z < floor
        if name == "min_p":
            gap = min(gap, (z - floor).abs().min().item())
        elif removed.any():
            gap = min(gap, (z[~removed].min() - z[removed].max()).item())
        if name == "top_p":
            gap = min(gap, (nucleus(z, z.shape[-1])[1] - value).abs().min().item())
        z = z.masked_fill(removed, float("-inf"))
    return gap
