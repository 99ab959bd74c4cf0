"""Speculative retrieval beside a retrieval at a time: calls, batches, right guesses, seconds.

    python bench/studies/retrieval.py --model M --index D [--kinds exact,hnsw,bm25] [--ways one,P+S+A] \
        [--questions F.jsonl] [--limit 8] [--repeat 3] [--max-tokens 64] [--minutes 4] --out rows.jsonl

Each question is answered once in each way, in turns, the first one changing; all texts must be those of `one`.
Ways, as the paper names them: one (a retrieval at a time), s3 (three guesses a call), P (20 passages of a call join the
cache), S (the optimal number of guesses), A (writing goes on during a call; with S only where that pays). a and b are
seconds of a step and of a call. `predicted` is (a + b) verified(gamma, s) / (s a + b) with a and b of `one`, gamma and
s as the way had them; A and S are beyond that formula. `ratio` is of sums; `low` and `high` are the least and the
greatest ratio of one question. Each question is answered once before, so that all ways find its prompts cached. No
question is begun after `--minutes`; the same command goes on. Times need an idle machine.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from judged import Record, digest

from paceline import LLM, SamplingParams
from paceline.retrieve import PassageIndex, Retrieval, generate
from paceline.retrieve.retriever import Retriever
from paceline.retrieve.stride import gain

COUNTED = ("calls", "batches", "rounds", "verified", "proposed", "accepted", "dropped_tokens", "overlapped", "strides",
           "stride_tokens", "cached_tokens", "model_seconds", "call_seconds")  # fmt: skip
WAYS = {
    "one": Retrieval(stride=1, prefetch=1, overlap=False),
    "s3": Retrieval(stride=3, prefetch=1, overlap=False),
    "s3+P": Retrieval(stride=3, overlap=False),
    "s3+A": Retrieval(stride=3, prefetch=1),
    "S": Retrieval(prefetch=1, overlap=False),
    "P+S": Retrieval(overlap=False),
    "P+S+A": Retrieval(),
}
QUESTIONS = (
    "How do I read a text file line by line in Python?",
    "What does the with statement do?",
    "How can a function take any number of keyword arguments?",
    "What is the difference between a list and a tuple?",
    "How do I run a program and read what it prints?",
    "When is a generator better than a list?",
    "How are exceptions raised and caught?",
    "What is the global interpreter lock?",
    "How do I parse the arguments of a command line?",
    "How do I write a unit test for a function that raises?",
    "How do I sort a list of dictionaries by one of their values?",
    "What does a decorator do, and how is one written?",
)


@dataclass
class Sum:
    """Figures of one way over all questions."""

    each: list[float] = field(default_factory=list)
    """Seconds of each question."""
    reports: list[dict[str, Any]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(self.each)

    def of(self, name: str) -> float:
        total: float = sum(float(report[name]) for report in self.reports)
        return total

    @property
    def judged(self) -> float:
        """Guesses up to the first wrong one of each round."""
        rounds = [each for report in self.reports for each in report["verified"]]
        return self.of("accepted") + len([1 for asked, right in rounds if right < asked])


def row(way: str, mine: Sum, one: Sum) -> dict[str, Any]:
    """One line of the table; `one`: a retrieval at a time."""
    texts = len(mine.reports)
    b = one.of("call_seconds") / one.of("calls")
    a = (one.seconds - one.of("call_seconds")) / one.of("strides")
    gamma, s = mine.of("accepted") / max(1, mine.judged), mine.of("proposed") / max(1, mine.of("rounds"))
    return {
        "way": way, "calls": mine.of("calls") / texts, "batch": s, "right": gamma,
        "strides": mine.of("strides") / texts, "dropped": mine.of("dropped_tokens") / texts,
        "overlapped": mine.of("overlapped") / texts,
        "cached": mine.of("cached_tokens") / mine.of("stride_tokens"), "a": a, "b": b,
        "ratio": one.seconds / mine.seconds,
        "low": min(a / b for a, b in zip(one.each, mine.each)),
        "high": max(a / b for a, b in zip(one.each, mine.each)), "predicted": gain(a, b, gamma, max(1, round(s))),
    }  # fmt: skip


def measure(
    llm: LLM, index: PassageIndex, retriever: Retriever, questions: Sequence[str], params: SamplingParams, args: Any,
    record: Record,
) -> list[dict[str, Any]]:  # fmt: skip
    """Every question in every way. AssertionError where a text differs from that of a retrieval at a time."""
    names, kind = args.ways.split(","), retriever.kind
    for number, question in enumerate(questions):
        if all((f"{kind} {way}", question) in record.known for way in names) or monotonic() > args.until:
            continue
        texts, seconds, reports = {}, {way: list[float]() for way in names}, {}
        ask: Any = [{"role": "user", "content": question}] if llm.text.tokenizer.chat_template else question
        generate(llm, ask, index, params, replace(WAYS["one"], every=args.every), retriever=retriever)
        for turn in range(number, number + args.repeat):
            for way in names[turn % len(names) :] + names[: turn % len(names)]:
                wish, begun = replace(WAYS[way], every=args.every), perf_counter()
                answer = generate(llm, ask, index, params, wish, retriever=retriever)
                seconds[way].append(perf_counter() - begun)
                texts[way] = answer.output.token_ids
                reports.setdefault(way, {name: answer.report[name] for name in COUNTED})
        assert all(text == texts["one"] for text in texts.values()), f"texts differ: {question}"
        for way in names:
            if (f"{kind} {way}", question) not in record.known:
                record.add(f"{kind} {way}", question, seconds=median(seconds[way]), report=reports[way])
    sums = {way: Sum() for way in names}
    common = [each for each in questions if all((f"{kind} {way}", each) in record.known for way in names)]
    for way in names:
        known = record.row(f"{kind} {way}")
        sums[way].each = [known[each]["seconds"] for each in common]
        sums[way].reports = [known[each]["report"] for each in common]
    print(f"{kind}: {len(common)} questions")
    return [row(way, sums[way], sums["one"]) for way in names] if common else []


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    print(f"\n{title}\n{'way':8}" + "".join(f"{name:>11}" for name in list(rows[0])[1:]))
    for each in rows:
        print(f"{each['way']:8}" + "".join(f"{value:11.3f}" for name, value in each.items() if name != "way"))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--index", required=True)
    parser.add_argument("--kinds")
    parser.add_argument("--ways", default=",".join(WAYS), help="`one` among them")
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=1, help="repetitions; figures are medians")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines: what is there is not measured again")
    args = parser.parse_args(words)
    names = ("max_tokens", "every", "dtype", "repeat")
    options = {name: getattr(args, name) for name in names}
    record = Record(args.out, {"model": digest(args.model), "index": digest(args.index), **options})
    args.until = monotonic() + args.minutes * 60
    asked = QUESTIONS if args.questions is None else [json.loads(x)["question"] for x in args.questions.open()]
    index = PassageIndex.open(args.index)
    params = SamplingParams(temperature=0, max_tokens=args.max_tokens, drafter="ngram")
    with LLM(args.model, dtype=args.dtype, max_model_len=2048 if args.model else None, max_requests=4) as llm:
        for kind in args.kinds.split(",") if args.kinds else index.kinds:
            it = index.retriever(kind)
            rows = measure(llm, index, it, asked[: args.limit], params, args, record)
            if rows:
                show(f"{kind}, {it.size} passages; the same texts: True", rows)


if __name__ == "__main__":
    main()
