"""Accuracy and tokens of reasoning with two models, on word problems (SVAMP's JSON: Body, Question, Answer).

    python bench/studies/reasoning.py BASE SMALL svamp.json --questions 60 --seconds 100 --quantize int8

One row a policy; `seconds` is a limit for each, and what is not finished then does not count. The share of right
answers has the standard error of its own row; the same questions are asked in every row. Seconds mean something on an
idle machine alone.
"""

import argparse
import json
import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline import SamplingParams
from paceline.reason import Ensemble, MentorWishes, StepWishes
from paceline.reason.ensemble import Wishes

ASK = (
    "{Body}. {Question} Reason step by step, with a blank line between two steps, and end with a line that says "
    "'The answer is N.' with the number N."
)
ROWS: dict[str, Wishes] = {
    "small": StepWishes(tau=-1, budget=0),
    "tau 3": StepWishes(tau=3),
    "tau 5": StepWishes(tau=5),
    "tau 7": StepWishes(tau=7),
    "base": StepWishes(first=10**6),
    "mentor": MentorWishes(begin=20, always=True),
}
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def right(text: str, answer: float) -> bool:
    """Is the last number of the text, behind "answer is" where it says so, the answer?"""
    found = NUMBER.findall(text.rsplit("answer is", 1)[-1]) or NUMBER.findall(text)
    return bool(found) and abs(float(found[0 if "answer is" in text else -1].replace(",", "")) - answer) < 1e-4


def row(pair: Ensemble, questions: Sequence[dict[str, Any]], wishes: Wishes, limit: float, most: int) -> dict[str, Any]:
    """Ask all of them at once; what came of those that ended within `limit` seconds."""
    params, begun, asked = SamplingParams(temperature=0, max_tokens=most).resolve({}), time.monotonic(), []
    for question in questions:
        messages = [{"role": "user", "content": ASK.format(**question)}]
        policy = pair.policy(wishes, messages)
        asked.append((question, policy, pair.runner.submit(pair.llm.text.chat(messages), params, policy)[0]))
    while pair.runner.busy and time.monotonic() - begun < limit:
        pair.runner.step()
    done = [each for each in asked if each[2].finish is not None]
    for *_, request in asked:
        pair.runner.abort(request)
    sums = {"written": {"base": 0, "small": 0}, "passes": {"base": 0, "small": 0}}
    judges = proposed = accepted = 0
    for _, policy, _ in done:
        for name, counted in policy.report["models"].items():
            for key in sums:
                sums[key][name] += counted[key]
        judges += sum(each["why"] == "judge" for each in policy.report["handovers"])
        proposed, accepted = proposed + policy.report["proposed"], accepted + policy.report["accepted"]
    good = sum(right(request.text, question["Answer"]) for question, _, request in done)
    return {
        "done": len(done),
        "right": good,
        **sums,
        "judges": judges,
        "proposed": proposed,
        "accepted": accepted,
        "tokens": sum(len(request.output) for *_, request in done),
        "seconds": time.monotonic() - begun,
        "ids": [question["ID"] for question, *_ in done],
        "texts": [request.text for *_, request in done],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("small")
    parser.add_argument("data", type=Path)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--quantize", default=None)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--out", type=Path, help="JSON of everything")
    args = parser.parse_args()
    questions = json.loads(args.data.read_text(encoding="utf-8"))[args.skip :][: args.questions]
    rows = {}
    with Ensemble(args.base, small=args.small, quantize=args.quantize, drafter="none", blocks=2000) as pair:
        print(
            f"{'':8} done  right       answer  base tok  base passes  small tok  judged  accepted  seconds", flush=True
        )
        for name in args.rows.split(","):
            it = rows[name] = row(pair, questions, ROWS[name], args.seconds, args.max_tokens)
            share = it["right"] / max(1, it["done"])
            error = math.sqrt(share * (1 - share) / max(1, it["done"]))
            print(f"{name:8} {it['done']:4} {share:6.2f} ±{error:.2f} {it['tokens']:8} {it['written']['base']:9} "
                  f"{it['passes']['base']:12} {it['written']['small']:10} {it['judges']:7} {it['accepted']:9} "
                  f"{it['seconds']:8.0f}", flush=True)  # fmt: skip
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
