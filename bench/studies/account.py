"""Is the governor's account true? Seconds that it says speculation saved, beside those that plain decoding of the same
prompts took more.

    python bench/studies/account.py --model M --draft D --prompts gsm8k_test.jsonl [--at 1,4,8] [--repeat 3]

One engine serves the same prompts with `auto` and plainly, in turns. Answers differ in length, as they do in service:
of equal ones that end together plain decoding reads the next prompts in fewer steps, which is not the drafts' doing.
The error is the difference as a share of the time that `auto` took. Use an idle machine, or `--cpu`.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.studies import cpu_clock
from paceline import LLM, SamplingParams
from paceline.bench.prompts import encode, read_prompts
from paceline.plan.choose import Goodput

LENGTHS = (0.6, 1.3, 0.9, 1.2)
"""Of the usual tokens, by turns."""


def serve(
    llm: LLM,
    prompts: Sequence[list[int]],
    places: int,
    args: argparse.Namespace,
    drafter: str,
    clock: Callable[[], float],
) -> float:
    """Seconds in which all prompts are answered."""
    engine, queue, live = llm.engine, [*enumerate(prompts)], 0
    began = clock()
    while queue or live:
        while queue and live < places:
            number, prompt = queue.pop(0)
            tokens = round(args.tokens * LENGTHS[number % len(LENGTHS)])
            wish = SamplingParams(temperature=args.temperature, max_tokens=tokens, seed=number, ignore_eos=True,
                                  drafter=drafter)  # fmt: skip
            engine.submit(prompt, wish.resolve(llm.text.defaults))
            live += 1
        live -= sum(request.finish is not None for request in engine.step())
    return clock() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--at", default="1,4,8")
    parser.add_argument("--each", type=int, default=4, help="prompts for each place")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--quantize")
    parser.add_argument("--memory", default="6G")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="processor time of one thread: the machine may be busy")
    args = parser.parse_args()
    clock, threads = cpu_clock.use(args.cpu, 2)
    llm = LLM(args.model, args.draft, drafter="auto", quantize=args.quantize, prefix_cache=False,
              memory=args.memory, threads=threads)  # fmt: skip
    policy = llm.engine.desk.policy
    assert isinstance(policy, Goodput)
    for places in map(int, args.at.split(",")):
        prompts = [encode(llm.text, p) for p in read_prompts(args.prompts, max(6, args.each * places))]
        errors, over = list[float](), list[float]()
        for _ in range(args.repeat + 1):
            took, before = dict[str, float](), policy.governor.saved
            for drafter in ("auto", "none"):
                took[drafter] = serve(llm, prompts, places, args, drafter, clock)
                if drafter == "auto":
                    booked = policy.governor.saved - before
            errors.append((booked - (took["none"] - took["auto"])) / took["auto"])
            over.append(took["none"] / took["auto"])
        each = " ".join(f"{error:+.1%}" for error in errors[1:])
        print(f"{places} at a time: auto over plain {statistics.median(over[1:]):.3f} ({min(over[1:]):.3f}-"
              f"{max(over[1:]):.3f}); account wrong by {each} of the time", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
