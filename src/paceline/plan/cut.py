"""Where one more row opens a panel, a few unlikely nodes may not be worth it: decided once it is known how long the
drafts are, since their sum is what counts."""

from collections.abc import Callable, Sequence

from paceline.core.plan import Edge, Item, Plan


def trim(plan: Plan, drafted: Sequence[int], chain: Callable[[str], bool]) -> list[int]:
    """Rows that each item's draft keeps of those `drafted`. A `chain` that loses some was only asked for so deep."""
    left = cut(plan.items, drafted, plan.edges) if plan.edges else list(drafted)
    for place, (item, had, has) in enumerate(zip(plan.items, drafted, left)):
        if has < had and chain(item.drafter):
            plan.items[place] = item._replace(depth=has)
    return left


def cut(items: Sequence[Item], drafted: Sequence[int], edges: Sequence[Edge]) -> list[int]:
    """At the last edge below the rows of all, the nodes that are least likely to be kept go, when together they are
    expected to bring less than their rows cost. What goes is the end of a draft, for a reason that looks at no token,
    and a drawn node is judged without its row, too (`core.forest.join`): legal under every verifier."""
    left = list(drafted)
    rows = sum(item.given for item in items) + sum(left)
    edge = next((edge for edge in reversed(edges) if edge.rows < rows), None)
    if edge is None:
        return left
    nodes = [
        (item.chances[min(rank, len(item.chances) - 1)], -rank, place)
        for place, item in enumerate(items)
        if item.chances
        for rank in range(left[place])
    ]
    over = rows - edge.rows
    last = sorted(nodes)[:over]
    if len(last) == over and sum(chance for chance, _, _ in last) < edge.opening + edge.row * over:
        for _, _, place in last:
            left[place] -= 1
    return left
