"""What clients say of texts: the bit that the policies ask for, and the bound that holds when they lie."""

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.cache.cache import Cache
from paceline.cache.eviction import LRU
from paceline.cache.marking import Det
from paceline.cache.policies import policy
from paceline.cache.predict import ClientBits
from paceline.cache.shadow import Shadow

from .paging import ALL, Given


class Silent:
    """Says of nothing that it can go."""

    def bit(self, name: bytes, parent: bytes) -> int:
        return 0


def test_the_latest_word_counts_and_is_forgotten() -> None:
    bits = ClientBits(2, Silent())
    assert bits.bit(b"a", b"") == 0, "nobody has said anything"
    bits.tell(b"a", True)
    assert (bits.bit(b"a", b""), bits.bit(b"b", b"")) == (0, 1)
    bits.tell(b"b", True)
    bits.tell(b"c", True)
    assert (bits.bit(b"a", b""), bits.bit(b"b", b""), bits.bit(b"c", b"")) == (1, 0, 0)
    bits.tell(b"b", False)
    bits.tell(b"c", False)
    assert bits.bit(b"b", b"") == 0, "nobody says anything any more"


def said(pages: list[int], words: list[bool], k: int, name: str) -> int:
    """Faults of a policy that hears the clients' words."""
    from paceline.cache.blocks import BlockPool

    pool, faults = BlockPool(k, 1, policy(name)(k)), 0
    for page, word in zip(pages, words):
        block = pool.find(b"%d" % page, ALL, word)
        if block is None:
            faults += 1
            [block] = pool.allocate(1)
            pool.publish(block, b"%d" % page, ALL, returns=word)
        else:
            pool.acquire(block)
        pool.release([block])
    pool.check({})
    return faults


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=120), st.integers(1, 6))
def test_never_worse_than_twice_lru_and_k_whatever_is_said(case: list[tuple[int, bool]], k: int) -> None:
    pages, words = [page for page, _ in case], [word for _, word in case]
    assert said(pages, words, k, "told") <= 2 * said(pages, words, k, "lru") + k


def test_true_words_keep_what_comes_back() -> None:
    """Conversations come back among questions that do not: LRU forgets all of them."""
    rng = random.Random(0)
    pages, words = [], []
    for turn in range(400):
        pages += [turn % 4, *(100 + 7 * turn + i for i in range(6))]
        words += [True, *[False] * 6]
    true, lied = said(pages, words, 6, "told"), said(pages, [not word for word in words], 6, "told")
    lru, mixed = said(pages, words, 6, "lru"), said(pages, [rng.random() < 0.5 for _ in words], 6, "told")
    assert lru == len(pages) and true <= len(pages) - 380 and max(lied, mixed) <= 2 * lru + 6


def test_a_request_says_it_of_its_first_tokens() -> None:
    heard: list[tuple[int, bool]] = []

    class Hears(LRU):
        def tell(self, name: bytes, returns: bool) -> None:
            heard.append((names.setdefault(name, len(names)), returns))

    names: dict[bytes, int] = {}
    cache = Cache(8, 2, eviction=Hears())
    for returns in (5, 0):
        lease = cache.open([1, 2, 3, 4, 5, 6, 7], returns=returns)
        rest = [1, 2, 3, 4, 5, 6, 7][lease.length :]
        cache.begin(lease, len(rest), 0).commit([], rest)
        cache.close(lease)
    assert heard == [(0, True), (1, True), (2, False), (0, False), (1, False), (2, False)]


def test_what_a_waiting_request_left_goes_last() -> None:
    """A pre-empted request comes back for certain: what others left goes first, and nobody is taken at their word."""
    bits = ClientBits(64, Silent())
    cache = Cache(8, 2, eviction=Det(bits))
    pool = cache.pool
    bits.tell(b"elsewhere", True)  # so silence means that a text can go

    def text(first: int, tokens: int) -> Any:
        lease = cache.open([first] * tokens)
        txn = cache.begin(lease, tokens, 0)
        txn.commit([], [first] * tokens)
        return lease

    stream, other = text(1, 8), text(2, 8)
    cache.close(stream, again=True)
    cache.close(other)
    pool.allocate(4)
    assert cache.open([2] * 9).length == 0 and cache.open([1] * 9).length == 8
    assert bits.bit(b"another", b"") == 1 and [*bits._told] == [b"elsewhere"], "no client said anything of it"


def test_a_pair_hears_through_shadow() -> None:
    bits = ClientBits(9, Silent())
    Shadow(2, LRU(), Det(bits)).tell(b"a", True)
    assert bits.bit(b"a", b"") == 0 and bits.bit(b"b", b"") == 1
    Shadow(2, LRU(), Det(Given([1]))).tell(b"a", True)
