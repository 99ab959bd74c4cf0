"""Parallel writing on list-like questions, prompt-driven: tokens per pass of the target, beside 1 for plain decoding.

    python bench/studies/parallel.py MODEL [--quantize int8] [--memory 6G] [--drafter none] [--show]
    python bench/studies/parallel.py MODEL --timed --out times.jsonl [--limit 10] [--skip 10] [--minutes 4]
    python bench/studies/parallel.py MODEL --quality LARGER --out texts.jsonl [--minutes 4]

With `--early` the branches begin while the outline is written.

The first counts passes, so a busy machine changes no figure. The ratio is that of tokens of the answer to passes, the
passes for the outline included: plain decoding of as many tokens takes one each.

The second answers each question in parallel and then in sequence, with as many tokens. Both begin with an empty prefix
cache. `gain`: tokens a second over those in sequence; tokens are the answer's alone, seconds are all, with the
outline's; `processor`: the same of processor time. It needs an idle machine; processor time needs it less.

The third compares texts: the one in branches with the one that the same model writes in sequence from the same outline.
Length, the share of the outline's points of which the text says something (a word of the title, in a paragraph of its
own of at least eight words), the share of words that repeat a run of six words, and the perplexity of the text
under a larger model, the question given. Texts that are in --out are not written again; an --out of other models or
options is refused.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import exp
from pathlib import Path
from time import monotonic, process_time
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from judged import Record, digest, share

from paceline import LLM, SamplingParams
from paceline.reason.parallel import ANSWER_PROMPT, Parallel, ParallelSettings, conversation
from paceline.reason.runner import BASE, Runner

LEAST_WORDS, RUN_WORDS = 8, 6
COUNTED = ("branches", "tokens", "critical_path", "outline_tokens", "passes")
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


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--quantize")
    parser.add_argument("--memory", default="6G")
    parser.add_argument("--drafter", default="none")
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--context", type=int, default=4096, help="most tokens of prompt and answer")
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--limit", type=int, default=len(QUESTIONS))
    parser.add_argument("--fan-out", type=int, default=6, help="most branches")
    parser.add_argument("--early", action="store_true", help="branches begin while the outline is written")
    parser.add_argument("--timed", action="store_true", help="beside as many tokens in sequence")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--quality", metavar="LARGER", help="model under which perplexity is taken")
    parser.add_argument("--minutes", type=float, default=600, help="with --out: begin nothing new after these")
    parser.add_argument("--out", type=Path, help="JSON lines: what is there is not done again")
    args = parser.parse_args(words)
    if args.out is None and (args.quality or args.timed):
        parser.error("give --out")
    args.wished = ParallelSettings(early=args.early, fan_out=args.fan_out)
    args.row = "early" if args.early else "parallel"
    params, questions = SamplingParams(temperature=0, max_tokens=args.tokens), QUESTIONS[args.skip :][: args.limit]
    if args.quality:
        quality(questions, params, args)
    elif args.timed:
        timed(questions, params, args)
    else:
        count(questions, params, args)


def model(args: argparse.Namespace) -> LLM:
    return LLM(args.model, quantize=args.quantize, memory=args.memory, drafter=args.drafter, max_model_len=args.context)


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """What the figures of a record depend on, apart from its rows."""
    names = ("quantize", "tokens", "context", "fan_out")
    return {"model": digest(args.model), **{name: getattr(args, name) for name in names}}


def count(questions: Sequence[str], params: SamplingParams, args: argparse.Namespace) -> None:
    totals = [0, 0, 0]
    print("branches  tokens  longest  outline  passes  ratio  seconds  question")
    with model(args) as llm:
        for question in questions:
            report, seconds, text = answer(llm, question, params, args.wished)
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


def timed(questions: Sequence[str], params: SamplingParams, args: argparse.Namespace) -> None:
    made_with = {**settings(args), "drafter of times": args.drafter, "threads of times": torch.get_num_threads()}
    record, until, row = Record(args.out, made_with), monotonic() + args.minutes * 60, f"{args.row} timed"
    todo = [each for each in questions if (row, each) not in record.known]
    if todo:
        with model(args) as llm:
            answer(llm, todo[0], replace(params, max_tokens=24), args.wished)  # a shape's first pass takes longer
            for question in todo:
                if monotonic() > until:
                    break
                cpu = process_time()
                report, seconds, text = answer(llm, question, params, args.wished)
                between = process_time()
                alone = sequential(llm, question, report["tokens"])
                facts = {name: report[name] for name in COUNTED}
                record.add(row, question, seconds=seconds, alone=alone, cpu=between - cpu,
                           cpu_alone=process_time() - between, text=text, **facts)  # fmt: skip
                if args.show:
                    print(text)
    known = record.row(row)
    mine = [known[each] for each in questions if each in known]
    print("branches  questions  tokens  longest  outline  passes  a pass   gain (range)          processor")
    for number in [*sorted({each["branches"] for each in mine}), None]:
        some = [each for each in mine if number in (None, each["branches"])]
        if not some:
            continue
        tokens, longest, planned, passes, seconds, alone, cpu, cpu_alone = (
            sum(each[name] for each in some)
            for name in (*COUNTED[1:], "seconds", "alone", "cpu", "cpu_alone")
        )  # fmt: skip
        gains = [each["alone"] / each["seconds"] for each in some]
        of = len(some)
        print(f"{'all' if number is None else number:>8} {of:10} {tokens / of:7.0f}  {longest / of:7.0f}"
              f"  {planned / of:7.0f} {passes / of:7.0f} {tokens / passes:7.2f} {alone / seconds:6.2f}"
              f" ({min(gains):.2f} to {max(gains):.2f}) {cpu_alone / max(cpu, 1e-9):10.2f}")  # fmt: skip


# -- quality ---------------------------------------------------------------------------------------------------------


def quality(questions: Sequence[str], params: SamplingParams, args: argparse.Namespace) -> None:
    record = Record(args.out, {**settings(args), "larger": digest(args.quality)})
    until, rows = monotonic() + args.minutes * 60, ("sequence", args.row)
    options = {"drafter": "none", "max_model_len": args.context, "quantize": args.quantize}
    if any((args.row, each) not in record.known for each in questions):
        with LLM(args.model, **options) as llm:
            for question in questions:
                if (args.row, question) in record.known or monotonic() > until:
                    continue
                report, _, text = answer(llm, question, params, args.wished)
                if ("sequence", question) not in record.known:
                    parts = "\n".join(f"{i}. {title}" for i, title in enumerate(report["outline"], 1))
                    asked = question + ANSWER_PROMPT.format(parts=parts) if len(report["outline"]) > 1 else question
                    [plain] = llm.chat([[{"role": "user", "content": asked}]], params, progress=False)
                    record.add("sequence", question, text=plain.text, outline=report["outline"], branches=0)
                record.add(args.row, question, text=text, outline=report["outline"], branches=report["branches"])
    judged = [each for row in rows for each in record.row(row).values()]
    todo = [each for each in judged if (f"{each['row']} nats", each["id"]) not in record.known]
    if todo and monotonic() < until:
        with LLM(args.quality, **options) as llm:
            for each in todo:
                if monotonic() < until:
                    nats, tokens = surprise(llm, each["id"], each["text"])
                    record.add(f"{each['row']} nats", each["id"], nats=nats, tokens=tokens)
    print("row       texts  tokens  points covered [95 %]  repeated words  perplexity (geometric mean, range)")
    for row in rows:
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


def answer(
    llm: LLM, question: str, params: SamplingParams, wished: ParallelSettings
) -> tuple[dict[str, Any], float, str]:
    """The report of one answer, its seconds and its text."""
    llm.engine.cache.drop_prefix()
    messages = [{"role": "user", "content": question}]
    runner = Runner({BASE: llm.engine})
    policy, started = Parallel(wished, conversation(llm.text, messages)), monotonic()
    [request] = runner.submit(llm.text.chat(messages), params, policy)
    while request.finish is None:
        runner.step()
    return policy.report, monotonic() - started, request.text


if __name__ == "__main__":
    main()
