"""Prefix-cache hits and times to first token on a recorded trace, with bits that say which prefix comes back.

    python bench/studies/returning.py TRACE.jsonl [--blocks 500 1000 2000] [--rate 400]

A trace has a request a line, {"timestamp": ms, "input_length": tokens, "hash_ids": names of its blocks of 512 tokens}
(Mooncake, FAST 2025). Its uses are replayed by paging, the model of the bounds: any block may go.

    lru            least recently used
    OPT            Belady's rule: the fewest faults there are
    discard p%     det, and shadow (the better of LRU and det), whose bits are Belady's, right p in 100; 0: inverted
    phase p%       mark_predict, whose bits are those of the next phase
    client p%      what a client can know: this conversation comes back. The bit holds for all blocks of a request, and
                   is right for p requests in 100. `told` is the engine's policy of that name, `alone` its half that
                   believes the client.

Beside each is the bound that its kind has with so many wrong bits. The time to first token is that of the tokens that
are not cached, at `--rate` a second: waiting is left out. Hits are counts, so the machine may be busy.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from paceline.cache.eviction import LRU, Eviction
from paceline.cache.marking import Det, MarkPredict
from paceline.cache.policies import HORIZON
from paceline.cache.predict import ClientBits, LearnedReuse
from paceline.cache.shadow import Ghost, Shadow
from paceline.core.noise import EvictionNoise

NEVER = 1 << 60
BLOCK_TOKENS = 512
SHARES = (1.0, 0.9, 0.7, 0.5, 0.0)


class GivenBits:
    """Bits from outside, in the order of the uses."""

    def __init__(self, bits: Iterable[int]) -> None:
        self._bits = iter(bits)

    def bit(self, name: bytes, parent: bytes) -> int:
        return next(self._bits)


def read_trace(path: Path, most: int) -> list[tuple[int, list[bytes]]]:
    """(tokens of the prompt, names of its blocks) of each request."""
    lines = path.read_text().splitlines()[:most]
    rows = [json.loads(line) for line in lines]
    return [(row["input_length"], [b"%d" % number for number in row["hash_ids"]]) for row in rows]


def belady(uses: Sequence[bytes], slots: int) -> tuple[list[bool], list[int]]:
    """Of each use, is it a hit at best; and its discard bit."""
    after, last = [NEVER] * len(uses), dict[bytes, int]()
    for i in range(len(uses) - 1, -1, -1):
        after[i] = last.get(uses[i], NEVER)
        last[uses[i]] = i
    held, heap = dict[bytes, int](), list[tuple[int, int]]()
    bits, hits = [0] * len(uses), [False] * len(uses)
    for i, name in enumerate(uses):
        if name in held:
            hits[i] = True
        elif len(held) == slots:
            while True:
                victim = -heappop(heap)[1]
                if held.get(uses[victim]) == victim:
                    break
            del held[uses[victim]]
            bits[victim] = 1
        held[name] = i
        heappush(heap, (-after[i], -i))
    return hits, bits


def flipped(bits: Sequence[int], right: float, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [bit if rng.random() < right else 1 - bit for bit in bits]


def returning(trace: Sequence[tuple[int, list[bytes]]]) -> list[int]:
    """Of each request, 0 iff the conversation comes back: a later one has its last block but one, or its only one."""
    last = dict[bytes, int]()
    for i, (_, names) in enumerate(trace):
        for name in names:
            last[name] = i
    return [int(last[names[max(0, len(names) - 2)]] <= i) if names else 1 for i, (_, names) in enumerate(trace)]


def replay(trace: Sequence[tuple[int, list[bytes]]], slots: int, eviction: Eviction, said: Sequence[int] | None) -> Any:
    """(hits, uncached tokens of each request). A request's hits end with its first miss, as those of a prefix do."""
    ghost, hits, uncached = Ghost(slots, eviction), 0, list[int]()
    tell = getattr(eviction, "tell", None)
    for i, (tokens, names) in enumerate(trace):
        parent, cached = b"", True
        found = 0
        for name in names:
            cached = cached and name in ghost
            found += cached
            hits += name in ghost
            if tell is not None and said is not None:
                tell(name, not said[i])
            ghost.ask(name, parent)
            parent = name
        uncached.append(max(1, tokens - found * BLOCK_TOKENS))
    return hits, uncached


def times(uncached: Sequence[int], rate: float) -> tuple[float, float]:
    """Mean and 95th percentile of the time to first token, in seconds."""
    ordered = sorted(tokens / rate for tokens in uncached)
    return sum(ordered) / len(ordered), ordered[int(0.95 * (len(ordered) - 1))]


