"""Share of right answers, with and without the adapter, served by Paceline; held-out numbers.

python recipes/lora/measure.py MODEL ADAPTER [--count 100]
"""

import argparse
import random
from dataclasses import replace

from task import example

from paceline import LLM, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("adapter")
    parser.add_argument("--count", type=int, default=100)
    args = parser.parse_args()
    rng = random.Random(1)
    asked = [example(rng) for _ in range(args.count)]
    wish = SamplingParams(temperature=0, max_tokens=12, stop="\n")
    with LLM(args.model, lora={"digits": args.adapter}) as llm:
        for name in ("", "digits"):
            outs = llm.generate([question for question, _ in asked], replace(wish, adapter=name), progress=False)
            right = sum(out.text == answer for out, (_, answer) in zip(outs, asked))
            print(f"{name or 'base':8} {right} of {args.count} right, such as {asked[0][0]}{outs[0].text}")


if __name__ == "__main__":
    main()
