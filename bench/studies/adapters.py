"""Tokens a second of a batch whose rows have adapters, next to the same batch without.

    python bench/studies/adapters.py MODEL [--quantize int4] [--rank 8] [--rounds 5] [--threads 2]

Sixteen requests decode greedily at once, without drafts. In turn: nobody has an adapter; one adapter for all; half have
one; one has one; sixteen adapters, one each. Where some rows have none, theirs are also counted apart. Adapters are
random, of one rank, for all linear layers. A round goes through all cases, every other one in reverse; ratios are
medians over rounds of the ratio to the round's own "no adapter", with their range. Also printed: bytes of all adapters,
and of their factors as they are stored in bfloat16.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from paceline import LLM, SamplingParams
from paceline.bench.random_lora import random_lora
from paceline.model.checkpoint import read_config, resolve
from paceline.model.lora_places import lora_places

ROWS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--quantize")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    model = resolve(args.model)
    spec = read_config(model)
    with tempfile.TemporaryDirectory() as folder:
        lora = {f"a{i}": random_lora(Path(folder) / f"a{i}", model, i, args.rank) for i in range(ROWS)}
        llm = LLM(
            model, drafter="none", quantize=args.quantize, threads=args.threads, lora=lora, max_requests=ROWS,
            blocks=64 * ROWS,
        )  # fmt: skip
    adapters = llm.engine.session.adapters
    cases = {
        "no adapter": [""] * ROWS,
        "one adapter": ["a0"] * ROWS,
        "half without": ["a0", ""] * (ROWS // 2),
        "one with": ["a0"] + [""] * (ROWS - 1),
        "sixteen": [f"a{i}" for i in range(ROWS)],
    }
    rounds = list[dict[str, float]]()
    for turn in range(args.rounds + 1):
        speeds = dict[str, float]()
        for name in [*cases] if turn % 2 else [*reversed(cases)]:
            whole, without = timed(llm, cases[name], args.tokens)
            speeds[name] = whole
            if 0 < cases[name].count("") < ROWS:
                speeds[f"{name}, rows without"] = without * ROWS / cases[name].count("")
        rounds += [speeds] * bool(turn)  # the first warms up
    for name in sorted(rounds[0], key=[*cases, *rounds[0]].index):
        seen = [each[name] for each in rounds]
        ratios = [each[name] / each["no adapter"] for each in rounds]
        print(
            f"{name:26} {median(seen):8.1f} tokens/s ({min(seen):.1f} to {max(seen):.1f})  {median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f})"
        )
    count = args.rank * sum(
        place.width * len(place.modules) + sum(place.outs) for place in lora_places(spec, False, False)
    )
    print(f"{adapters.bytes:,} bytes of {ROWS} adapters, whose factors have {2 * count * ROWS:,} in bfloat16")
    print(f"{llm.engine.model.weight_bytes:,} bytes of the model")
    llm.close()


def timed(llm: LLM, whose: list[str], tokens: int) -> tuple[float, float]:
    """Tokens a second of requests with these adapters: of all, and of those without one."""
    wishes = [SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, adapter=name) for name in whose]
    prompts = [[1000 + 17 * row + j for j in range(16)] for row in range(ROWS)]
    requests = [llm.engine.submit(p, w.resolve({}))[0] for p, w in zip(prompts, wishes)]
    while any(len(request.output) < 2 for request in requests):
        llm.engine.step()
    begun, had = perf_counter(), [len(request.output) for request in requests]
    while any(request.finish is None for request in requests):
        llm.engine.step()
    took, made = perf_counter() - begun, [tokens - before for before in had]
    return sum(made) / took, sum(more for more, name in zip(made, whose) if not name) / took


if __name__ == "__main__":
    main()
