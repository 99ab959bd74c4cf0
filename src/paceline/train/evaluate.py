"""How good a drafter is on held-out answers of the target: simulated, and measured in the engine (`Scores`,
`Measurement`).

Simulated tau walks each answer as greedy decoding would: a round at a row keeps the drafted tokens along the true text
as long as they are in its tree, and the next round begins behind the target's own token. It equals the engine's where
the trees are the same: that is the best single test of a drafter's training against its serving.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.draft.grow import HEAD_TREE_NODES, RankChances, best
from paceline.draft.sequoia import Shape
from paceline.engine.options import Dtype
from paceline.train.data import Sample
from paceline.train.features import FeatureSource
from paceline.train.method import Method

TOLD_RANKS = 10
"""Number of ranks whose chances are reported."""


@dataclass(frozen=True)
class Scores:
    """conditional[d]: chance that the first guess at depth d is right where those above are. accuracy[d][r]: the chance
    of rank r there, the true tokens above. tau: tokens a pass, simulated, with a chain of all depths."""

    conditional: tuple[float, ...]
    accuracy: tuple[tuple[float, ...], ...]
    tau: float
    tree: float
    """Tokens per pass, simulated, with trees."""
    rounds: int


def evaluate(
    method: Method, source: FeatureSource, names: Sequence[int], shape: Shape | None = None, size: int = 8
) -> Scores | None:
    """Scores over the texts with these numbers; None for a method without ranks. `shape`: shape of the trees; None: the
    best one for the accuracies that are found."""
    method.module.eval()
    tables: list[list[list[int]]] = []
    counts: torch.Tensor | None = None
    for start in range(0, len(names), size):
        mine = list(names[start : start + size])
        ranks = method.ranks(source.batch(mine))
        if ranks is None:
            return None
        for row, name in zip(ranks, mine):
            sample = source.samples[name]
            table = row[sample.start - 1 : len(sample.ids)]
            if counts is None:
                counts = torch.zeros(table.shape[-1], TOLD_RANKS + 1)
            for depth in range(table.shape[-1]):
                seen = table[:, depth]
                counts[depth] += torch.bincount(seen[seen >= 0].clamp(max=TOLD_RANKS), minlength=TOLD_RANKS + 1)
            tables.append(table.tolist())
    method.module.train()
    assert counts is not None
    rates = counts[:, :TOLD_RANKS] / counts.sum(-1, keepdim=True).clamp(min=1)
    accuracy = tuple(tuple(round(x, 4) for x in row) for row in rates.tolist())
    tau, rounds, conditional = walked(tables, chain(rates.shape[0]))
    tree, _, _ = walked(tables, shape or best(HEAD_TREE_NODES, RankChances(accuracy, len(accuracy)).rates))
    return Scores(conditional, accuracy, tau, tree, rounds)


def chain(depth: int) -> Shape:
    """The tree with one node at each depth."""
    return (chain(depth - 1),) if depth else ()


def walked(tables: Sequence[Sequence[Sequence[int]]], shape: Shape) -> tuple[float, int, tuple[float, ...]]:
    """(tau, rounds, conditional accuracy of the first guesses by depth) of greedy decoding with trees of this shape:
    `tables[i][t]` has the ranks of a round at row t, whose root is the token behind it. The answer's first token comes
    of the prompt's own pass, and is not counted."""
    tokens = rounds = 0
    depths = max((len(table[0]) for table in tables if table), default=0)
    seen, right = [0] * depths, [0] * depths
    for table in tables:
        row, left = 0, len(table) - 2  # tokens behind the root
        while left > 0:
            kept, below, first = 0, shape, True
            for depth, rank in enumerate(table[row][: left - 1]):
                if rank < 0:
                    break
                if first:
                    seen[depth], right[depth], first = seen[depth] + 1, right[depth] + (rank == 0), rank == 0
                if rank >= len(below):
                    break
                below, kept = below[rank], kept + 1
            tokens, rounds, row, left = tokens + kept + 1, rounds + 1, row + kept + 1, left - kept - 1
    return tokens / max(rounds, 1), rounds, tuple(r / max(s, 1) for r, s in zip(right, seen))


@dataclass(frozen=True)
class Measurement:
    """What the engine made of it: tokens a pass of each drafter, over the same prompts; are the texts plain
    decoding's?"""

    tau: dict[str, float]
    same: dict[str, bool]
    each: dict[str, list[tuple[int, int]]]
    """Drafter -> per prompt, the tokens after the first and the passes that made them."""
    drafted: dict[str, int]
    """Drafter -> tokens that it drafted, all prompts together."""

    def interval(self, drafter: str, draws: int = 1000) -> tuple[float, float]:
        """Confidence interval (95 %) of tau, by resampling the prompts."""
        pairs = torch.tensor(self.each[drafter], dtype=torch.float64)
        stream = torch.Generator().manual_seed(0)
        sums = pairs[torch.randint(len(pairs), (draws, len(pairs)), generator=stream)].sum(1)
        low, high = (sums[:, 0] / sums[:, 1].clamp(min=1)).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
        return float(low), float(high)


def engine_tau(
    target: str | Path, draft: str | Path | None, samples: Sequence[Sample], drafters: Sequence[str], nodes: int | None,
    answer: int = 160, dtype: Dtype = "bfloat16",
) -> Measurement:  # fmt: skip
    """Greedy answers to the samples' prompts, one request at a time, by each drafter. Tau is over the tokens behind the
    first, which the prompt's pass brings."""
    from paceline import LLM, SamplingParams

    tau, same, plain = dict[str, float](), dict[str, bool](), None
    each, drafted = dict[str, list[tuple[int, int]]](), dict[str, int]()
    with LLM(target, draft, nodes=nodes, dtype=dtype, length="fixed", drafter=drafters[0], max_requests=1) as llm:
        for drafter in ("none", *drafters):
            params = [
                SamplingParams(temperature=0.0, seed=0, max_tokens=min(answer, len(s.ids) - s.start), drafter=drafter)
                for s in samples
            ]
            outputs = llm.generate([list(s.ids[: s.start]) for s in samples], params, progress=False)
            texts = [output.token_ids for output in outputs]
            drafted[drafter] = sum(output.stats.drafted for output in outputs)
            plain = texts if plain is None else plain
            each[drafter] = [(len(text) - 1, max(output.stats.passes - 1, 0)) for text, output in zip(texts, outputs)]
            tokens, passes = (sum(column) for column in zip(*each[drafter]))
            tau[drafter] = tokens / max(passes, 1)
            same[drafter] = texts == plain
    return Measurement(tau, same, each, drafted)
