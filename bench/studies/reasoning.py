"""Reasoning with two models on word problems (SVAMP's JSON: Body, Question, Answer): what is right, what it costs.

    python bench/studies/reasoning.py BASE SMALL svamp.json --questions 60 --seconds 400 --quantize int8
    python bench/studies/reasoning.py BASE SMALL svamp.json --questions 6 --timed --quantize int8

The first asks all questions of a row at once and counts: right answers (with the standard error of the row), tokens,
passes, judged and accepted steps, and for each model the share of known tokens that hand-overs found in its cache.
`seconds` is a limit for each row, and what is not finished then does not count.

The second asks one question at a time, every row in turns, each with empty caches. Beside a row's seconds stand those
of the cost model: requests, tokens computed and passes of each model, as the answers counted them, at the pace
that each model alone had in the same run; what drafting costs within the base model's steps (`tau X spec`, which needs
--draft) is not in it. It needs an idle machine.
"""

import argparse
import json
import math
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from paceline import SamplingParams
from paceline.engine.loop import Engine
from paceline.reason import Ensemble, MentorWishes, StepWishes
from paceline.reason.ensemble import Wishes
from paceline.reason.runner import BASE, SMALL

ASK = (
    "{Body}. {Question} Reason step by step, with a blank line between two steps, and end with a line that says "
    "'The answer is N.' with the number N."
)
ROWS = "small,tau 5,tau 7,tau 8,base,mentor"
SPEC = " spec"
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def wishes(name: str) -> Wishes:
    """Wishes of a row: `small`, `base`, `mentor`, `tau X` or `tau X spec`, whose rewrites are drafted by token."""
    plain: dict[str, Wishes] = {
        "small": StepWishes(tau=-1, budget=0),
        "base": StepWishes(first=10**6),
        "mentor": MentorWishes(begin=20, always=True),
    }
    if name in plain:
        return plain[name]
    return StepWishes(tau=float(name.removeprefix("tau ").removesuffix(SPEC)), speculate=name.endswith(SPEC))


def right(text: str, answer: float) -> bool:
    """Is the last number of the text, behind "answer is" where it says so, the answer?"""
    found = NUMBER.findall(text.rsplit("answer is", 1)[-1]) or NUMBER.findall(text)
    return bool(found) and abs(float(found[0 if "answer is" in text else -1].replace(",", "")) - answer) < 1e-4


def ask(pair: Ensemble, question: dict[str, Any], name: str, params: SamplingParams) -> tuple[Any, Any]:
    """Begin an answer: its policy and its request."""
    messages = [{"role": "user", "content": ASK.format(**question)}]
    policy = pair.policy(wishes(name), messages)
    params = replace(params, drafter="model") if name.endswith(SPEC) else params
    return policy, pair.runner.submit(pair.llm.text.chat(messages), params, policy)[0]


# -- counting --------------------------------------------------------------------------------------------------------


def count(
    pair: Ensemble, questions: Sequence[dict[str, Any]], name: str, limit: float, params: SamplingParams
) -> dict[str, Any]:
    """Ask all of them at once; what came of those that ended within `limit` seconds."""
    begun = time.monotonic()
    asked = [(question, *ask(pair, question, name, params)) for question in questions]
    while pair.runner.busy and time.monotonic() - begun < limit:
        pair.runner.step()
    done = [each for each in asked if each[2].finish is not None]
    for *_, request in asked:
        pair.runner.abort(request)
    reports = [policy.report for _, policy, _ in done]
    hands = [each for report in reports for each in report["handovers"]]
    return {
        "done": len(done),
        "right": sum(right(request.text, question["Answer"]) for question, _, request in done),
        "whole": sum(request.finish == "stop" for *_, request in done),
        "tokens": sum(len(request.output) for *_, request in done),
        "written": {model: total(hands, "wrote", model) for model in (BASE, SMALL)},
        "passes": {model: total(hands, "passes", model) for model in (BASE, SMALL)},
        "cached": {model: found(hands, model) for model in (BASE, SMALL)},
        "handovers": len(hands),
        "judges": sum(each["why"] == "judge" for each in hands),
        "proposed": sum(report["proposed"] for report in reports),
        "accepted": sum(report["accepted"] for report in reports),
        "seconds": time.monotonic() - begun,
        "ids": [question["ID"] for question, *_ in done],
        "texts": [request.text for *_, request in done],
    }


def total(hands: Sequence[dict[str, Any]], what: str, model: str, where: str | None = None) -> int:
    """Sum over a model's hand-overs; `where`: those alone in which this is not 0."""
    return sum(each[what] for each in hands if each["model"] == model and (where is None or each[where]))


def found(hands: Sequence[dict[str, Any]], model: str) -> float:
    """Share of the tokens that a model had known before a hand-over which its cache still had."""
    return total(hands, "cached", model, "known") / max(1, total(hands, "known", model))


