"""Rotary frequencies with their scaling, fixed at load; float32 throughout, to the bit as transformers."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.model.checks import positive
from paceline.model.spec import Rope

Params = Mapping[str, Any]
BASES, USUAL_BASE = ("rope_theta", "rope_local_base_freq", "rotary_emb_base"), 1e4
"""Keys with the base of frequencies, and the base where none is named."""
STORED_ROUNDING, LEAST_STORED_STEP = 0.01, 6e-8
"""Relative difference of frequencies that were stored in bfloat16, and the difference in float16 of small ones."""


def rope(params: Params, head_dim: int, trained_len: int, max_len: int) -> Rope:
    """The rotation that a config's `rope_parameters` describe.

    trained_len: the config's max_position_embeddings; max_len: the longest sequence that will be served.
    Raises CheckpointError for a scaling that cannot be fixed at load.
    """
    kind = params.get("rope_type", "default")
    if kind not in SCALINGS:
        raise CheckpointError(f"rope scaling {kind!r} is not supported; supported are {', '.join(SCALINGS)}.")
    refuse_unused(kind, params)
    part = 1.0 if kind == "proportional" else params.get("partial_rotary_factor", 1.0)
    rotated = int(head_dim * part)
    exponents = torch.arange(0, rotated, 2, dtype=torch.float32) / rotated
    periods = params["rope_theta"] ** exponents
    inverse, scale = SCALINGS[kind](params, periods, trained_len, max_len)
    return Rope(tuple(inverse.tolist()), scale)


def without_alpha(params: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """Parameters whose base is scaled by their `alpha` (NTK), where they have one: the others then say nothing."""
    if params.get("rope_type") != "dynamic" or not params.get("alpha"):
        return params
    wider = params["rope_theta"] * params["alpha"] ** (head_dim / (head_dim - 2))
    return {"rope_type": "default", "rope_theta": wider}


def without_scales(params: dict[str, Any], max_len: int) -> dict[str, Any]:
    """Parameters whose factors of cos and sin for short and for long texts are the one that is used.

    Transformers makes this family's frequencies in each pass without a length, so from the short factors at any;
    the long ones are used here as its authors' code does, for the length that is served (see `longrope`).
    """
    if params.get("rope_type") != "longrope":
        return params
    name = "long_mscale" if max_len > params["original_max_position_embeddings"] else "short_mscale"
    rest = {key: it for key, it in params.items() if key not in ("long_mscale", "short_mscale")}
    positive(name, params[name])
    return {**rest, "attention_factor": params[name]}


def implied(found: Tensor, turns: Iterable[Rope], config: Params) -> bool:
    """Are these stored frequencies those of a rotation, but for a factor of all and rounding, or those of a base in a
    raw config before any scaling?"""
    found = found.double().flatten()
    ours = [torch.tensor(it.inverse, dtype=torch.float64) for it in turns if it.inverse[0]]
    if found.shape in [it.shape for it in ours]:
        powers = torch.arange(len(found), dtype=torch.float64) / len(found)
        ours += [base**-powers for base in [*bases(config)] or [USUAL_BASE]]
    return not ours or any(
        it.shape == found.shape and torch.allclose(found * (it[0] / found[0]), it, STORED_ROUNDING, LEAST_STORED_STEP)
        for it in ours
    )


def bases(config: Params) -> Iterator[float]:
    """Bases of all rotations that a raw config names."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from bases(value)
        elif key in BASES and isinstance(value, int | float) and value > 0:
            yield float(value)


def refuse_unused(kind: str, params: Params) -> None:
    """CheckpointError for a key that this kind of scaling has no use for, unless it says what is so anyway."""
    known = {*COMMON_KEYS, *SCALING_KEYS[kind]}
    unused = [name for name, value in params.items() if name not in known and value is not None]
    for name in unused:
        if not (name == "factor" and params[name] == 1.0):
            raise CheckpointError(
                f"rope parameters of the kind {kind!r} have {name}, which would change the rotation in a way that is "
                f"not served; known are {', '.join(sorted(known))}."
            )


def default(params: Params, periods: Tensor, trained_len: int, max_len: int) -> tuple[Tensor, float]:
    return 1.0 / periods, 1.0


