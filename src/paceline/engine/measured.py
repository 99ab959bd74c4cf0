"""What a step did, as the table of costs counts it. The engine and the simulator ask the same."""

from collections.abc import Callable, Sequence
from itertools import zip_longest

from paceline.core.plan import Plan, Work
from paceline.core.result import Result
from paceline.plan.cost import Drafting


def measured(
    plan: Plan, bases: Sequence[int], results: Sequence[Result], chain: Callable[[str], bool]
) -> tuple[Work, list[Drafting]]:
    """`bases`: rows of each item that were committed before; the passes of a step count as alike. `chain(drafter)`:
    does it draft chains?"""
    passes = max([1, *(len(result.rounds) for result in results)])
    rows, logits = list[float](), list[float]()
    by: dict[str, list[Result]] = {}
    windows: dict[str, int] = {}
    for item, result in zip(plan.items, results):
        judged = result.probes + sum(1 + sum(round.offered) for round in result.rounds)
        rows.append((item.given * item.share - bool(result.rounds) + judged) / passes)
        logits.append(judged / passes)
        if item.nodes:
            by.setdefault(item.drafter, []).append(result)
            if item.further:
                windows[item.drafter] = max(item.nodes + 1, windows.get(item.drafter, 0))
    pairs = round(sum(mine * base for mine, base in zip(rows, bases)))
    context = round(sum(item.share * base for item, base in zip(plan.items, bases)))
    work = Work(max(1, round(sum(rows))), len(rows), context, pairs, round(sum(logits)), passes)
    parts = []
    for name, each in by.items():
        rounds = [result.rounds for result in each]
        deepest = sum(max(len(r.offered) for r in turn if r) for turn in zip_longest(*rounds)) if chain(name) else 0
        deepest = windows.get(name, deepest)
        nodes = sum(sum(r.offered) for turns in rounds for r in turns)
        longest = max(map(len, rounds)) if plan.passes > 1 else 0
        parts.append(Drafting(name, sum(map(len, rounds)), deepest, nodes, longest))
    return work, parts


def read_texts(plan: Plan, bases: Sequence[int], results: Sequence[Result]) -> list[int]:
    """Tokens of prompts and outputs that the step computed, but for texts that nobody else may profit from."""
    found = list[int]()
    for item, base, result in zip(plan.items, bases, results):
        if not item.request.extra_key and not item.partial:
            found += item.request.tokens[base : base + item.given] if item.given > 1 else ()
            found += result.tokens
    return found
