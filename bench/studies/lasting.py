"""Time to the first token of a long system prompt: cold, warm in memory, and after a restart from disk.

    python bench/studies/lasting.py MODEL [--tokens 2000] [--colds 3] [--warms 5] [--threads 2]

Two processes, one behind the other, share a K/V directory: the first meets the prompt cold (other prompts of the same
length give the spread), then warm; the second finds it on disk. Each time is that of `generate` with one new token. The
texts that follow, 24 tokens greedily, are compared.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from paceline import LLM, SamplingParams

ONE = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
TEXT = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def first(llm: LLM, prompt: list[int]) -> tuple[float, int]:
    """(seconds to the first token, tokens that were cached)"""
    begun = perf_counter()
    [out] = llm.generate([prompt], ONE, progress=False)
    return perf_counter() - begun, out.stats.cached


def work(args: argparse.Namespace) -> dict[str, Any]:
    rng = random.Random(1)
    llm = LLM(
        args.model, drafter="none", threads=args.threads, blocks=args.tokens // 16 * (args.colds + 2), max_requests=4,
        row_budget=256, kv_disk=f"{args.kv}:20G",
    )  # fmt: skip
    top = llm.engine.model.vocab_size - 1000
    prompts = [[rng.randrange(1000, top) for _ in range(args.tokens)] for _ in range(args.colds)]
    first(llm, [7] * 64)
    found: dict[str, Any] = {}
    if args.phase == "before":
        found["cold"] = [first(llm, prompt)[0] for prompt in reversed(prompts)]
        found["warm"] = [first(llm, prompts[0])[0] for _ in range(args.warms)]
    else:
        found["disk"], cached = [], 0
        for _ in range(args.warms):
            seconds, cached = first(llm, prompts[0])
            found["disk"].append(seconds)
            found["cached"] = cached
            llm.engine.cache.drop_prefix()
    found["text"] = llm.generate([prompts[0]], TEXT, progress=False)[0].token_ids
    found["kv_bytes"] = llm.engine.model.kv_bytes_per_token
    llm.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--colds", type=int, default=3)
    parser.add_argument("--warms", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv", type=Path)
    parser.add_argument("--phase", choices=["before", "after"])
    args = parser.parse_args()
    if args.phase is not None:
        print(json.dumps(work(args)))
        return
    with tempfile.TemporaryDirectory() as folder:
        out = []
        for phase in ("before", "after"):
            command = [sys.executable, *sys.argv, "--phase", phase, "--kv", folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr)
            out.append(json.loads(done.stdout.splitlines()[-1]))
        before, after = out
        files = list(Path(folder).rglob("*.kv"))
        size = sum(file.stat().st_size for file in files)
    for name, times in (("cold", before["cold"]), ("warm", before["warm"]), ("from disk", after["disk"])):
        print(f"{name:10} {median(times):7.3f} s  ({min(times):.3f} to {max(times):.3f}, {len(times)} runs)")
    print(f"from disk: {after['cached']} tokens cached; texts equal: {before['text'] == after['text']}")
    print(f"{len(files)} files, {size / len(files) / 16:,.0f} bytes on disk a token ({before['kv_bytes']:,} in memory)")


if __name__ == "__main__":
    main()
