"""Requests that move at random between engines while they are decoded: is every text that of one that stays?

    python bench/studies/random_moves.py MODEL [--engines 3] [--requests 500] [--every 0.02] [--dtype bfloat16]

Engines are Ray actors. All requests are answered twice: where they are, and while every few hundredths of a second one
of them is sent to another engine. By their number they are greedy, at T = 0.8, under a regular expression, of three
samples with log-probabilities, or with penalties and a stop string.
"""

import argparse
import asyncio
import random
from collections import Counter
from typing import Any

from paceline import Grammar, SamplingParams
from paceline.cluster.live.actors import ActorLink, join
from paceline.cluster.live.engines import Engines
from paceline.cluster.live.front import ClusterLLM
from paceline.engine.options import Options

SUBJECTS = ("a baker", "the sea", "two brothers", "a long train", "the number seven", "rain", "an old clock", "Tom")


def asked(number: int) -> tuple[str, SamplingParams]:
    rng = random.Random(number)
    prompt = f"Question {number}: tell me of {rng.choice(SUBJECTS)} and {rng.choice(SUBJECTS)}.\n" * rng.choice(
        (1, 1, 8)
    )
    size = rng.choice((24, 64, 160))
    kinds = (
        SamplingParams(temperature=0, max_tokens=size, ignore_eos=True),
        SamplingParams(temperature=0.8, seed=number, max_tokens=size, ignore_eos=True),
        SamplingParams(
            temperature=0.8, seed=number, max_tokens=size, grammar=Grammar("regex", r"([A-Z][a-z]+( [a-z]+){3,12}\. )+")
        ),
        SamplingParams(temperature=0.8, seed=number, max_tokens=size, n=3, logprobs=1),
        SamplingParams(temperature=0.9, seed=number, max_tokens=size, presence_penalty=0.4, stop=["seven"]),
    )
    return prompt, kinds[number % len(kinds)]


async def heard(llm: ClusterLLM, number: int, wait: float) -> list[Any]:
    """Tokens, texts by chunks and whole, reasons and drawn tokens' log-probabilities, by sample."""
    await asyncio.sleep(wait)
    prompt, params = asked(number)
    subscription = await llm.submit([(llm.llm.text.encode(prompt), params)])
    texts, done = dict[int, str](), dict[int, Any]()
    while chunks := await subscription.news_to_come():
        for chunk in chunks:
            texts[chunk.index] = texts.get(chunk.index, "") + chunk.text
            if chunk.done is not None:
                done[chunk.index] = chunk.done
    return [
        (at, each.token_ids, each.text, texts[at], each.finish_reason,
         [(entry.token, round(entry.logprob, 3)) for entry in each.logprobs or ()])
        for at, each in sorted(done.items())
    ]  # fmt: skip


async def moving(engines: Engines, every: float, ends: Counter[str]) -> None:
    rng, going = random.Random(0), set[asyncio.Task[None]]()

    async def one(voyage: Any, to: Any) -> None:
        ends[await engines.move(voyage, to)] += 1

    while True:
        await asyncio.sleep(every)
        here = [voyage for voyage in engines.voyages.going if not voyage.moving]
        if here:
            voyage = rng.choice(here)
            to = rng.choice([state.link for state in engines.states.values() if state.link is not voyage.link])
            task = asyncio.create_task(one(voyage, to))
            going.add(task)
            task.add_done_callback(going.discard)


async def study(args: argparse.Namespace) -> int:
    options: dict[str, Any] = {"dtype": args.dtype, "threads": 1}
    if args.model:
        options["model"] = args.model
    session = join(None)
    engines = Engines(lambda name: ActorLink(name, options, 0.0, {"OMP_NUM_THREADS": "1"}, session))
    await engines.start(args.engines)
    llm, rng = ClusterLLM(engines, Options(**options)), random.Random(1)
    waits = [rng.uniform(0, args.spread) for _ in range(args.requests)]
    calm = await asyncio.gather(*(heard(llm, n, wait) for n, wait in enumerate(waits)))
    moved = engines.moved_count
    ends = Counter[str]()
    mover = asyncio.create_task(moving(engines, args.every, ends))
    rough = await asyncio.gather(*(heard(llm, n, wait) for n, wait in enumerate(waits)))
    mover.cancel()
    different = [n for n in range(args.requests) if calm[n] != rough[n]]
    samples, tokens = sum(map(len, rough)), sum(len(each[1]) for it in rough for each in it)
    print(f"{args.requests} requests, {samples} samples, {tokens} tokens; moves of the quiet run: {moved}")
    print("moves: " + ", ".join(f"{count} {name}" for name, count in ends.most_common()))
    print(f"engines lost: {engines.lost_count}; requests that differ: {len(different)} {different[:10]}")
    await engines.close()
    return 1 if different else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--engines", type=int, default=3)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--spread", type=float, default=30.0, help="seconds over which requests begin")
    parser.add_argument("--every", type=float, default=0.02, help="seconds between two moves")
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    return asyncio.run(study(args))


if __name__ == "__main__":
    raise SystemExit(main())
