"""The model drafts for itself: counts, not seconds, so that the machine may be busy.

    python bench/studies/self_speculation.py tau --model M --prompts P.jsonl          tau and layers per token
    python bench/studies/self_speculation.py skips --model M --prompts P.jsonl        swift's set and 500 random ones
    python bench/studies/self_speculation.py exits --model M --prompts P.jsonl        del and the best fixed pair
    python bench/studies/self_speculation.py groups --model M --draft D --prompts P.jsonl   easyspec, N = 1 .. 5

Requests are greedy. `skips` and `exits` replay texts that the target has written: what a shortened model would have
drawn at each place is read from passes over them. Speed, on an idle machine:

    paceline bench --model M --prompts P.jsonl --methods none,ngram,early_exit,del,swift,auto
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline import LLM, SamplingParams
from paceline.bench.prompts import encode, read_prompts
from paceline.core.program import exits
from paceline.core.rows import Out, Rows, RowsBuilder
from paceline.draft.dynamic_exit import Shadows, best
from paceline.draft.early_exit import EXITS
from paceline.draft.easyspec import EasySpec
from paceline.draft.layer_search import Choice, Search, skipping, spread
from paceline.draft.model import ModelDrafter
from paceline.model import spans

WINDOW = 32
LONGEST = 17


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    old = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, old)


class Counter:
    """Layers of all passes of a model, half a layer each for attention and feed-forward part."""

    def __init__(self, model: Any) -> None:
        self.model, self.layers, self.whole = model, 0.0, len(model.spec.layers)
        self.forward: Callable[[Rows], Out] = model.forward

    def __call__(self, rows: Rows) -> Out:
        p = rows.program
        last = self.whole if p.last is None else p.last
        left_out = sum(p.first <= layer < last for layer, _ in p.skip)
        self.layers += last - p.first - left_out / 2
        return self.forward(rows)


def ask(llm: LLM, args: argparse.Namespace, drafter: str) -> list[Any]:
    """One request after the other."""
    params = SamplingParams(temperature=0, max_tokens=args.tokens, drafter=drafter, ignore_eos=True)
    prompts = [encode(llm.text, prompt) for prompt in read_prompts(args.prompts, args.limit)]
    return [llm.generate([prompt], [params], progress=False)[0] for prompt in prompts]


def tau(args: argparse.Namespace) -> None:
    with loaded(args) as llm:
        counter = Counter(llm.engine.model)
        llm.engine.model.forward = counter  # type: ignore[method-assign]
        plain: list[list[int]] = []
        for drafter in args.drafters.split(","):
            counter.layers = 0.0
            answers = ask(llm, args, drafter)
            tokens, passes = sum(len(a.token_ids) for a in answers), sum(a.stats.passes for a in answers)
            drafted, kept = sum(a.stats.drafted for a in answers), sum(a.stats.accepted for a in answers)
            texts = [a.token_ids for a in answers]
            plain = plain or texts
            layers = counter.layers / tokens if drafter != "none" else float(counter.whole)  # its runs are not seen
            layers = passes * counter.whole / tokens if drafter == "ngram" else layers
            print(
                f"{drafter:11} tau {tokens / passes:5.2f}  accepted {kept / max(1, drafted):4.0%}  layers per token "
                f"{layers:6.2f} of {counter.whole}  same texts {sum(map(list.__eq__, texts, plain))}/{len(texts)}"
            )
        assert not llm.engine.drafters.errors


@contextmanager
def loaded(args: argparse.Namespace) -> Iterator[LLM]:
    options: dict[str, Any] = {"dtype": args.dtype, "max_requests": 4, "memory": args.memory, "prefix_cache": False}
    with LLM(args.model, getattr(args, "draft", None), **options) as llm:
        yield llm


@dataclass
class Texts:
    """What the target wrote, and its K/V in blocks of an engine that does nothing else any more."""

    llm: LLM
    tokens: list[list[int]]
    prompts: list[int]
    """Tokens of each that are prompt."""

    @classmethod
    def written(cls, llm: LLM, args: argparse.Namespace) -> "Texts":
        answers = ask(llm, args, "none")
        prompts = [encode(llm.text, prompt) for prompt in read_prompts(args.prompts, args.limit)]
        return cls(llm, [[*p, *a.token_ids] for p, a in zip(prompts, answers)], list(map(len, prompts)))

    @property
    def size(self) -> int:
        return self.llm.engine.config.block_size

    def table(self, number: int) -> list[int]:
        """Blocks of a text, and as many for the rows of a window."""
        each = -(-max(map(len, self.tokens)) // self.size) + WINDOW // self.size + 2
        return [*range(number * each, (number + 1) * each)]

    def forward(self, rows: Rows) -> Out:
        with torch.inference_mode():
            return self.llm.engine.model.forward(rows)

    def whole(self, number: int, taps: tuple[str, ...] = ()) -> Out:
        """A pass over a text, which leaves its K/V."""
        builder, table, text = RowsBuilder(), self.table(number), self.tokens[number]
        slots = [table[p // self.size] * self.size + p % self.size for p in range(len(text))]
        builder.add(text, slots, table, 0, want=[])
        return self.forward(builder.build(self.llm.engine.model.device, taps))

    def matchness(self, choice: Choice, windows: Sequence[tuple[int, int]]) -> float:
        """Share of the tokens of these windows (text, end) that the shortened model draws."""
        builder, labels = RowsBuilder(), list[int]()
        for number, end in windows:
            start, table, text = (end - WINDOW) // self.size * self.size, self.table(number), self.tokens[number]
            spare = table[-(WINDOW // self.size + 2) :]
            mine = [*table[: start // self.size], *spare]
            slots = [mine[p // self.size] * self.size + p % self.size for p in range(start, end)]
            builder.add(text[start:end], slots, mine, start, want=[*range(end - start)])
            labels += text[start + 1 : end + 1]
        out = self.forward(builder.build(self.llm.engine.model.device, program=skipping(choice)))
        return float(np.mean([int(token == label) for token, label in zip(out.logits.argmax(-1).tolist(), labels)]))


def skips(args: argparse.Namespace) -> None:
    with loaded(args) as llm:
        texts = Texts.written(llm, args)
        for number in range(len(texts.tokens)):
            texts.whole(number)
        layers = len(llm.engine.model.spec.layers)  # type: ignore[attr-defined]
        width = 2 * (layers - 2)
        windows = [(n, len(t) - 1) for n, t in enumerate(texts.tokens) if len(t) - 1 - WINDOW > texts.prompts[n]]
        for ratio in map(float, args.ratios.split(",")):
            count = int(width * ratio)
            stream, scores = np.random.default_rng(0), list[float]()
            for _ in range(args.sets):
                pick = {*stream.permutation(width)[:count].tolist()}
                scores.append(texts.matchness(tuple(i in pick for i in range(width)), windows))
            search = Search(spread(width, count), count, seed=1)
            first = texts.matchness(search.best, windows)
            ended = ""
            while search.tried < args.sets:
                if search.over and not ended:
                    ended = f" (it would have ended after {search.tried}, at {search.score:.3f})"
                choice = search.suggest()
                search.register(choice, texts.matchness(choice, windows))
            print(
                f"{count} of {width} sub-layers left out ({ratio:.2f}): every second layer {first:.3f}; {args.sets} "
                f"random sets: median {np.median(scores):.3f}, best {max(scores):.3f}; swift's, after {search.tried} "
                f"suggestions: {search.score:.3f}{ended}"
            )


@dataclass
class Record:
    """Record of one text: at each place of its output, what each exit would have drafted."""

    right: Tensor
    """[E, N] 1.0 where it is the target's token"""


