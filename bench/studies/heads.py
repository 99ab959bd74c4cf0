"""Tokens a second of drafting heads in single steps and in runs of steps, next to plain decoding.

    python bench/studies/heads.py TARGET METHOD=FOLDER... [--prompts FILE.jsonl] [--count 3] [--tokens 64] [--rounds 3]

Each METHOD names a drafter, each FOLDER its trained head. In turn, for the same prompts: plain decoding; the drafter
in steps of one pass; the drafter in runs of as many passes as the planner likes. Decoding is greedy, so all texts must
be equal. Printed are medians over rounds, least and most, and committed tokens a pass.
"""

import argparse
import json
from pathlib import Path
from statistics import median
from time import perf_counter

from paceline import LLM, SamplingParams
from paceline.engine.config import PATIENCE_MS

PLAIN, STEPS, RUNS = "plain", "steps", "runs"
WIDTH_NODES = 8


def prompts_of(path: Path, count: int) -> list[str]:
    """Return the first `count` questions of a JSON lines file."""
    rows = [json.loads(line) for line in path.read_text().splitlines()[:count]]
    return [row.get("question") or row["prompt"] for row in rows]


def once(llm: LLM, drafter: str, mode: str, prompts: list[str], tokens: int) -> tuple[float, float, list[list[int]]]:
    """Return tokens a second, committed tokens a pass and the texts of all prompts, one after another."""
    llm.engine.desk.policy.patience = 0.0 if mode == STEPS else PATIENCE_MS / 1000  # type: ignore[attr-defined]
    params = SamplingParams(
        temperature=0, max_tokens=tokens, ignore_eos=True, drafter="none" if mode == PLAIN else drafter,
        max_nodes=None if mode == PLAIN else WIDTH_NODES,
    )  # fmt: skip
    begun = perf_counter()
    made = [llm.generate([prompt], params, progress=False)[0] for prompt in prompts]
    seconds = perf_counter() - begun
    texts = [list(one.token_ids) for one in made]
    count = sum(map(len, texts))
    return count / seconds, count / sum(one.stats.passes for one in made), texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("heads", nargs="+", metavar="METHOD=FOLDER")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    prompts = prompts_of(args.prompts, args.count)
    print("| head | plain tokens/s | steps | runs | steps over plain | runs over plain | tokens a pass |")
    print("|---|---|---|---|---|---|---|")
    for entry in args.heads:
        drafter, _, folder = entry.partition("=")
        with LLM(args.target, folder, memory="2G", threads=args.threads) as llm:
            speeds: dict[str, list[float]] = {PLAIN: [], STEPS: [], RUNS: []}
            a_pass = 0.0
            for turn in range(args.rounds + 1):
                results = {mode: once(llm, drafter, mode, prompts, args.tokens) for mode in speeds}
                assert all(result[2] == results[PLAIN][2] for result in results.values()), f"{entry}: texts differ"
                a_pass = results[RUNS][1]
                for mode, result in results.items():
                    if turn:  # the first warms up
                        speeds[mode].append(result[0])
        cells = [f"{median(seen):.1f} ({min(seen):.1f}-{max(seen):.1f})" for seen in speeds.values()]
        ratios = [f"{median(speeds[mode]) / median(speeds[PLAIN]):.2f}" for mode in (STEPS, RUNS)]
        print("| " + " | ".join([Path(folder).name, *cells, *ratios, f"{a_pass:.2f}"]) + " |", flush=True)


if __name__ == "__main__":
    main()
