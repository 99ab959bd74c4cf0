"""Prefix-cache hits of the eviction policies on a multi-turn trace recorded from an engine, beside Belady's.

    python bench/studies/eviction.py            (the demo pair; some minutes)

Users come, talk for a while and leave. All talks begin with one of three system prompts: under the first each is one
question, under the others they take 10 and 2.5 turns on average (less where the context ends). An engine with room for
everything answers them one at a time, and its cache notes each use of a block. The uses are then replayed at several
cache sizes:

    paging   any block may go: the model of the bounds
    cache    through `Cache`: the running text stays, and texts lose their end first

Hits are counts, so the machine may be busy. `gap` is the share of Belady's hits above LRU's that a policy gets.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from paceline import LLM, SamplingParams
from paceline.cache.cache import Cache
from paceline.cache.eviction import LRU, Eviction
from paceline.cache.marking import Det, Mark0, MarkPredict
from paceline.cache.policies import EVICTION_POLICIES
from paceline.cache.shadow import Ghost
from paceline.core.noise import EvictionNoise

Use = tuple[bytes, bytes]
"""A block's name and that of the one before it."""
SYSTEMS = {
    "You solve word problems step by step and end with the number alone.": 1.0,
    "You are a patient teacher. Explain each step of the calculation in one short sentence, then give the result.": 0.1,
    "You keep the books of a small shop. Answer with the sum in dollars.": 0.4,
}
"""System prompts, and the chance that a talk ends after a turn."""
PEOPLE = ["Ann", "Ben", "Carla", "Deng", "Eva", "Farid", "Grace", "Hugo"]
THINGS = ["apples", "marbles", "stamps", "loaves", "pencils", "tickets", "shells", "cards"]
NEVER = 1 << 60
ERRORS = (0.0, 0.1, 0.3)
SEEDS = 5


class Recorder(LRU):
    def __init__(self) -> None:
        super().__init__()
        self.uses: list[Use] = []

    def ask(self, block: int, name: bytes, parent: bytes) -> None:
        self.uses.append((name, parent))
        super().ask(block, name, parent)


class Given:
    """Bits from outside, in the order of the uses."""

    def __init__(self, bits: Iterable[int]) -> None:
        self._bits = iter(bits)

    def bit(self, name: bytes, parent: bytes) -> int:
        return next(self._bits)


def question(rng: random.Random) -> str:
    who, other = rng.sample(PEOPLE, 2)
    thing, many, times = rng.choice(THINGS), rng.randrange(3, 90), rng.randrange(2, 9)
    return rng.choice(
        [
            f"{who} has {many} {thing} and gives {times} to {other}. How many {thing} does {who} have left?",
            f"{who} buys {times} boxes with {many} {thing} each. How many {thing} are there in all?",
            f"And if {other} brings {many} more {thing}, how many do {who} and {other} have together?",
            f"Each of {times} friends gets {many} {thing} from {who}. How many {thing} did {who} give away?",
        ]
    )


def talk(llm: LLM, requests: int, present: int, rng: random.Random) -> Iterator[list[int]]:
    """Serve requests of `present` users at a time; yield the tokens whose K/V each left behind."""
    talks: list[list[dict[str, str]]] = []
    for seed in range(requests):
        while len(talks) < present:
            talks.append([{"role": "system", "content": rng.choice(list(SYSTEMS))}])
        messages = rng.choice(talks)
        messages.append({"role": "user", "content": question(rng)})
        prompt = llm.text.chat(messages)
        params = SamplingParams(temperature=0.7, seed=seed, max_tokens=rng.randrange(16, 64))
        (output,) = llm.generate([prompt], [params], progress=False)
        messages.append({"role": "assistant", "content": output.text})
        if rng.random() < SYSTEMS[messages[0]["content"]] or len(prompt) > 600:
            talks = [other for other in talks if other is not messages]
        yield [*prompt, *output.token_ids][:-1]


def paging(uses: Sequence[Use], slots: int, eviction: Eviction) -> int:
    """Hits where each use is a request of its own and any block may go."""
    ghost = Ghost(slots, eviction)
    for use in uses:
        ghost.ask(*use)
    return len(uses) - ghost.faults


def through_cache(texts: Sequence[list[int]], slots: int, size: int, eviction: Eviction) -> int:
    cache = Cache(slots, size, eviction=eviction)
    for text in texts:
        lease = cache.open(text)
        rest = text[lease.length :]
        cache.begin(lease, len(rest), 0).commit([], rest)
        cache.close(lease)
    return cache.pool.hits


