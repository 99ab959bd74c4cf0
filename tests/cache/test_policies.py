"""The names."""

import pytest

from paceline.cache.eviction import LRU
from paceline.cache.policies import EVICTION_POLICIES, policy
from paceline.core.errors import InputError

from .paging import faulting


def test_every_name_makes_a_policy_of_its_own() -> None:
    pages = [i * i % 7 for i in range(200)]
    for name in EVICTION_POLICIES:
        assert 3 < sum(faulting(pages, 3, policy(name)(3))) <= 200
        assert policy(name)(3) is not policy(name)(3)
    assert isinstance(policy("lru")(1), LRU)


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'fifo'; known are det, lru, mark0, mark_predict, shadow, told\."):
        policy("fifo")
