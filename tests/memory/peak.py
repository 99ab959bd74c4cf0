"""A process that builds an engine under a budget and drives it hard; it prints what it took, in JSON.

    python -m tests.memory.peak '{"memory": 100000000, ...}' SEED

The base is what the process has once everything is imported and nothing is loaded; `loaded` and `peak` are the most
above it, by the system's own high-water mark.
"""

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

SMALL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16", "LRU_CACHE_CAPACITY": "16"}


def resident(name: str) -> int:
    """VmRSS or VmHWM, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def warm(options: dict[str, Any]) -> None:
    """Import what a first request would, and start the threads."""
    import rich.progress
    import torch

    import paceline.engine.loop
    import paceline.model.load
    from paceline.draft import DRAFTERS
    from paceline.engine.pair import DEMO
    from paceline.engine.text import Text
    from paceline.model.checkpoint import read_config
    from paceline.verify import VERIFIERS

    assert rich.progress and paceline.engine.loop
    for registry in (DRAFTERS, VERIFIERS):
        for name, _ in registry.items():
            registry.get(name)
    Text(DEMO / "target")
    read_config(DEMO / "target")
    paceline.model.load.form(options.get("dtype", "bfloat16"), options.get("quantize"), "cpu")
    torch.rand(512, 512).log_softmax(-1).sort()


def wishes(llm: Any, rng: random.Random, count: int) -> tuple[list[list[int]], list[Any]]:
    """Prompts and parameters that the pool can hold, of every kind that needs memory."""
    from paceline import SamplingParams
    from paceline.core.registry import refusal
    from paceline.draft import DRAFTERS
    from paceline.verify import VERIFIERS

    config, vocab = llm.engine.config, llm.engine.model.vocab_size
    room = min(config.blocks * config.block_size, llm.engine.model.max_len)
    pairs = [
        (d, v) for d, card in llm.engine.drafters.cards.items() for v, rule in VERIFIERS.items()
        if v != "typical" and not refusal(d, DRAFTERS.card(d), v, rule, llm.engine.drafters.have)
    ]  # fmt: skip
    prompts, params = [], []
    for seed in range(count):
        most = min(room - 1, rng.choice([8, 60, 16 * config.row_budget]))  # not too many passes
        prompt = rng.randint(1, most)
        drafter, verifier = rng.choice(pairs)
        prompts.append([rng.randrange(5, vocab) for _ in range(prompt)])
        params.append(
            SamplingParams(
                temperature=rng.choice([0.0, 0.7, 1.0]), top_k=rng.choice([0, 0, 20]), top_p=rng.choice([1.0, 0.95]),
                min_p=rng.choice([0.0, 0.01]), frequency_penalty=rng.choice([0.0, 0.3]), seed=seed, ignore_eos=True,
                logprobs=rng.choice([None, 3]), prompt_logprobs=rng.choice([None, None, 2]), drafter=drafter,
                verifier=verifier, max_nodes=rng.choice([None, 16, 64]), 
                max_tokens=min(room - prompt, rng.randint(1, 40)),
            )
        )  # fmt: skip
    return prompts, params


def fill(llm: Any, rng: random.Random) -> None:
    """Every block of the cache once, where that does not take too many passes; prompts judged in every row."""
    from paceline import SamplingParams

    config, vocab = llm.engine.config, llm.engine.model.vocab_size
    slots = config.blocks * config.block_size
    if slots > 1000 * config.row_budget:
        return
    length = min(slots, llm.engine.model.max_len) - 1
    prompts = [[rng.randrange(5, vocab) for _ in range(length)] for _ in range(slots // length + 1)]
    wish = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=3, drafter=llm.engine.config.drafter)
    llm.generate(prompts, wish, progress=False)


def trees(llm: Any, rng: random.Random) -> None:
    """As many wide trees at once as the rows allow, whose distributions are kept."""
    from paceline import SamplingParams

    config, vocab = llm.engine.config, llm.engine.model.vocab_size
    most = min(6, config.blocks * config.block_size - 2)
    wish = SamplingParams(
        temperature=1.0, top_p=0.98, max_tokens=most, drafter="rsd_s", verifier="rrs", max_nodes=64, logprobs=5, seed=3,
        ignore_eos=True,
    )  # fmt: skip
    llm.generate([[rng.randrange(5, vocab)] for _ in range(config.max_requests)], wish, progress=False)


def main() -> None:
    options, seed, count = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    os.environ.update(SMALL_CACHES)
    from paceline import LLM
    from paceline.core.errors import CapacityError

    warm(options)
    forget_peak()
    base = resident("VmRSS")
    try:
        llm = LLM(**options)
    except CapacityError as error:
        print(json.dumps({"refused": str(error), "taken": resident("VmHWM") - base}))
        return
    loaded = resident("VmHWM") - base
    rng = random.Random(seed)
    fill(llm, rng)
    trees(llm, rng)
    prompts, params = wishes(llm, rng, count)
    texts = [o.token_ids for o in llm.generate(prompts, params, progress=False)]
    config = llm.engine.config
    shape = {"blocks": config.blocks, "rows": config.row_budget, "requests": config.max_requests}
    errors = [repr(e) for e in llm.engine.drafters.errors]
    stats = {"preempted": llm.engine.desk.totals.preemptions, "errors": errors}
    print(json.dumps({"loaded": loaded, "peak": resident("VmHWM") - base, "texts": texts, **shape, **stats}))


if __name__ == "__main__":
    main()
