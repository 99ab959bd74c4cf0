"""Layered prefill on a mixture of experts, beside chunks and whole prompts: what is read, and who waits.

    python bench/studies/layered.py [--layers 8 --experts 32 --active 4 --hidden 512 --prompt 2048 --decoding 4]
                                    [--groups 1 2 4 8 0] [--repeat 3] [--model DIR]

A random mixture of the shape of qwen3_moe is made, unless --model names one. --decoding requests decode; a prompt of
--prompt tokens arrives. For each schedule: expert loads from its arrival to its first token, beside the formula
L E + (N - 1) L d(B), where d(B) is what a step of the decodes alone loads in a layer; the longest time between two
tokens of the others, and the time to the prompt's first token. Raw logits of that token must be the same bits
under every number of groups. Schedules take turns; times want an idle machine or --cpu, loads do not.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from paceline import LLM, SamplingParams
from paceline.core.rows import Out
from paceline.engine import compute
from paceline.engine.loop import Engine
from paceline.schedule import policies

CHUNK = 512
"""Rows of a chunk of the schedule that layered is compared with."""


@dataclass
class Seen:
    """Of one schedule, a number a round."""

    loads: list[int] = field(default_factory=list)
    formula: list[float] = field(default_factory=list)
    gap: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)


def random_mixture(path: Path, args: argparse.Namespace) -> Path:
    """A checkpoint of random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "qwen3_moe", vocab_size=4096, hidden_size=args.hidden, num_hidden_layers=args.layers, num_attention_heads=8,
        num_key_value_heads=2, head_dim=64, num_experts=args.experts, num_experts_per_tok=args.active,
        moe_intermediate_size=args.hidden // 2, intermediate_size=args.hidden, max_position_embeddings=8192,
        decoder_sparse_step=1, mlp_only_layers=[], norm_topk_prob=True, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2:  # the token says most of a hidden state: routes are spread, as trained ones are
                weight.normal_(std=1.0 if "embed" in name else 0.5 * weight.shape[-1] ** -0.5)
    model.save_pretrained(path)
    return path


class Study:
    def __init__(self, model: Path, args: argparse.Namespace) -> None:
        self.args = args
        self.clock: Callable[[], float] = time.perf_counter
        threads = None
        if args.cpu:
            from bench.studies import cpu_clock

            self.clock, threads = cpu_clock.use(True, 1)
        self.llm = LLM(model, drafter="none", prefix_cache=False, row_budget=args.prompt + 64, max_requests=16,
                       blocks=(args.prompt + 2048) // 16 + 512, tbt_target_ms=0.0, threads=threads)  # fmt: skip
        self.engine: Engine = self.llm.engine
        self.rng = random.Random(1)
        self.vocab = self.engine.model.vocab_size
        self.logits: list[torch.Tensor] = []
        forward = compute.spans.forward

        def noted(*a: Any) -> Out:
            out = forward(*a)
            self.logits.append(out.logits)
            return out

        compute.spans.forward = noted  # type: ignore[assignment]

    def use(self, name: str) -> None:
        """`chunked`, `prefill_first`, or a number of groups."""
        config = self.engine.config
        if name.isdigit():
            made = policies.policy(
                "layered", "fcfs", config.row_budget, tbt_target_ms=0.0, layers=self.engine.layers,
                layer_groups=int(name) or None, forecast=self.engine.table.times,
            )  # fmt: skip
        else:
            rows = CHUNK if name == "chunked" else config.row_budget
            made = policies.policy(name, "fcfs", rows, tbt_target_ms=0.0)
        self.engine.desk.schedule = made

    def text(self, length: int, seed: int) -> list[int]:
        rng = random.Random(seed)
        return [rng.randrange(2, self.vocab) for _ in range(length)]

    def run(self, name: str, seen: Seen) -> None:
        self.use("chunked")
        engine, count = self.engine, self.args.decoding
        plain = SamplingParams(temperature=1.0, seed=1, max_tokens=400, ignore_eos=True).resolve({})
        others = [engine.submit(self.text(8, i), plain)[0] for i in range(count)]
        while any(len(r.output) < 4 for r in others):
            engine.step()
        model: Any = engine.model
        before, had = model.expert_loads, len(others[0].output)
        while len(others[0].output) < had + 48:
            engine.step()
        alone = (model.expert_loads - before) / (len(others[0].output) - had)
        self.use(name)
        self.logits.clear()
        [prompt] = engine.submit(self.text(self.args.prompt, 99), plain)
        before, began, passes = model.expert_loads, self.clock(), 0
        last = dict.fromkeys((r.id for r in others), began)
        gaps = [0.0]
        while not prompt.output:
            changed = engine.step()
            passes += 1
            now = self.clock()
            for r in changed:
                if r.id in last:
                    gaps.append(now - last[r.id])
                    last[r.id] = now
        gaps += [self.clock() - at for at in last.values()]
        layers, experts = engine.layers, self.args.experts
        seen.loads.append(model.expert_loads - before)
        seen.formula.append(passes * layers * experts if name == "chunked" else layers * experts + (passes - 1) * alone)
        seen.gap.append(max(gaps))
        seen.first.append(self.clock() - began)
        seen.logits.append(self.logits[-1][-1].clone())
        for r in (*others, prompt):
            engine.abort(r)
        engine.cache.check_integrity()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"layers": 8, "experts": 32, "active": 4, "hidden": 512, "prompt": 2048, "decoding": 4,
                        "repeat": 3}.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 2, 4, 8, 0], help="0: by step times")
    parser.add_argument("--model", type=Path)
    parser.add_argument(
        "--cpu", action="store_true", help="processor time of one thread (`python -m bench.studies.layered`)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as where:
        study = Study(args.model or random_mixture(Path(where), args), args)
        names = [*map(str, args.groups), "chunked", "prefill_first"]
        seen = {name: Seen() for name in names}
        for name in names:
            study.run(name, Seen())  # warm
        for _ in range(args.repeat):
            for name in names:
                study.run(name, seen[name])
    base = seen[names[0]].logits[0]
    print(study.engine.model.describe())
    print("| schedule | expert loads | formula | off, % | longest gap, ms | first token, ms | logits |")
    print("|---|--:|--:|--:|--:|--:|---|")
    for name, it in seen.items():
        off = 100 * (median(it.loads) / median(it.formula) - 1)
        same = "same bits" if all(torch.equal(each, base) for each in it.logits) else "differ"
        what = f"layered, {name} groups" if name.isdigit() else f"{name} {CHUNK if name == 'chunked' else ''}"
        spread = [f"{1e3 * median(x):.1f} ({1e3 * min(x):.1f}-{1e3 * max(x):.1f})" for x in (it.gap, it.first)]
        counts = f"{median(it.loads):.0f} | {median(it.formula):.0f} | {off:+.1f}"
        print(f"| {what} | {counts} | {' | '.join(spread)} | {same} |")


if __name__ == "__main__":
    main()
