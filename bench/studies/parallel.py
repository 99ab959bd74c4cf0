"""Parallel writing on list-like questions, prompt-driven: tokens per pass of the target, beside 1 for plain decoding.

    python bench/studies/parallel.py MODEL [--quantize int8] [--memory 6G] [--drafter none] [--show]

Passes are counted, so a busy machine changes no figure; `seconds` says what an idle one takes. The ratio is that of
tokens of the answer to passes, the passes for the outline included: plain decoding of as many tokens takes one each.
"""

import argparse
from time import monotonic

from paceline import LLM, SamplingParams
from paceline.reason.parallel import Parallel, Settings, conversation
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
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--quantize")
    parser.add_argument("--memory", default="6G")
    parser.add_argument("--drafter", default="none")
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    llm = LLM(args.model, quantize=args.quantize, memory=args.memory, drafter=args.drafter, max_model_len=4096)
    params, totals = SamplingParams(temperature=0, max_tokens=args.tokens), [0, 0, 0]
    print("branches  tokens  longest  outline  passes  ratio  seconds  question")
    for question in QUESTIONS:
        report, seconds, text = answer(llm, question, params)
        totals = [a + report[name] for a, name in zip(totals, ("tokens", "passes", "critical_path"))]
        counts = [report[name] for name in ("branches", "tokens", "critical_path", "outline_tokens", "passes")]
        ratio = report["tokens"] / report["passes"]
        print(
            "{:8d}  {:6d}  {:7d}  {:7d}  {:6d}".format(*counts),
            f" {ratio:5.2f}  {seconds:7.1f}  {question}",
            flush=True,
        )
        if args.show:
            print(text)
    tokens, passes, longest = totals
    print(f"all: {tokens} tokens in {passes} passes, {tokens / passes:.2f} a pass")
    print(f"tokens over those of the longest paths: {tokens / longest:.2f}")


def answer(llm: LLM, question: str, params: SamplingParams) -> tuple[dict[str, int], float, str]:
    """The report of one answer, its seconds and its text."""

    messages = [{"role": "user", "content": question}]
    runner = Runner({BASE: llm.engine})
    policy, started = Parallel(Settings(), conversation(llm.text, messages)), monotonic()
    [request] = runner.submit(llm.text.chat(messages), params, policy)
    while request.finish is None:
        runner.step()
    return policy.report, monotonic() - started, request.text


if __name__ == "__main__":
    main()
