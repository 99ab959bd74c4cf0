"""Tokens a second of a batch whose rows have adapters, next to the same batch without.

    python bench/studies/adapters.py MODEL [--quantize int4] [--rank 8] [--rounds 5] [--threads 2]

Sixteen requests decode greedily at once, without drafts. In turn: nobody has an adapter; one adapter for all; half have
one; sixteen adapters, one each. Adapters are random, of one rank, for all linear layers. Ratios are of medians over
rounds in turn. Also printed: bytes of all adapters, and of their factors as they are stored in bfloat16.
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
        "sixteen": [f"a{i}" for i in range(ROWS)],
    }
    prompts = [[1000 + 17 * row + j for j in range(16)] for row in range(ROWS)]
    times: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(args.rounds + 1):
        for name, whose in cases.items():
            wishes = [
                SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True, adapter=adapter)
                for adapter in whose
            ]
            requests = [llm.engine.submit(p, w.resolve({}))[0] for p, w in zip(prompts, wishes)]
            while any(len(request.output) < 2 for request in requests):
                llm.engine.step()
            begun, had = perf_counter(), sum(len(request.output) for request in requests)
            while any(request.finish is None for request in requests):
                llm.engine.step()
            if turn:  # the first warms up
                times[name].append((ROWS * args.tokens - had) / (perf_counter() - begun))
    plain = median(times["no adapter"])
    for name, seen in times.items():
        print(
            f"{name:14} {median(seen):8.1f} tokens/s ({min(seen):.1f} to {max(seen):.1f})  {median(seen) / plain:.3f}"
        )
    count = args.rank * sum(
        place.width * len(place.modules) + sum(place.outs) for place in lora_places(spec, False, False)
    )
    print(f"{adapters.bytes:,} bytes of {ROWS} adapters, whose factors have {2 * count * ROWS:,} in bfloat16")
    print(f"{llm.engine.model.weight_bytes:,} bytes of the model")
    llm.close()


if __name__ == "__main__":
    main()
