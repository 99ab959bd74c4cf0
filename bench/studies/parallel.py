"""Parallel writing on list-like questions, prompt-driven: tokens per pass of the target, beside 1 for plain decoding.

    python bench/studies/parallel.py MODEL [--quantize int8] [--memory 6G] [--drafter none] [--show]
    python bench/studies/parallel.py MODEL --timed [--limit 10] [--skip 10]
    python bench/studies/parallel.py MODEL --quality LARGER --out texts.jsonl [--minutes 4]

The first counts passes, so a busy machine changes no figure. The ratio is that of tokens of the answer to passes, the
passes for the outline included: plain decoding of as many tokens takes one each.

The second answers each question in parallel and then in sequence, with as many tokens. Both begin with an empty prefix
cache. `gain`: tokens a second over those in sequence; tokens are the answer's alone, seconds are all, with the
outline's. It needs an idle machine.

The third compares texts: the one in branches with the one that the same model writes in sequence from the same outline.
Length, the share of the outline's points of which the text says something (a word of the title, in a paragraph of its
own of at least eight words), the share of words that repeat a run of six words, and the perplexity of the text
under a larger model, the question given. Texts that are in --out are not written again.
"""

import argparse
import re
import sys
from dataclasses import replace
from math import exp
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from judged import Record, share

from paceline import LLM, SamplingParams
from paceline.reason.parallel import ANSWER_PROMPT, Parallel, ParallelSettings, conversation
from paceline.reason.runner import BASE, Runner

LEAST_WORDS, RUN_WORDS = 8, 6
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
    parser.add_argument("--quality", metavar="LARGER", help="model under which perplexity is taken")
    parser.add_argument("--minutes", type=float, default=600, help="of --quality: begin nothing new after these")
    parser.add_argument("--out", type=Path, help="of --quality: JSON lines")
    args = parser.parse_args()
    if args.quality:
        if args.out is None:
            parser.error("give --out")
        quality(args)
        return
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


# -- quality ---------------------------------------------------------------------------------------------------------


def quality(args: argparse.Namespace) -> None:
    record, until = Record(args.out), monotonic() + args.minutes * 60
    questions = QUESTIONS[args.skip :][: args.limit]
    params, options = SamplingParams(temperature=0, max_tokens=args.tokens), {"quantize": args.quantize}
    if any(("parallel", each) not in record.known for each in questions):
        with LLM(args.model, drafter="none", max_model_len=4096, **options) as llm:
            for question in questions:
                if ("parallel", question) in record.known or monotonic() > until:
                    continue
                report, _, text = answer(llm, question, params)
                parts = "\n".join(f"{i}. {title}" for i, title in enumerate(report["outline"], 1))
                asked = question + ANSWER_PROMPT.format(parts=parts) if len(report["outline"]) > 1 else question
                [plain] = llm.chat([[{"role": "user", "content": asked}]], params, progress=False)
                for row, said in (("sequence", plain.text), ("parallel", text)):
                    record.add(row, question, text=said, outline=report["outline"], branches=report["branches"])
    judged = [each for row in ("sequence", "parallel") for each in record.row(row).values()]
    todo = [each for each in judged if (f"{each['row']} nats", each["id"]) not in record.known]
    if todo and monotonic() < until:
        with LLM(args.quality, drafter="none", max_model_len=4096, **options) as llm:
            for each in todo:
                if monotonic() < until:
                    nats, tokens = surprise(llm, each["id"], each["text"])
                    record.add(f"{each['row']} nats", each["id"], nats=nats, tokens=tokens)
    print("row       texts  tokens  points covered [95 %]  repeated words  perplexity (geometric mean, range)")
    for row in ("sequence", "parallel"):
        told, texts = record.row(f"{row} nats"), record.row(row)
        mine = [(texts[each], told[each]) for each in told]
        if not mine:
            continue
        points = [covered(title, it["text"]) for it, _ in mine for title in it["outline"]]
        levels = [it["nats"] / it["tokens"] for _, it in mine]
        again = sum(repeated(it["text"]) for it, _ in mine) / len(mine)
        print(f"{row:9} {len(mine):5} {sum(it['tokens'] for _, it in mine) / len(mine):7.0f}  "
              f"{share(sum(points), len(points)):22} {again:14.3f}  {exp(sum(levels) / len(levels)):10.2f} "
              f"({exp(min(levels)):.2f} to {exp(max(levels)):.2f})")  # fmt: skip


def surprise(llm: LLM, question: str, text: str) -> tuple[float, int]:
    """Nats of a text as the answer to a question, and its tokens."""
    prompt = llm.text.chat([{"role": "user", "content": question}])
    body = llm.text.encode(text)
    wish = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    [told] = llm.generate([[*prompt, *body]], wish, progress=False)
    assert told.prompt_logprobs is not None
    return -sum(each.logprob for each in told.prompt_logprobs[len(prompt) :] if each is not None), len(body)


def covered(title: str, text: str) -> bool:
    """Has the text a paragraph of some length with a word of this title?"""
    words = set(re.findall(r"[a-z]{3,}", title.lower()))
    for paragraph in text.split("\n"):
        said = re.findall(r"[a-z]+", paragraph.lower())
        if len(said) >= LEAST_WORDS and words & set(said):
            return True
    return False


def repeated(text: str) -> float:
    """Share of the runs of six words that stood before in the text."""
    words = text.lower().split()
    runs = [tuple(words[i : i + RUN_WORDS]) for i in range(len(words) - RUN_WORDS + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


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
