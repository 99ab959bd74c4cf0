"""From forest to rows: a pure function of plan, forest and reserved slots."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.cache.txn import Txn
from paceline.core.forest import CANDIDATE, NO_ROW, PROBE, Forest
from paceline.core.joined import placed
from paceline.core.plan import Item
from paceline.core.rows import RowsBuilder


@dataclass(slots=True)
class Layout:
    """The forest as seen by judges and drafters.

    roots {place: node} of the texts that complete in this step; candidates [place]: its candidates that have rows, one
    per row; children {node: its candidates, also those of nodes that share its row}; line {node: row of the logits
    that judge its children}, for roots and candidates; probes {place: the row of the logits of each of its probes};
    prompt_lines {place: (given rank, row of the logits) pairs wanted for prompt log-probabilities}; lines: all rows of
    logits.
    """

    builder: RowsBuilder
    roots: dict[int, int]
    candidates: list[list[int]]
    children: dict[int, list[int]]
    line: dict[int, int]
    probes: dict[int, list[int]]
    prompt_lines: dict[int, list[tuple[int, int]]]
    lines: int = 0


def lay_out(forest: Forest, items: Sequence[Item], txns: Sequence[Txn]) -> Layout:
    """Rows of every item in plan order; each item's given rows first, then one for each of its nodes that needs one,
    in forest order."""
    layout = Layout(RowsBuilder(), {}, [], {}, {}, {}, {})
    parent, row, role = forest.parent, forest.row, forest.role
    lines = 0
    for place, (item, txn, nodes) in enumerate(zip(items, txns, forest.by_request(len(items)))):
        drafted = [n for n in nodes[item.given :] if row[n] != NO_ROW]
        first: dict[int, int] = {}  # of the nodes that share a row: a candidate, if any is
        for node in drafted:
            if role[first.setdefault(row[node], node)] is PROBE and role[node] is CANDIDATE:
                first[row[node]] = node
        computed = [first[rank] for rank in sorted(first)]
        layout.candidates.append([n for n in computed if role[n] is CANDIDATE])
        for node in nodes[item.given :]:
            if role[node] is CANDIDATE:
                layout.children.setdefault(first.get(row[parent[node]], parent[node]), []).append(node)
        want: list[int] = []
        if wants_prompt(item):
            want = list(range(item.given - 1))
            layout.prompt_lines[place] = [(rank, lines + rank) for rank in want]
        if item.completes:
            root = item.given - 1
            layout.roots[place] = nodes[root]
            shift = lines + len(want) - root  # of the line of a rank
            layout.line[nodes[root]] = root + shift
            for node in drafted:
                if role[node] is PROBE:
                    layout.probes.setdefault(place, []).append(row[node] + shift)
                else:
                    layout.line[node] = row[node] + shift
            want.extend(range(root, item.given + len(computed)))
        elif wants_prompt(item):
            layout.prompt_lines[place].append((item.given - 1, lines + len(want)))
            want.append(item.given - 1)
        lines += len(want)
        rows = [*nodes[: item.given], *computed]
        layout.builder.add(
            [forest.token[n] for n in rows],
            txn.slots[: len(rows)],
            txn.table,
            txn.lease.length,
            depths=[forest.depth[n] for n in computed],
            words=tree_words(forest, computed),
            want=want,
            adapter=item.request.adapter_slot,
            **placed(item.request.layout, txn.base),
        )
    layout.lines = lines
    return layout


def wants_prompt(item: Item) -> bool:
    """Does this step compute prompt tokens whose log-probabilities were asked for and are not known yet?"""
    request = item.request
    return (
        not item.partial
        and request.params.prompt_logprobs is not None
        and len(request.prompt_logprobs) < len(request.prompt)
    )


def tree_words(forest: Forest, candidates: Sequence[int]) -> list[int]:
    """Ancestor-or-self bits of each candidate row among its request's candidate rows (Miao et al. 2024, SpecInfer:
    the tree attention mask), in a joined forest."""
    words: dict[int, int] = {}  # by row; given rows have none
    for j, node in enumerate(candidates):
        words[forest.row[node]] = words.get(forest.row[forest.parent[node]], 0) | 1 << j
    return [*words.values()]