def dynamic(params: Params, periods: Tensor, trained_len: int, max_len: int) -> tuple[Tensor, float]:
    """NTK scaling by a text's length, which begins behind `max_position_embeddings`: up to there, which is as long as
    any text gets here, it changes nothing."""
    if max_len > trained_len or params["factor"] < 1:
        raise CheckpointError(
            f"rope scaling 'dynamic' changes the rotation as a text grows beyond {trained_len} tokens, while cached "
            "keys stay rotated as they were, so it cannot be served exactly; use a max_len up to that."
        )
    return 1.0 / periods, 1.0


def linear(params: Params, periods: Tensor, trained_len: int, max_len: int) -> tuple[Tensor, float]:
    return 1.0 / periods / params["factor"], 1.0


def llama3(params: Params, periods: Tensor, trained_len: int, max_len: int) -> tuple[Tensor, float]:
    """Llama 3.1: long waves are stretched by `factor`, short ones kept, those between interpolated."""
    factor, low, high = params["factor"], params["low_freq_factor"], params["high_freq_factor"]
    original = params["original_max_position_embeddings"]
    inverse = 1.0 / periods
    wave = 2 * math.pi / inverse
    stretched = torch.where(wave > original / low, inverse / factor, inverse)
    if low == high:  # Llama 4 Scout: none lie between
        return stretched, 1.0
    smooth = (original / wave - low) / (high - low)
    between = (1 - smooth) * stretched / factor + smooth * stretched
    medium = (wave >= original / high) & (wave <= original / low)
    return torch.where(medium, between, stretched), 1.0


def yarn(params: Params, periods: Tensor, trained_len: int, max_len: int) -> tuple[Tensor, float]:
    """YaRN (arXiv 2309.00071, section 3.2 to 3.4)."""
    original = params["original_max_position_embeddings"]
    factor = params.get("factor") or trained_len / original
    theta, dim = params["rope_theta"], 2 * len(periods)

    def boundary(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = boundary(params.get("beta_fast") or 32), boundary(params.get("beta_slow") or 1)
    if params.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = high - low if high != low else 0.001
    keep = 1 - ((torch.arange(len(periods), dtype=torch.float32) - low) / span).clamp(0, 1)
    inverse = 1.0 / (factor * periods) * (1 - keep) + 1.0 / periods * keep
    return inverse, yarn_scale(params, factor)


def yarn_scale(params: Params, factor: float) -> float:
    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if params.get("attention_factor") is not None:
        return float(params["attention_factor"])
    one, every = params.get("mscale"), params.get("mscale_all_dim")
    return mscale(one) / mscale(every) if one and every else mscale(1.0)


def longrope(params: Params, periods: Tensor, trained_len: int, max_len: int) -> tuple[Tensor, float]:
    """LongRoPE (arXiv 2402.13753). The long factors serve iff `max_len` exceeds the original length.

    Other engines switch sets as a text crosses that length, with the keys cached so far rotated by the
    other set. Here one set serves a whole engine: load with `max_len` at most the original length to
    get the short factors.
    """
    original = params["original_max_position_embeddings"]
    factor = params.get("factor") or trained_len / original
    scale = params.get("attention_factor")
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    factors = torch.tensor(params["long_factor" if max_len > original else "short_factor"], dtype=torch.float32)
    return 1.0 / (factors * periods), float(scale)


def proportional(params: Params, periods: Tensor, trained_len: int, max_len: int) -> tuple[Tensor, float]:
    """Gemma 4: frequencies are those of a whole head, of which the slow ones stand still."""
    turned = int(params.get("partial_rotary_factor", 1.0) * len(periods))
    inverse = 1.0 / periods
    inverse[turned:] = 0.0
    return inverse / params.get("factor", 1.0), 1.0


Scaling = Callable[[Params, Tensor, int, int], tuple[Tensor, float]]
SCALINGS: dict[str, Scaling] = {
    "default": default,
    "dynamic": dynamic,
    "linear": linear,
    "llama3": llama3,
    "yarn": yarn,
    "longrope": longrope,
    "proportional": proportional,
}
COMMON_KEYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings",
               "max_position_embeddings", "mrope_section", "mrope_interleaved", "finetuned")  # fmt: skip
"""Keys of every kind, used, or without a meaning for text: in it the sections of `mrope` share one position."""
SCALING_KEYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "dynamic": ("factor",),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"),
    "longrope": ("factor", "attention_factor", "short_factor", "long_factor"),
    "proportional": ("factor",),
}
