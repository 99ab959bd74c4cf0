"""How much memory a tree needs, and what it brings: tokens per second over the transient memory of drafting.

    python bench/studies/memory.py --model M --draft D --prompts gsm8k_test.jsonl

For trees of T nodes and B requests at once. Transient is what a step takes beyond a plain one of the same requests: the
draft's K/V, the slots of T nodes a request, logits and scratch of the further rows, by the sums of memory/sums.py. The
draft's weights are not: they stay. Rounds are interleaved; tokens per second are medians. Prints whether some tree has
at least 90 % of the best throughput at half of its transient memory (after SpecMemo), and draws the frontier.
"""

import argparse
import json
from pathlib import Path
from statistics import median
from time import perf_counter

from paceline import LLM, SamplingParams
from paceline.bench.prompts import encode, read_prompts
from paceline.bench.svg import CHART_BOTTOM as FOOT
from paceline.bench.svg import (
    CHART_LEFT,
    CHART_RIGHT,
    CHART_TOP,
    CHART_WIDTH,
    COLOURS,
    HEIGHT,
    SVG_STYLE,
    stroke,
    text,
    tick,
)
from paceline.core.errors import InputError
from paceline.engine.budget import memory_of
from paceline.engine.options import Options
from paceline.memory.sums import BudgetShape, MemoryModel

SIZES = (0, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16, 32, 64)
BATCHES = (1, 4)
Point = tuple[int, float, float]
"""Nodes, transient bytes, tokens per second."""


