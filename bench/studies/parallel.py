"""Parallel writing on list-like questions, prompt-driven: tokens per pass of the target, beside 1 for plain decoding.

    python bench/studies/parallel.py MODEL [--quantize int8] [--memory 6G] [--drafter none] [--show]
    python bench/studies/parallel.py MODEL --timed [--limit 10] [--skip 10]

The first counts passes, so a busy machine changes no figure. The ratio is that of tokens of the answer to passes, the
passes for the outline included: plain decoding of as many tokens takes one each.

The second answers each question in parallel and then in sequence, with as many tokens. Both begin with an empty prefix
cache. `gain`: tokens a second over those in sequence; tokens are the answer's alone, seconds are all, with the
outline's. It needs an idle machine.
"""

import argparse
from dataclasses import replace
from statistics import median
from time import monotonic
from typing import Any

from paceline import LLM, SamplingParams
from paceline.reason.parallel import Parallel, ParallelSettings, conversation
from paceline.reason.runner import BASE, Runner

QUESTIONS = (
    "What should I check before I buy a used bicycle?",
    "Explain the main advantages of learning a second language.",
    "How can a small office lower its electricity bill?",
    "What are the stages of brewing beer at home?",
    "Give tips for a first camping trip with children.",
    "What makes a good code review?",
    "Which habits help people to sleep better?",
    "Describe the main organs of the human digestive system and what each does.",
    "What are common reasons why start-up companies fail?",
    "How do I prepare for a job interview?",
    "Which tools does a beginner in woodwork need, and what for?",
    "How can a city make its streets safer for cyclists?",
    "What are the parts of a computer and what does each do?",
    "Name ways to keep vegetables fresh for longer.",
    "What should a good travel insurance cover?",
    "Compare the main kinds of renewable energy.",
    "How does one keep a garden alive in a dry summer?",
    "What are the duties of a football referee?",
    "Which steps does a bill take to become a law?",
    "How can I learn to play the guitar on my own?",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--quantize")
    parser.add_argument("--memory", default="6G")
    parser.add_argument("--drafter", default="none")
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--limit", type=int, default=len(QUESTIONS))
    parser.add_argument("--timed", action="store_true", help="beside as many tokens in sequence")
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    llm = LLM(args.model, quantize=args.quantize, memory=args.memory, drafter=args.drafter, max_model_len=4096)
    questions = QUESTIONS[args.skip :][: args.limit]
    (timed if args.timed else count)(llm, questions, SamplingParams(temperature=0, max_tokens=args.tokens), args.show)


def count(llm: LLM, questions: tuple[str, ...], params: SamplingParams, show: bool) -> None:
    totals = [0, 0, 0]
    print("branches  tokens  longest  outline  passes  ratio  seconds  question")
    for question in questions:
        report, seconds, text = answer(llm, question, params)
        totals = [a + report[name] for a, name in zip(totals, ("tokens", "passes", "critical_path"))]
        counts = [report[name] for name in ("branches", "tokens", "critical_path", "outline_tokens", "passes")]
        ratio = report["tokens"] / report["passes"]
        print(
            "{:8d}  {:6d}  {:7d}  {:7d}  {:6d}".format(*counts),
            f" {ratio:5.2f}  {seconds:7.1f}  {question}",
            flush=True,
        )
        if show:
            print(text)
    tokens, passes, longest = totals
    print(f"all: {tokens} tokens in {passes} passes, {tokens / passes:.2f} a pass")
    print(f"tokens over those of the longest paths: {tokens / longest:.2f}")


def timed(llm: LLM, questions: tuple[str, ...], params: SamplingParams, show: bool) -> None:
    gains, sums, lengths = list[float](), [0.0, 0.0], list[int]()
    answer(llm, questions[0], replace(params, max_tokens=24))  # the first pass of a shape takes longer
    print("branches  tokens  longest  outline  seconds  in sequence   gain  question")
    for question in questions:
        report, seconds, text = answer(llm, question, params)
        alone = sequential(llm, question, report["tokens"])
        gains.append(alone / seconds)
        lengths.append(report["tokens"])
        sums = [sums[0] + seconds, sums[1] + alone]
        counts = [report[name] for name in ("branches", "tokens", "critical_path", "outline_tokens")]
        print(
            "{:8d}  {:6d}  {:7d}  {:7d}".format(*counts),
            f" {seconds:7.2f}  {alone:11.2f}  {gains[-1]:5.2f}  {question}",
            flush=True,
        )
        if show:
            print(text)
    tokens, spread = sum(lengths), f"{median(gains):.2f} ({min(gains):.2f} to {max(gains):.2f})"
    print(f"all: {tokens} tokens, {tokens / sums[0]:.1f} a second in parallel, {tokens / sums[1]:.1f} in sequence")
    print(f"gain {sums[1] / sums[0]:.2f}, of a question {spread}")


def sequential(llm: LLM, question: str, tokens: int) -> float:
    """Seconds of an answer of `tokens` tokens by plain decoding."""
    llm.engine.cache.drop_prefix()
    prompt, started = llm.text.chat([{"role": "user", "content": question}]), monotonic()
    llm.generate([prompt], SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True), progress=False)
    return monotonic() - started


def answer(llm: LLM, question: str, params: SamplingParams) -> tuple[dict[str, Any], float, str]:
    """The report of one answer, its seconds and its text."""
    llm.engine.cache.drop_prefix()
    messages = [{"role": "user", "content": question}]
    runner = Runner({BASE: llm.engine})
    policy, started = Parallel(ParallelSettings(), conversation(llm.text, messages)), monotonic()
    [request] = runner.submit(llm.text.chat(messages), params, policy)
    while request.finish is None:
        runner.step()
    return policy.report, monotonic() - started, request.text


if __name__ == "__main__":
    main()