def phase_bits(uses: Sequence[bytes], slots: int) -> list[int]:
    """0 iff the next phase uses the block."""
    numbers, seen, phase = list[int](), set[bytes](), 0
    for name in uses:
        if name not in seen and len(seen) == slots:
            phase, seen = phase + 1, set()
        seen.add(name)
        numbers.append(phase)
    used = set(zip(numbers, uses))
    return [int((phase + 1, name) not in used) for phase, name in zip(numbers, uses)]


def policies(uses: Sequence[bytes], bits: Sequence[int], slots: int) -> Iterator[tuple[str, Callable[[], Eviction]]]:
    """(name, policy) with bits that are right to so much."""
    phases = phase_bits(uses, slots)
    yield "lru", LRU
    for right in SHARES:
        given = flipped(bits, right, 1)
        yield f"det, discard {right:.0%}", lambda g=given: Det(GivenBits(g))
        yield f"shadow, discard {right:.0%}", lambda g=given: Shadow(slots, LRU(), Det(GivenBits(g)))
        other = flipped(phases, right, 1)
        yield f"mark_predict, phase {right:.0%}", lambda g=other: MarkPredict(GivenBits(g), EvictionNoise(0))


def told(slots: int) -> Eviction:
    horizon = HORIZON * slots
    return Det(ClientBits(horizon, LearnedReuse(horizon)))


def study(trace: Sequence[tuple[int, list[bytes]]], slots: int, rate: float) -> list[dict[str, Any]]:
    uses = [name for _, names in trace for name in names]
    best, bits = belady(uses, slots)
    opt = sum(not hit for hit in best)
    rows = list[dict[str, Any]]()
    lru = 0

    def add(name: str, hits: int, uncached: Sequence[int] | None, bound: float | None) -> None:
        mean, high = (float("nan"), float("nan")) if uncached is None else times(uncached, rate)
        rows.append({"name": name, "hits": hits, "rate": hits / len(uses), "mean": mean, "p95": high, "bound": bound})
        limit = "" if bound is None else f"{max(0.0, 1 - bound / len(uses)):8.1%}"
        print(f"{name:32}{hits / len(uses):8.1%}{limit:>9}{mean:9.2f}{high:9.2f}", flush=True)

    print(
        f"\n{slots} blocks of {BLOCK_TOKENS} tokens, {len(trace)} requests, {len(uses)} uses of {len(set(uses))} blocks"
    )
    print(f"{'':32}{'hits':>8}{'at least':>9}{'TTFT':>9}{'p95':>9}")
    at, opt_uncached = 0, list[int]()
    for tokens, names in trace:
        found = 0
        while found < len(names) and best[at + found]:
            found += 1
        opt_uncached.append(max(1, tokens - found * BLOCK_TOKENS))
        at += len(names)
    add("OPT", len(uses) - opt, opt_uncached, None)
    for name, make in policies(uses, bits, slots):
        hits, uncached = replay(trace, slots, make(), None)
        lru = len(uses) - hits if name == "lru" else lru
        bound = None
        if "discard" in name:
            given = flipped(bits, float(name.split()[-1].rstrip("%")) / 100, 1)
            zeros = sum(g == 0 and b == 1 for g, b in zip(given, bits))
            ones = sum(g == 1 and b == 0 for g, b in zip(given, bits))
            if name.startswith("det"):
                bound = opt + (slots - 1) * zeros + ones
            elif name.startswith("shadow"):
                bound = 2 * lru + slots
        add(name, hits, uncached, bound)
    comes = returning(trace)
    for right in SHARES:
        said = flipped(comes, right, 2)
        for name, made in (("alone", told(slots)), ("told", Shadow(slots, LRU(), told(slots)))):
            hits, uncached = replay(trace, slots, made, said)
            add(f"{name}, client {right:.0%}", hits, uncached, 2 * lru + slots if name == "told" else None)
    hits, uncached = replay(trace, slots, Shadow(slots, LRU(), told(slots)), None)
    add("told, nobody says anything", hits, uncached, 2 * lru + slots)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--blocks", type=int, nargs="*", default=[500, 1000, 2000, 4000])
    parser.add_argument("--requests", type=int, default=1 << 30)
    parser.add_argument("--rate", type=float, default=400.0, help="prompt tokens a second")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    trace = read_trace(args.trace, args.requests)
    out = {slots: study(trace, slots, args.rate) for slots in args.blocks}
    if args.json:
        args.json.write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
