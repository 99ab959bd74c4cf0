"""The first answer: what people judge `auto` by. Tau and tokens/s over the first tokens of each answer, beside plain
decoding and drafters by name.

    python bench/studies/encounter.py --model M --draft D --prompts gsm8k_test.jsonl [--fixed model,ngram] [--count 3]

A fresh engine answers `count` prompts with `auto` (cold), then `count` others, then the first ones again (warm), and
then plainly and by each drafter by name. Its table of step times may be kept from an earlier start; what it has learned
is not. A time runs from the submission of a prompt, so reading it with a draft model is in it. Texts must be equal.
Figures are of all prompts together, ratios their median over repeats. Use an idle machine, or `--cpu`.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.studies import cpu_clock
from paceline import LLM, SamplingParams
from paceline.bench.prompts import encode, read_prompts
from paceline.engine.loop import Engine

MARKS = (32, 64, 128, 256)
PLAIN = "none"


def passes(engine: Engine) -> int:
    return sum(each.passes for each in engine.desk.totals.drafters.values())


@dataclass(frozen=True)
class Answer:
    """One answer. `steps`: seconds since it was submitted, tokens and passes so far, after each step."""

    steps: list[tuple[float, int, int]]
    output: list[int]

    def until(self, tokens: int) -> tuple[float, float]:
        """Seconds and passes until so many tokens were there, in proportion within a step; to the end if fewer came."""
        before = self.steps[0]
        for now in self.steps:
            if now[1] >= tokens:
                part = (tokens - before[1]) / (now[1] - before[1]) if now[1] > before[1] else 1.0
                return before[0] + part * (now[0] - before[0]), before[2] + part * (now[2] - before[2])
            before = now
        return before[0], before[2]


def answer(llm: LLM, prompt: Sequence[int], wish: SamplingParams, clock: Callable[[], float]) -> Answer:
    engine, steps, begun = llm.engine, [(0.0, 0, 0)], passes(llm.engine)
    began = clock()
    request = engine.submit(list(prompt), wish)[0]
    while not request.finish:
        engine.step()
        steps.append((clock() - began, len(request.output), passes(engine) - begun))
    return Answer(steps, list(request.output))


def turn(args: argparse.Namespace, number: int, clock: Callable[[], float]) -> dict[str, list[Answer]]:
    """The answers of a fresh engine, by arm."""
    llm = LLM(args.model, args.draft, drafter="auto", quantize=args.quantize, prefix_cache=False, memory=args.memory,
              max_requests=args.max_requests, threads=args.threads)  # fmt: skip
    every = [encode(llm.text, prompt) for prompt in read_prompts(args.prompts, args.skip + 2 * args.count)][args.skip :]
    asked, others = every[: args.count], every[args.count :]

    def all_(prompts: Sequence[list[int]], drafter: str, tokens: int = args.tokens) -> list[Answer]:
        wish = SamplingParams(temperature=args.temperature, max_tokens=tokens, seed=1, ignore_eos=True, drafter=drafter)
        return [answer(llm, prompt, wish.resolve(llm.text.defaults), clock) for prompt in prompts]

    all_(others[:1], PLAIN, 8)  # the first pass of a process pays for much else
    out = {"cold": all_(asked, "auto")}
    all_(others, "auto")
    out["warm"] = all_(asked, "auto")
    fixed = [PLAIN, *args.fixed.split(",")]
    for i in range(len(fixed)):
        name = fixed[(i + number) % len(fixed)]
        out[name] = all_(asked, name)
    different = [name for name, each in out.items() if [a.output for a in each] != [a.output for a in out[PLAIN]]]
    print("texts equal" if not different else f"TEXTS DIFFER: {different}", dict(llm.engine.desk.policy.governor.lost))
    if args.why:
        print(llm.engine.desk.totals)
    llm.close()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--fixed", default="model")
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--skip", type=int, default=0, help="prompts of the file to leave out")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--quantize")
    parser.add_argument("--memory", default="6G")
    parser.add_argument("--max-requests", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="processor time of one thread: the machine may be busy")
    parser.add_argument("--why", action="store_true")
    args = parser.parse_args()
    clock, args.threads = cpu_clock.use(args.cpu, args.threads)
    turns = [turn(args, number, clock) for number in range(args.repeat)]
    for mark in [mark for mark in MARKS if mark <= args.tokens]:
        row = [f"{mark:4}:"]
        for name in turns[0]:
            took = [[each.until(mark) for each in made[name]] for made in turns]
            plain = [sum(each.until(mark)[0] for each in made[PLAIN]) for made in turns]
            seconds = [sum(s for s, _ in each) for each in took]
            tau = statistics.median(mark * len(each) / sum(p for _, p in each) for each in took)
            over = [base / mine for base, mine in zip(plain, seconds)]
            speed = statistics.median(mark * args.count / s for s in seconds)
            spread = f"{statistics.median(over):.3f} ({min(over):.3f}-{max(over):.3f})"
            row.append(f"{name} {speed:.1f}/s tau {tau:.2f} {spread}")
        print("  ".join(row), flush=True)


if __name__ == "__main__":
    main()