def counting(pair: Ensemble, questions: Sequence[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    params = SamplingParams(temperature=0, max_tokens=args.max_tokens).resolve({})
    print("row       done  whole  right         tokens    base   small  base passes  hand-overs  judged  accepted"
          "  cached base  small  seconds", flush=True)  # fmt: skip
    rows = {}
    for name in args.rows.split(","):
        it = rows[name] = count(pair, questions, name, args.seconds, params)
        share = it["right"] / max(1, it["done"])
        error = math.sqrt(share * (1 - share) / max(1, it["done"]))
        print(f"{name:8} {it['done']:5} {it['whole']:6} {share:6.2f} ±{error:.2f} {it['tokens']:9} "
              f"{it['written'][BASE]:7} {it['written'][SMALL]:7} {it['passes'][BASE]:12} {it['handovers']:11} "
              f"{it['judges']:7} {it['accepted']:9} {it['cached'][BASE]:12.2f} {it['cached'][SMALL]:6.2f} "
              f"{it['seconds']:8.0f}", flush=True)  # fmt: skip
        save(args, rows)
    return rows


# -- timing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of one model: a request takes `start`, and a fixed time for each token computed before its first, and for
    each pass behind that. Passes, not tokens: a model's own drafter may write several a pass."""

    start: float
    computed: float
    written: float

    @classmethod
    def of(cls, engine: Engine, tries: int = 3) -> "Pace":
        """As measured now: medians of requests of three lengths for one token, and of 24 tokens more."""
        draw, lengths = random.Random(0), (4, 48, 128)
        words = [i for i in range(engine.model.vocab_size * 2 // 3) if i not in engine.session.eos]

        def once(length: int, tokens: int) -> float:
            wish = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, drafter="none").resolve({})
            begun = time.perf_counter()
            [request] = engine.submit(draw.choices(words, k=length), wish)
            while request.finish is None:
                engine.step()
            return time.perf_counter() - begun

        firsts = [median(once(length, 1) for _ in range(tries)) for length in lengths]
        slope, start = np.polyfit(lengths, firsts, 1)
        long = median(once(48, 25) for _ in range(tries))
        return cls(max(0.0, float(start)), float(slope), (long - firsts[1]) / 24)

    def seconds(self, hands: Sequence[dict[str, Any]], model: str) -> float:
        mine = [each for each in hands if each["model"] == model]
        computed, passes = total(mine, "at", model) - total(mine, "cached", model), total(mine, "passes", model)
        return len(mine) * self.start + computed * self.computed + (passes - len(mine)) * self.written


def timing(pair: Ensemble, questions: Sequence[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    params = SamplingParams(temperature=0, max_tokens=args.max_tokens).resolve({})
    pace = {name: Pace.of(engine) for name, engine in pair.runner.engines.items()}
    for name, it in pace.items():
        print(f"{name}: {it.start * 1e3:.1f} ms a request, {it.computed * 1e3:.1f} a token computed, "
              f"{it.written * 1e3:.1f} a token written", flush=True)  # fmt: skip
    names, begun = args.rows.split(","), time.monotonic()
    rows: dict[str, Any] = {name: {"seconds": [], "predicted": [], "tokens": [], "texts": []} for name in names}
    for number, question in enumerate(questions):
        if time.monotonic() - begun > args.seconds:
            break
        for name in names[number % len(names) :] + names[: number % len(names)]:
            for engine in pair.runner.engines.values():
                engine.cache.drop_prefix()
            started = time.perf_counter()
            policy, request = ask(pair, question, name, params)
            while request.finish is None:
                pair.runner.step()
            rows[name]["seconds"].append(time.perf_counter() - started)
            hands = policy.report["handovers"]
            rows[name]["predicted"].append(sum(it.seconds(hands, model) for model, it in pace.items()))
            rows[name]["tokens"].append(len(request.output))
            rows[name]["texts"].append(request.text)
    print("row       questions  seconds a question (range)   tokens  ms a token  predicted  measured/predicted")
    for name, it in rows.items():
        seconds, tokens, ratios = it["seconds"], sum(it["tokens"]), np.divide(it["seconds"], it["predicted"])
        print(f"{name:10} {len(seconds):8} {median(seconds):8.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
              f" {tokens:12} {sum(seconds) / tokens * 1e3:11.1f} {median(it['predicted']):10.2f}"
              f" {median(ratios):9.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)  # fmt: skip
        if (plain := name.removesuffix(SPEC)) != name and plain in rows:
            print(f"{name}: the texts of {plain}: {it['texts'] == rows[plain]['texts']}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("small")
    parser.add_argument("data", type=Path)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=400, help="for each row; with --timed, begin none after these")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--quantize", default=None)
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--draft", help="drafts tokens of the base model's own steps in rows that end with `spec`")
    parser.add_argument("--timed", action="store_true", help="one question at a time, with the cost model")
    parser.add_argument("--out", type=Path, help="JSON of everything")
    args = parser.parse_args()
    questions = json.loads(args.data.read_text(encoding="utf-8"))[args.skip :][: args.questions]
    options = {"quantize": args.quantize, "drafter": "none", "blocks": 2000}
    with Ensemble(args.base, small=args.small, draft=args.draft, **options) as pair:
        rows = (timing if args.timed else counting)(pair, questions, args)
    save(args, rows)


def save(args: argparse.Namespace, rows: dict[str, Any]) -> None:
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