def recorded(texts: Texts, number: int, layers: Sequence[int], whole: int) -> Record:
    out = texts.whole(number, tuple(f"input:{layer}" for layer in layers))
    start, text = texts.prompts[number] - 1, texts.tokens[number]
    right = list[Tensor]()
    for layer in layers:
        states = out.taps[f"input:{layer}"][start : len(text) - 1]
        with torch.inference_mode():
            token = spans.head(texts.llm.engine.model, states, whole).argmax(-1)
        right.append((token == torch.tensor(text[start + 1 :])).to(torch.float64))
    return Record(torch.stack(right))


Rule = Callable[[Shadows], tuple[int, int]]
"""The exit (its number) and the length of the draft, by what was seen."""


def replayed(record: Record, layers: Sequence[int], whole: int, rule: Rule) -> tuple[int, int]:
    """Tokens and layers of a text under a rule. Behind a wrong token a draft goes on as behind the right one."""
    shadows, at, ran, count = Shadows.none(len(layers)), 0, 0, record.right.shape[1]
    while at < count:
        exit, most = rule(shadows)
        length = min(most, count - at - 1)
        drafted = record.right[exit, at : at + length]
        kept = int(drafted.cumprod(0).sum())
        ran += whole + length * layers[exit]
        new = slice(at, at + kept + 1)
        shadows.add(record.right[:, new])
        at += kept + 1
    return count, ran


