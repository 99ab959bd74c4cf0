"""Where one more row opens a panel, a few unlikely nodes may not be worth it: decided once it is known how long the
drafts are, since their sum is what counts."""

from collections.abc import Callable, Sequence

from paceline.core.plan import Item, Panel, Plan


def trim(plan: Plan, drafted: Sequence[int], chain: Callable[[str], bool]) -> tuple[list[int], list[int | None]]:
    """Rows that each item's draft keeps of those `drafted`; and the depth to which a `chain` that lost some was cut,
    None for the others."""
    left = cut(plan.items, drafted, plan.panels) if plan.panels else list(drafted)
    depths = [has if has < had and chain(item.drafter) else None for item, had, has in zip(plan.items, drafted, left)]
    return left, depths


def cut(items: Sequence[Item], drafted: Sequence[int], panels: Sequence[Panel]) -> list[int]:
    """At the last panel below the rows of all, the nodes that are least likely to be kept go, when together they are
    expected to bring less than their rows cost. What goes is the end of a draft, for a reason that looks at no token,
    and a drawn node is judged without its row, too (`core.forest.join`): legal under every verifier."""
    left = list(drafted)
    rows = sum(item.given for item in items) + sum(left)
    panel = next((panel for panel in reversed(panels) if panel.rows < rows), None)
    if panel is None:
        return left
    nodes = [
        (item.chances[min(rank, len(item.chances) - 1)], -rank, place)
        for place, item in enumerate(items)
        if item.chances
        for rank in range(left[place])
    ]
    over = rows - panel.rows
    last = sorted(nodes)[:over]
    if len(last) == over and sum(chance for chance, _, _ in last) < panel.opening + panel.row * over:
        for _, _, place in last:
            left[place] -= 1
    return left
