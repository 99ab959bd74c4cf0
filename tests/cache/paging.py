"""The paging model: one block a request, k slots. Belady's rule, the true bits, and slow twins of the policies."""

from collections.abc import Iterable, Sequence

from paceline.cache.blocks import BlockPool
from paceline.cache.eviction import Eviction

NEVER = 1 << 60
ALL = frozenset({"target"})


def harmonic(k: int) -> float:
    return sum(1 / i for i in range(1, k + 1))


class Given:
    """Bits from outside, in the order of the uses."""

    def __init__(self, bits: Iterable[int]) -> None:
        self.bits = iter(bits)

    def bit(self, name: bytes, parent: bytes) -> int:
        return next(self.bits)


def faulting(pages: Sequence[int], k: int, eviction: Eviction) -> list[bool]:
    """Flag per request: True if the pool had to compute its page again."""
    pool, out = BlockPool(k, 1, eviction), []
    for page in pages:
        name = b"%d" % page
        block = pool.find(name, ALL)
        out.append(block is None)
        if block is None:
            (block,) = pool.allocate(1)
            pool.publish(block, name, ALL)
        else:
            pool.acquire(block)
        pool.release([block])
    pool.check({})
    return out


def belady(pages: Sequence[int], k: int) -> tuple[int, list[int]]:
    """Fewest possible faults, by evicting what is needed last; and of each request the discard bit: is its page evicted
    before the next request for it?"""
    after = {i: next((j for j in range(i + 1, len(pages)) if pages[j] == p), NEVER) for i, p in enumerate(pages)}
    cache: dict[int, int] = {}
    faults, bits = 0, [0] * len(pages)
    for i, page in enumerate(pages):
        if page not in cache:
            faults += 1
            if len(cache) == k:
                victim = max(cache, key=lambda p: (after[cache[p]], p))
                bits[cache.pop(victim)] = 1
        cache[page] = i
    return faults, bits


def phases(pages: Sequence[int], k: int) -> list[int]:
    """Phase of each request."""
    out, seen, phase = list[int](), set[int](), 0
    for page in pages:
        if len(seen | {page}) > k:
            phase, seen = phase + 1, set()
        seen.add(page)
        out.append(phase)
    return out


def phase_bits(pages: Sequence[int], k: int) -> list[int]:
    """0 iff the next phase asks for the page."""
    asked = set(zip(phases(pages, k), pages))
    return [int((phase + 1, page) not in asked) for phase, page in zip(phases(pages, k), pages)]


def last_in_phase(pages: Sequence[int], k: int) -> list[int]:
    """Indices of the requests whose phase bit counts: the last for its page in each phase but the final one."""
    number = phases(pages, k)
    last = {(phase, page): i for i, (phase, page) in enumerate(zip(number, pages))}
    return [i for (phase, _), i in last.items() if phase < number[-1]]


def wrong(bits: Sequence[int], truth: Sequence[int], where: Iterable[int]) -> tuple[int, int]:
    """(zeros that should be one, ones that should be zero)."""
    pairs = [(bits[i], truth[i]) for i in where]
    return pairs.count((0, 1)), pairs.count((1, 0))


def slow_lru(pages: Sequence[int], k: int) -> list[bool]:
    cache, out = list[int](), []
    for page in pages:
        out.append(page not in cache)
        cache = [*(p for p in cache if p != page), page][-k:]
    return out


def slow_det(pages: Sequence[int], bits: Sequence[int], k: int) -> list[bool]:
    """The rule of `Det`, the flushed pages in a list of their own; eager flushing would empty `flushed`."""
    cache, flushed, out = dict[int, int](), list[int](), []
    for page, bit in zip(pages, bits):
        out.append(page not in cache and page not in flushed)
        if out[-1] and len(cache) + len(flushed) == k:
            if not flushed and not any(cache.values()):
                cache, flushed = {}, list(cache)
            if flushed:
                flushed.pop(0)
            else:
                del cache[next(p for p, b in cache.items() if b)]
        if page in flushed:
            flushed.remove(page)
        cache.pop(page, None)
        cache[page] = bit
    return out


def eager_det(pages: Sequence[int], bits: Sequence[int], k: int) -> int:
    """Faults of the paper's rule, which flushes at once."""
    cache, faults = dict[int, int](), 0
    for page, bit in zip(pages, bits):
        if page not in cache:
            faults += 1
            if len(cache) == k:
                ones = [p for p, b in cache.items() if b]
                if ones:
                    del cache[ones[0]]
                else:
                    cache = {}
        cache.pop(page, None)
        cache[page] = bit
    return faults