def per_layer(records: Sequence[Record], layers: Sequence[int], whole: int, rule: Rule) -> float:
    pairs = [replayed(record, layers, whole, rule) for record in records]
    return whole * sum(tokens for tokens, _ in pairs) / sum(ran for _, ran in pairs)


def whole_rule(layers: Sequence[int], whole: int) -> Rule:
    return lambda shadows: best(shadows.alpha(), layers, whole)


def without_length(layers: Sequence[int], whole: int, length: int) -> Rule:
    """The exit is chosen, every draft is of one length."""

    def rule(shadows: Shadows) -> tuple[int, int]:
        return best(shadows.alpha(), layers, whole)[0], length

    return rule


def without_layer(layers: Sequence[int], whole: int, exit: int) -> Rule:
    """The exit is fixed, the length is chosen."""

    def rule(shadows: Shadows) -> tuple[int, int]:
        return exit, best(shadows.alpha()[exit : exit + 1], layers[exit : exit + 1], whole)[1]

    return rule


def fixed(exit: int, length: int) -> Rule:
    return lambda shadows: (exit, length)


def exit_study(args: argparse.Namespace) -> None:
    with loaded(args) as llm:
        texts, whole = Texts.written(llm, args), len(llm.engine.model.spec.layers)  # type: ignore[attr-defined]
        layers = exits(whole, EXITS)
        records = [recorded(texts, number, layers, whole) for number in range(len(texts.tokens))]
        print("share of right shadow tokens:", {n: round(float(torch.cat([r.right[e] for r in records]).mean()), 3)
              for e, n in enumerate(layers)})  # fmt: skip
        pairs = {(n, g): per_layer(records, layers, whole, fixed(e, g))
                 for e, n in enumerate(layers) for g in range(LONGEST + 1)}  # fmt: skip
        top, middle = (
            max(pairs, key=pairs.__getitem__),
            min(range(len(layers)), key=lambda e: abs(layers[e] - whole / 2)),
        )
        print(f"best fixed pair: {top[1]} tokens at layer {top[0]}, tokens per {whole} layers: {pairs[top]:.3f}")
        for name, rule in (
            ("del", whole_rule(layers, whole)),
            ("without length (4)", without_length(layers, whole, 4)),
            (f"without layer ({layers[middle]})", without_layer(layers, whole, middle)),
        ):
            value = per_layer(records, layers, whole, rule)
            print(f"{name:20} {value:.3f}, {value / pairs[top] - 1:+.1%} of the best fixed pair")


def groups(args: argparse.Namespace) -> None:
    with loaded(args) as llm:
        first = 0.0
        for calibrated in (True, False):
            for size in map(int, args.sizes.split(",")):
                learn = EasySpec.learn if calibrated else ModelDrafter.learn
                with patched(EasySpec, "size", size), patched(EasySpec, "learn", learn):
                    llm.engine.drafters.restart()
                    answers = ask(llm, args, "easyspec")
                drafted, kept = sum(a.stats.drafted for a in answers), sum(a.stats.accepted for a in answers)
                tokens, passes = sum(len(a.token_ids) for a in answers), sum(a.stats.passes for a in answers)
                first = first or kept / drafted
                print(
                    f"N = {size}, {'with' if calibrated else 'without'} calibration: accepted {kept / drafted:.3f} "
                    f"({kept / drafted / first:.3f} of N = 1), tau {tokens / passes:.2f}", flush=True,
                )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("tau", "skips", "exits", "groups"))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=8, help="prompts")
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--sets", type=int, default=500, help="random sets of `skips`")
    parser.add_argument("--ratios", default="0.25,0.45", help="shares of sub-layers that `skips` leaves out")
    parser.add_argument("--sizes", default="1,2,3,4,5", help="N of `groups`")
    parser.add_argument("--drafters", default="none,ngram,early_exit,del,swift")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--memory", default="8GB", help="of weights and K/V")
    args = parser.parse_args()
    {"tau": tau, "skips": skips, "exits": exit_study, "groups": groups}[args.study](args)


if __name__ == "__main__":
    main()
