"""Eviction policies by name."""

from collections.abc import Callable

from paceline.cache.eviction import LRU, Eviction
from paceline.cache.marking import Det, Mark0, MarkPredict
from paceline.cache.predict import ClientBits, LearnedReuse
from paceline.cache.shadow import Shadow
from paceline.core.errors import InputError
from paceline.core.noise import EvictionNoise
from paceline.core.plugins import joined

HORIZON = 8
"""Uses, per block of the cache, within which "again" is soon. With 2 the learned bits give up what is late, and LRU is
better (`bench/studies/eviction.py`)."""
EVICTION_NOISE = EvictionNoise(0)


def _mark_predict(blocks: int) -> Eviction:
    return MarkPredict(LearnedReuse(HORIZON * blocks), EVICTION_NOISE)


def _told(blocks: int) -> Eviction:
    horizon = HORIZON * blocks
    return Det(ClientBits(horizon, LearnedReuse(horizon)))


EVICTION_POLICIES: dict[str, Callable[[int], Eviction]] = {
    "lru": lambda blocks: LRU(),
    "det": lambda blocks: Det(LearnedReuse(HORIZON * blocks)),
    "mark0": lambda blocks: Mark0(LearnedReuse(HORIZON * blocks), EVICTION_NOISE),
    "mark_predict": _mark_predict,
    "told": lambda blocks: Shadow(blocks, LRU(), _told(blocks)),
    "shadow": lambda blocks: Shadow(blocks, LRU(), _mark_predict(blocks)),
}
"""Name -> factory of a policy for a cache with the given number of blocks, with bits learned from what is asked for."""


def policy(name: str) -> Callable[[int], Eviction]:
    """Ours, or an installed package's (entry points `paceline.evictions`). InputError for an unknown name."""
    if name in EVICTION_POLICIES:
        return EVICTION_POLICIES[name]
    known = joined("eviction", EVICTION_POLICIES)
    if name not in known:
        raise InputError(f"Unknown eviction policy {name!r}; known are {', '.join(sorted(known))}.")
    return known[name]
