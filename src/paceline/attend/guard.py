"""Guards that keep non-finite keys and values from rows that do not see them."""

import math

import torch
from torch import Tensor


def guarded(kv: Tensor) -> Tensor:
    """Keys and values [2 or 1, kv_heads, T, head_dim] as a pool may hold them.

    A row gives a value that it does not see the share 0, but 0 times NaN is NaN. So numbers of a value that are not
    finite become zeros and all of its key NaN, which a mask hides from the rows that do not see it. Keys that are the
    values, too, become NaN: `values_of` reads them as zeros. So all numbers of a key are NaN, or none is."""
    if kv.is_cpu and math.isfinite(kv.sum(dtype=torch.float32)):
        return kv
    mark = (kv * 0).sum((0, 3))[None, :, :, None]  # 0 or NaN
    return torch.cat((kv[:1] + mark, finite(kv[1:])))


def values_of(kv: Tensor) -> Tensor:
    """The values [...] among guarded keys and values [2 or 1, ...]. A CPU looks at one number of each key first: zeros
    in place of NaN are a copy."""
    if len(kv) > 1:
        return kv[1]
    return kv[0] if kv.is_cpu and math.isfinite(kv[0, ..., 0].sum(dtype=torch.float32)) else finite(kv[0])


def finite(x: Tensor) -> Tensor:
    """The numbers, with zeros in place of those that are not finite."""
    return x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
