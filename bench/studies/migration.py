"""The pause of a request that moves from one engine to another while it is decoded, beside stop-and-copy.

    python bench/studies/migration.py MODEL [--lengths 256 1024 3900] [--repeats 3]

Two engines in this process, on half of the cores each. For each length of prompt: the blocks that are copied while the
request stands still, the seconds between its last token here and its first one there, the same in steps of decoding,
and all that for a request that is parked with all of its K/V and resumed. Another text is decoded at the source
meanwhile: the median time between its tokens is a step, and `neighbour` is how many it got during the pause. Texts are
compared with one that stays.
"""

import argparse
import asyncio
import random
from functools import partial
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

from paceline import AsyncLLM, SamplingParams
from paceline.core.handover import Handover
from paceline.core.operations import Park, Peek, Reserve, Settle
from paceline.engine.async_llm import Subscription

OUTPUT, BEFORE = 96, 24
"""Tokens of each answer, and those before the move."""
Pause = tuple[float, float]
"""(when the last token came here, when the first one came there)"""


async def read(subscription: Subscription, tokens: list[int], until: int) -> float:
    """Follow until there are so many tokens, or the end; when the last of them came."""
    at = perf_counter()
    while len(tokens) < until and (chunks := await subscription.news_to_come()):
        tokens += [token for chunk in chunks for token in chunk.token_ids]
        at = perf_counter()
    return at


async def live(source: AsyncLLM, to: AsyncLLM, ids: list[int], params: SamplingParams) -> tuple[list[int], int, Pause]:
    """A live migration: (text, blocks copied while it stood still, the pause)."""
    subscription, tokens = await source.submit([(ids, params)]), list[int]()
    await read(subscription, tokens, BEFORE)
    [request], size = subscription.requests, source.llm.engine.config.block_size
    here, there = source.llm.engine, to.llm.engine
    state, packed = Handover().step("done"), b""
    number = await to.call(lambda: there.apply(Reserve(len(ids) // size + 40)))
    while state.action != "settle":
        at = state.copied
        if state.action == "copy":
            piece = await source.call(partial(here.apply, Peek(request.id, at)))
            have = await to.call(partial(there.apply, Settle(number, piece)))
            left = await source.call(lambda: request.lease.sealed) - have  # type: ignore[union-attr]
            state = state.step("done", have - at, max(0, left))
        elif state.action == "park":
            packed = await source.call(partial(here.apply, Park(request.id, at)))
            state = state.step("done")
        else:
            raise SystemExit(f"The move ended with {state}.")
    stopped = await read(subscription, tokens, OUTPUT)
    blocks = len(request.tokens) // size - state.copied
    loop, text = asyncio.get_running_loop(), len(request.text)

    def settle() -> Subscription:
        following = Subscription(there.apply(Settle(number, packed)), loop)
        following.followers[0].begin_at(len(tokens), text)
        return to.follow(following)

    following = await to.call(settle)
    first = await read(following, tokens, len(tokens) + 1)
    await read(following, tokens, OUTPUT)
    return tokens, blocks, (stopped, first)


class Neighbour:
    """Another text at the source, and when its tokens came."""

    def __init__(self, llm: AsyncLLM) -> None:
        self.llm, self.times = llm, list[float]()
        self.task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        params = SamplingParams(temperature=0.8, seed=1, max_tokens=4000, ignore_eos=True)
        subscription = await self.llm.submit([([1, 2, 3], params)])
        try:
            while await subscription.news_to_come():
                self.times.append(perf_counter())
        finally:
            self.llm.abort(subscription)

    async def steps(self, pause: Pause) -> tuple[float, int]:
        """(the pause in its median steps, tokens that it got meanwhile); it ends."""
        self.task.cancel()
        await asyncio.wait([self.task])
        step = median(after - before for before, after in pairwise(self.times))
        return (pause[1] - pause[0]) / step, sum(pause[0] < at < pause[1] for at in self.times)


async def stop(source: AsyncLLM, to: AsyncLLM, ids: list[int], params: SamplingParams) -> tuple[list[int], int, Pause]:
    """Stop-and-copy."""
    subscription, tokens = await source.submit([(ids, params)]), list[int]()
    await read(subscription, tokens, BEFORE)
    [request], size = subscription.requests, source.llm.engine.config.block_size
    stopped = perf_counter()
    packed = await source.park(subscription)
    await read(subscription, tokens, OUTPUT)
    following = await to.resume(packed)
    first = await read(following, tokens, len(tokens) + 1)
    await read(following, tokens, OUTPUT)
    return tokens, len(request.tokens) // size, (stopped, first)


async def study(model: str, lengths: list[int], repeats: int) -> None:
    options: dict[str, Any] = {"drafter": "none", "memory": "1500M", "threads": 1}
    one, two = AsyncLLM(model, **options), AsyncLLM(model, **options)
    print(
        f"{'prompt':>7} {'':13} {'blocks':>7} {'pause s':>9}  {'spread':14} {'steps':>7} {'neighbour':>9} texts equal"
    )
    for length in lengths:
        rng = random.Random(length)
        found: dict[str, list[tuple[int, float, float, int]]] = {"live": [], "stop-and-copy": []}
        equal = True
        for turn in range(repeats):
            params = SamplingParams(temperature=0.8, seed=turn, max_tokens=OUTPUT, ignore_eos=True)
            for name, way in (("live", live), ("stop-and-copy", stop)):
                ids = [rng.randrange(100, 5000) for _ in range(length)]
                neighbour = Neighbour(one)
                tokens, blocks, pause = await way(one, two, ids, params)
                steps = await neighbour.steps(pause)
                stayed = list[int]()
                await read(await one.submit([(ids, params)]), stayed, OUTPUT)
                equal &= tokens == stayed
                found[name].append((blocks, pause[1] - pause[0], *steps))
        for name, rows in found.items():
            pauses = sorted(row[1] for row in rows)
            print(
                f"{length:7} {name:13} {max(row[0] for row in rows):7} {median(pauses):9.3f}  "
                f"{pauses[0]:.3f} to {pauses[-1]:.3f} {median(row[2] for row in rows):7.1f} "
                f"{median(row[3] for row in rows):9} {equal}",
                flush=True,
            )
    one.close()
    two.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 3900])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    asyncio.run(study(args.model, args.lengths, args.repeats))


if __name__ == "__main__":
    main()
