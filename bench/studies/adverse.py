"""Ten loads that are hard for speculation: `auto` over plain decoding, and the account against the clock.

    python bench/studies/adverse.py --model M --draft D --prompts gsm8k_test.jsonl [--quantize int4] [--loads one,four]
        [--rounds 2] [--tokens 48] [--named model,ngram]

One engine serves each load by every arm, in turns that change from round to round; seeds, texts and arrivals are equal.
`auto` learns from its own steps alone. A ratio is seconds of plain decoding over those of the arm. The error of the
account is what it says was saved, less the difference of the two times, as a share of the time of `auto`. Use an idle
machine, or `--cpu`.
"""

import argparse
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.studies import cpu_clock
from paceline import LLM, SamplingParams
from paceline.bench.prompts import encode, read_prompts
from paceline.plan.choose import Goodput

Job = tuple[list[int], dict[str, Any]]
"""A prompt and its sampling parameters."""


class Loads:
    """The loads by name: jobs in order, and how many of them are there at once."""

    def __init__(self, prompts: Sequence[list[int]], vocabulary: int, tokens: int) -> None:
        self.prompts, self.vocabulary, self.tokens = prompts, vocabulary, tokens

    def jobs(self, count: int, tokens: float = 1.0, **params: Any) -> list[Job]:
        """Answers of different lengths, as in service: equal ones end together."""
        parts = (0.7, 1.2, 0.9, 1.2)
        return [
            (self.prompts[i % len(self.prompts)],
             {"temperature": 0.0, "max_tokens": max(2, round(tokens * self.tokens * parts[i % 4])), **params})
            for i in range(count)
        ]  # fmt: skip

    def noise(self, count: int) -> list[Job]:
        """Prompts of tokens drawn at random, answered at a high temperature: nothing that could be predicted."""
        rng = random.Random(1)
        texts = [[rng.randrange(1000, self.vocabulary) for _ in range(40)] for _ in range(count)]
        return [(text, {**params, "temperature": 1.5}) for text, (_, params) in zip(texts, self.jobs(count))]

    def all(self) -> Iterator[tuple[str, int, list[Job]]]:
        usual, hard = self.jobs(4), self.noise(4)
        mixed = self.jobs(8)
        for i, (_, params) in enumerate(mixed):
            params |= ({"temperature": 0.0}, {"temperature": 0.8}, {"temperature": 1.0, "top_p": 0.9}, {"top_k": 5})[
                i % 4
            ]
        yield "one", 1, self.jobs(4)
        yield "four", 4, self.jobs(8)
        yield "eight", 8, self.jobs(16, 0.7)
        yield "sixteen", 16, self.jobs(24, 0.6)
        yield "short", 1, self.jobs(12, 0.2)
        yield "drawn", 4, self.jobs(8, temperature=0.8)
        yield "mixed", 4, mixed
        yield "noise", 1, hard
        yield "changes", 2, [job for pair in zip(usual, self.noise(4)) for job in pair]
        yield "bursts", 12, self.jobs(12, 0.5)


def serve(
    llm: LLM, jobs: Sequence[Job], places: int, drafter: str, burst: bool, clock: Callable[[], float]
) -> tuple[float, int]:
    """Seconds and tokens of all jobs. In bursts all places are filled when the last has become free."""
    engine, queue, live, tokens = llm.engine, [*enumerate(jobs)], 0, 0
    began = clock()
    while queue or live:
        if not burst or not live:
            while queue and live < places:
                number, (prompt, params) = queue.pop(0)
                wish = SamplingParams(**params, seed=number, ignore_eos=True, drafter=drafter)
                engine.submit(prompt, wish.resolve(llm.text.defaults))
                live += 1
        ended = [request for request in engine.step() if request.finish is not None]
        live, tokens = live - len(ended), tokens + sum(len(request.output) for request in ended)
    return clock() - began, tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--loads", default="", help="names, all if there are none")
    parser.add_argument("--named", default="", help="drafters by name that are served, too")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--quantize")
    parser.add_argument("--memory", default="6G")
    parser.add_argument("--warm", type=int, default=2, help="prompts that `auto` answers first")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no round begins")
    parser.add_argument("--cpu", action="store_true", help="processor time of one thread: the machine may be busy")
    args = parser.parse_args()
    began = perf_counter()
    clock, threads = cpu_clock.use(args.cpu, 1)
    llm = LLM(args.model, args.draft, drafter="auto", quantize=args.quantize, prefix_cache=False, memory=args.memory,
              threads=threads)  # fmt: skip
    policy = llm.engine.desk.policy
    assert isinstance(policy, Goodput)
    prompts = [encode(llm.text, each) for each in read_prompts(args.prompts, 24)]
    other = Goodput(deepcopy(policy.times), policy.limit, policy.fixed, policy.patience)
    other.arms = policy.arms
    loads = Loads(prompts, llm.engine.session.model.vocab_size, args.tokens)
    serve(llm, loads.jobs(args.warm), 1, "auto", False, clock)
    arms = ["none", "auto", *filter(None, args.named.split(","))]
    for name, places, jobs in loads.all():
        if args.loads and name not in args.loads.split(","):
            continue
        over: dict[str, list[float]] = {arm: [] for arm in arms}
        errors = list[float]()
        for round in range(args.rounds):
            if perf_counter() - began > args.limit:
                break
            turn = arms if round % 2 == 0 else arms[::-1]
            took, booked = dict[str, float](), 0.0
            for arm in turn:
                before, llm.engine.table.policy = policy.governor.saved, policy if arm == "auto" else other
                took[arm], tokens = serve(llm, jobs, places, arm, name == "bursts", clock)
                booked = policy.governor.saved - before if arm == "auto" else booked
            for arm in arms:
                over[arm].append(took["none"] / took[arm])
            errors.append((booked - took["none"] + took["auto"]) / took["auto"])
        if not errors:
            break
        text = "; ".join(
            f"{arm} {statistics.median(over[arm]):.3f} ({min(over[arm]):.3f}-{max(over[arm]):.3f})" for arm in arms[1:]
        )
        wrong = " ".join(f"{error:+.1%}" for error in errors)
        print(
            f"{name}, {places} at a time: {text}; plain {tokens / took['none']:.1f} tokens/s; account wrong by {wrong}",
            flush=True,
        )


if __name__ == "__main__":
    main()
