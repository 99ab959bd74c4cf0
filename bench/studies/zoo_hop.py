"""Surrogates over a slow hop: does it help that layers near by guess what those far away will say (arXiv 2404.18322)?

    python bench/studies/zoo_hop.py BASE TUNE [--trained DIR] [--hops 0 20 100] [--tokens 48] [--nodes 4]

TUNE is a fine-tune of BASE that changes its top layers. These are in another process, behind a pipe whose answers take
a hop's time more: a pass goes up to them here, crosses with its hidden states, and comes back as logits. Next to it,
the base's own top layers are here: they stand in for those far away. The base, whose lower layers are the fine-tune's
very own matrices, drafts through its stand-in; the pass over the hop verifies, by replay of the drafted rows through
the true layers, and what it says is the text. So a hop is paid for several tokens, and the text is that without drafts.
DIR is what `paceline train surrogate --target TUNE` made: fewer layers, trained to say what the far ones say.
"""

import argparse
import multiprocessing
import time
from array import array
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch

from paceline import LLM, SamplingParams
from paceline.core.program import WHOLE, Program
from paceline.core.rows import Out, Rows
from paceline.model.load import load_model

PROMPTS = [
    "def quicksort(items):\n", "The history of the Roman empire", "To make a good cup of coffee, you", "Dear Sir,",
]  # fmt: skip
BLOCKS = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("tune", type=Path)
    parser.add_argument("--trained", type=Path)
    parser.add_argument("--hops", type=float, nargs="+", default=[0, 20, 100])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    wish = SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True)
    with LLM(args.tune, drafter="none", threads=args.threads, blocks=BLOCKS) as llm:
        want = [out.token_ids for out in llm.generate(PROMPTS, wish, progress=False)]
    first = first_changed(args.base, args.tune)
    print(f"the layers from {first} on are far away", flush=True)
    for hop in args.hops:
        took = {}
        for word, options in (
            ("none", {"drafter": "none"}),
            ("surrogate", {"draft": args.base, "drafter": "model", "nodes": args.nodes}),
            ("trained surrogate", {"draft": args.trained, "drafter": "model", "nodes": args.nodes}),
        ):
            if word.startswith("trained") and args.trained is None:
                continue
            with LLM(args.tune, threads=args.threads, blocks=BLOCKS, **options) as llm:
                far = Far(llm, args.tune, hop / 1e3, args.threads, first)
                llm.generate(PROMPTS[:1], replace(wish, max_tokens=4), progress=False)
                seconds, same, passes, tau = list[float](), True, far.passes, []
                for prompt, text in zip(PROMPTS, want):
                    began = time.monotonic()
                    [out] = llm.generate([prompt], wish, progress=False)
                    seconds.append(time.monotonic() - began)
                    same &= out.token_ids == text
                    tau.append(args.tokens / max(1, out.stats.passes))
                took[word] = median(seconds)
                print(f"hop {hop:g} ms, {word}: {median(seconds):.2f} s for {args.tokens} tokens "
                      f"({min(seconds):.2f} to {max(seconds):.2f}), {(far.passes - passes) / len(PROMPTS):.1f} "
                      f"crossings a text, tau {median(tau):.2f}; texts equal: {same}", flush=True)  # fmt: skip
                far.end()
        for word in [*took][1:]:
            print(f"hop {hop:g} ms: {took['none'] / took[word]:.2f} times as fast with a {word}", flush=True)


class Far:
    """The top layers of an engine's model, in another process."""

    def __init__(self, llm: LLM, path: Path, hop_s: float, threads: int, first: int) -> None:
        model: Any = llm.engine.model
        self.model, self.near, self.move_near = model, model.forward, model.move
        self.first = first
        self.passes = 0
        self.pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        block = llm.engine.config.block_size
        self.process = context.Process(target=top, args=(theirs, path, hop_s, threads, llm.engine.config.blocks, block))
        self.process.start()
        assert self.pipe.recv() == "ready"
        model.forward, model.move = self.forward, self.move
        model.abilities = model.abilities - {"run", "chain"}

    def forward(self, rows: Rows) -> Out:
        """As `Model.forward`, for whole passes without taps."""
        assert rows.program is WHOLE and not rows.taps
        below: Out = self.near(replace(rows, program=Program(0, self.first, head=False)))
        assert below.leave is not None
        self.passes += 1
        self.pipe.send(("forward", self.first, rows.numbers.tobytes(), rows.width, rows.segments, below.leave))
        return Out(self.pipe.recv())

    def move(self, source: list[int], target: list[int]) -> None:
        """K/V of accepted rows, at both ends; nobody waits for the far one."""
        self.move_near(source, target)
        self.pipe.send(("move", source, target))

    def end(self) -> None:
        self.pipe.send(("end",))
        self.process.join()


def first_changed(base: Path, tune: Path) -> int:
    """The first of the top layers that are not the base's."""
    sections = [load_model(path).weights.sections[1:-1] for path in (base, tune)]
    return next(layer for layer, (mine, its) in enumerate(zip(*sections, strict=True)) if mine != its)


def top(pipe: Connection, path: Path, hop_s: float, threads: int, blocks: int, block: int) -> None:
    """The other process: the layers from a hop away."""
    torch.set_num_threads(threads)
    decoder = load_model(path)
    decoder.allocate(blocks, block)
    pipe.send("ready")
    while True:
        word, *rest = pipe.recv()
        if word == "end":
            return
        if word == "move":
            decoder.move(*rest)
            continue
        first, numbers, width, segments, hidden = rest
        flat = array("q")
        flat.frombytes(numbers)
        out = decoder.forward(Rows(flat, width, segments, "cpu", Program(first), hidden))
        time.sleep(hop_s)
        pipe.send(out.logits)


if __name__ == "__main__":
    main()
