"""Steps of several passes in one call: how their texts go on, and what came of it. The simulator asks the same."""

from collections.abc import Collection, Sequence

from paceline.core.plan import Item, Note, Work
from paceline.core.rows import Straight
from paceline.plan.cost import Drafting

Pass = tuple[int, int]
"""(nodes drafted, nodes kept)"""


def straight(item: Item, passes: int, temperature: float, ends: Collection[int]) -> Straight:
    """How a text goes on in so many passes."""
    request, most = item.request, 1 + item.ahead(passes)
    keys = [request.target_noise.key(request.index(depth)) for depth in range(most)] if temperature else []
    return Straight(temperature, keys, ends, most)


def authors(item: Item, passes: Sequence[Pass]) -> list[str | None]:
    """Who drafted each token."""
    return [author for _, kept in passes for author in (*[item.drafter] * kept, None)]


def notes(item: Item, planned: int, passes: Sequence[Pass], emitted: int) -> list[Note]:
    """What the passes of a run taught about a text that has got `emitted` tokens of it: what follows the end counts
    not."""
    if not item.nodes:
        return [Note(item.request.id, item.drafter, 0, item.depth, [], [])]
    found: list[Note] = []
    left = min(planned * (1 + item.chain), item.request.left + emitted, 1 + item.depth)
    for drafted, kept in passes:
        if found and emitted <= 0:
            break
        kept = min(kept, emitted)
        told = [int(rank < kept) for rank in range(drafted)]
        found.append(Note(item.request.id, item.drafter, item.nodes, min(item.depth, left - 1), [1] * drafted, told))
        left, emitted = left - kept - 1, emitted - kept - 1
    return found


def measured(
    items: Sequence[Item], bases: Sequence[int], passes: Sequence[Sequence[Pass]]
) -> tuple[Work, list[Drafting]]:
    """What a run did, as the table of costs counts it: its passes alike. `bases`: rows committed before it."""
    count = max(map(len, passes))
    rows = [sum(1 + drafted for drafted, _ in each) / count for each in passes]
    every = max(1, round(sum(rows)))
    pairs = round(sum(mine * base for mine, base in zip(rows, bases)))
    by: dict[str, list[Sequence[Pass]]] = {}
    for item, each in zip(items, passes):
        if item.nodes:
            by.setdefault(item.drafter, []).append(each)
    parts = []
    for name, mine in by.items():
        longest = max(map(len, mine))
        deepest = sum(max(each[i][0] for each in mine if i < len(each)) for i in range(longest))
        nodes = sum(drafted for each in mine for drafted, _ in each)
        parts.append(Drafting(name, sum(map(len, mine)), deepest, nodes, longest))
    return Work(every, len(items), sum(bases), pairs, every, count), parts