def transient(memory: MemoryModel, batch: int, nodes: int, length: int) -> int:
    """Bytes of a step with `nodes` for each of `batch` requests of `length` tokens, beyond one that drafts nothing."""

    def step(drafted: int) -> int:
        blocks = batch * -(-(length + drafted) // memory.block_size)
        parts = memory.parts(BudgetShape(blocks, batch * (1 + drafted), batch * drafted, batch))
        plain = 0 if drafted or memory.draft is None else memory.draft.kv(blocks, memory.block_size)
        return parts["kv"] + parts["logits"] + parts["scratch"] - plain

    return step(nodes) - step(0) if nodes else 0


def throughput(llm: LLM, prompts: list[list[int]], batch: int, nodes: int, drafter: str, tokens: int) -> float:
    """Tokens per second of all prompts, `batch` at a time."""
    wish = SamplingParams(
        temperature=0, max_tokens=tokens, ignore_eos=True, max_nodes=nodes, drafter=drafter if nodes else "none"
    )
    made, started = 0, perf_counter()
    for start in range(0, len(prompts), batch):
        made += sum(len(o.token_ids) for o in llm.generate(prompts[start : start + batch], wish, progress=False))
    return made / (perf_counter() - started)


def saved(points: list[Point]) -> tuple[Point, Point, float]:
    """The best point, the least one with 90 % of its throughput, and that one's share of its memory."""
    best = max(points, key=lambda p: p[2])
    enough = min((p for p in points if p[2] >= 0.9 * best[2]), key=lambda p: p[1])
    return best, enough, enough[1] / best[1] if best[1] else 1.0


def chart(curves: dict[str, list[Point]], title: str) -> str:
    """One line for each batch: tokens per second over MiB, a point for each tree."""
    points = [p for curve in curves.values() for p in curve]
    most, top = max(p[1] for p in points) / 2**20, max(p[2] for p in points)
    across, up = tick(most), tick(top)
    width, height = (CHART_WIDTH - CHART_LEFT - CHART_RIGHT) / (most * 1.05), (HEIGHT - CHART_TOP - FOOT) / (top * 1.1)
    body = [f'<rect class="ground" width="{CHART_WIDTH}" height="{HEIGHT}"/>', text(CHART_LEFT, 24, title, "title")]
    for i in range(int(top * 1.1 / up) + 1):
        y = HEIGHT - FOOT - i * up * height
        body += [stroke("grid" if i else "axis", CHART_LEFT, y, CHART_WIDTH - CHART_RIGHT, y)]
        body += [text(CHART_LEFT - 8, y + 4, f"{i * up:g}", anchor="end")]
    for i in range(int(most * 1.05 / across) + 1):
        body.append(text(CHART_LEFT + i * across * width, HEIGHT - FOOT + 18, f"{i * across:g}", anchor="middle"))
    for n, (colour, (name, curve)) in enumerate(zip(COLOURS, curves.items(), strict=False)):
        places = [(CHART_LEFT + b / 2**20 * width, HEIGHT - FOOT - speed * height, nodes) for nodes, b, speed in curve]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
        body.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{line}"/>')
        for x, y, nodes in places:
            body.append(f'<circle fill="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
            body.append(text(x, y - 9, str(nodes), anchor="middle"))
        body.append(
            f'<rect fill="{colour}" x="{CHART_WIDTH - CHART_RIGHT + 20}" y="{CHART_TOP + 22 * n}" '
            'width="13" height="13"/>'
        )
        body.append(text(CHART_WIDTH - CHART_RIGHT + 42, CHART_TOP + 22 * n + 11, name))
    body.append(
        text(
            (CHART_LEFT + CHART_WIDTH - CHART_RIGHT) / 2,
            HEIGHT - 14,
            "transient memory of drafting, MiB",
            anchor="middle",
        )
    )
    turned = text(0, 0, "tokens per second", anchor="middle")
    body.append(f'<g transform="translate(18 {(CHART_TOP + HEIGHT - FOOT) / 2:.1f}) rotate(-90)">{turned}</g>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {CHART_WIDTH} {HEIGHT}" role="img">'
    return "\n".join([head, f"<title>{title}</title><style>{SVG_STYLE}</style>", *body, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--draft", required=True, type=Path)
    parser.add_argument("--prompts", required=True, type=Path)
    parser.add_argument("--drafter", default="dyspec")
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--svg", type=Path, default=Path("docs/img/memory.svg"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.num_prompts % max(BATCHES):
        raise InputError(f"--num-prompts is {args.num_prompts}, but batches of {max(BATCHES)} need a multiple of it.")
    options = Options(args.model, args.draft, drafter=args.drafter, prefix_cache=False)
    memory = memory_of(options, args.model, args.draft)
    llm = LLM(args.model, args.draft, args.drafter, prefix_cache=False)
    prompts = [encode(llm.text, prompt) for prompt in read_prompts(args.prompts, args.num_prompts)]
    length = max(map(len, prompts)) + args.max_tokens
    speeds: dict[tuple[int, int], list[float]] = {(batch, nodes): [] for batch in BATCHES for nodes in SIZES}
    for batch in BATCHES:  # buffers, kernels and measured step times
        throughput(llm, prompts, batch, 8, args.drafter, args.max_tokens)
    for _ in range(args.rounds):
        for (batch, nodes), measured in speeds.items():
            measured.append(throughput(llm, prompts, batch, nodes, args.drafter, args.max_tokens))
    curves: dict[str, list[Point]] = {}
    for batch in BATCHES:
        curve = [(n, float(transient(memory, batch, n, length)), median(speeds[batch, n])) for n in SIZES]
        curves[f"{batch} at once"] = curve
        print(f"\n{batch} at once   T   transient MiB   tokens/s   (spread)")
        for nodes, taken, speed in curve:
            low, high = min(speeds[batch, nodes]), max(speeds[batch, nodes])
            print(f"{nodes:14} {taken / 2**20:15.2f} {speed:10.1f}   ({low:.1f} - {high:.1f})")
        best, enough, share = saved(curve)
        verdict = "yes" if share <= 0.5 else "no"
        print(f"best: T = {best[0]}; T = {enough[0]} has {enough[2] / best[2]:.0%} of it at {share:.0%} of its memory: "
              f"90 % at half the memory, {verdict}")  # fmt: skip
    args.svg.write_text(chart(curves, f"Speed over memory, {args.drafter}, trees of 0 to {max(SIZES)} nodes"))
    if args.json:
        args.json.write_text(json.dumps(curves, indent=1))


if __name__ == "__main__":
    main()