def belady(uses: Sequence[Use], slots: int) -> tuple[int, list[int]]:
    """Most possible hits, and the discard bits. Of blocks never used again the last used goes first."""
    after, last = [NEVER] * len(uses), dict[bytes, int]()
    for i in range(len(uses) - 1, -1, -1):
        after[i] = last.get(uses[i][0], NEVER)
        last[uses[i][0]] = i
    held, heap, bits, hits = dict[bytes, int](), list[tuple[int, int]](), [0] * len(uses), 0
    for i, (name, _) in enumerate(uses):
        if name in held:
            hits += 1
        elif len(held) == slots:
            while True:
                victim = -heappop(heap)[1]
                if held.get(uses[victim][0]) == victim:
                    break
            del held[uses[victim][0]]
            bits[victim] = 1
        held[name] = i
        heappush(heap, (-after[i], -i))
    return hits, bits


def phase_bits(uses: Sequence[Use], slots: int) -> list[int]:
    """0 iff the next phase uses the block."""
    numbers, seen, phase = list[int](), set[bytes](), 0
    for name, _ in uses:
        if name not in seen and len(seen) == slots:
            phase, seen = phase + 1, set()
        seen.add(name)
        numbers.append(phase)
    used = {(phase, name) for phase, (name, _) in zip(numbers, uses)}
    return [int((phase + 1, name) not in used) for phase, (name, _) in zip(numbers, uses)]


def flipped(bits: Sequence[int], share: float, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [bit ^ (rng.random() < share) for bit in bits]


def policies(uses: Sequence[Use], slots: int) -> Iterator[tuple[str, Callable[[int], Eviction], int]]:
    """(name, policy by seed, seeds), LRU first."""
    yield "lru", lambda seed: LRU(), 1
    discard, phase = belady(uses, slots)[1], phase_bits(uses, slots)
    for share in ERRORS:
        what = f"{share:.0%} wrong"
        yield f"det, {what}", lambda seed, e=share: Det(Given(flipped(discard, e, seed))), SEEDS
        yield (
            f"mark0, {what}",
            lambda seed, e=share: Mark0(Given(flipped(discard, e, seed)), EvictionNoise(seed)),
            SEEDS,
        )
        yield (
            f"mark_predict, {what}",
            lambda seed, e=share: MarkPredict(Given(flipped(phase, e, seed)), EvictionNoise(seed)),
            SEEDS,
        )
    for name in EVICTION_POLICIES:
        if name != "lru":
            yield f"{name}, learned", lambda seed, n=name: EVICTION_POLICIES[n](slots), 1


def study(uses: Sequence[Use], texts: Sequence[list[int]], slots: int, size: int) -> dict[str, Any]:
    best = belady(uses, slots)[0]
    print(f"\n{slots} blocks: Belady {best} hits of {len(uses)} uses ({best / len(uses):.1%})")
    print(f"{'':26}{'paging':>9}{'gap':>8}{'cache':>9}{'gap':>8}")
    out: dict[str, Any] = {"belady": best, "uses": len(uses)}
    least = 0.0, 0.0
    for name, make, seeds in policies(uses, slots):
        hits = [
            (paging(uses, slots, make(seed)), through_cache(texts, slots, size, make(seed))) for seed in range(seeds)
        ]
        mean = sum(h[0] for h in hits) / seeds, sum(h[1] for h in hits) / seeds
        least = mean if name == "lru" else least
        gap = [(m - low) / (best - low) for m, low in zip(mean, least)]
        out[name] = {"paging": mean[0], "cache": mean[1], "gap": gap}
        print(f"{name:26}{mean[0]:9.0f}{gap[0]:8.0%}{mean[1]:9.0f}{gap[1]:8.0%}", flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--users", type=int, default=12, help="present at a time")
    parser.add_argument("--blocks", type=int, nargs="*", default=[64, 96, 128, 192])
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    llm = LLM(drafter="none", memory="500M", block_size=args.block_size)
    recorder = llm.engine.cache.pool.eviction = Recorder()
    texts = list(talk(llm, args.requests, args.users, random.Random(args.seed)))
    assert not llm.engine.cache.pool.evictions
    again = Recorder()
    through_cache(texts, llm.engine.config.blocks, args.block_size, again)
    assert again.uses == recorder.uses, "the replay is not what the engine asked for"
    distinct = len({name for name, _ in recorder.uses})
    print(f"{len(texts)} requests, {len(recorder.uses)} uses of {distinct} blocks")
    out = {slots: study(recorder.uses, texts, slots, args.block_size) for slots in args.blocks}
    if args.json:
        args.json.write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
