"""What was drafted for the outcomes of a pass while it ran: kept where the outcome is one of them, else dropped."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from paceline.core.forest import CANDIDATE, NO_ROW, ROOT, Forest, Law
from paceline.core.request import Request
from paceline.core.result import Result
from paceline.draft import Ask


@dataclass(slots=True)
class AheadDraft:
    """Draft for a text of `length` tokens, the last of which is `root`."""

    length: int
    root: int
    forest: Forest


class Windows:
    """{(drafter, request): the next draft}. What is lost costs time, never a text."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, int], AheadDraft] = {}
        self.reused, self.dropped = Counter[str](), Counter[str]()
        """Verdicts by drafter: those that left a draft of what was prepared, and those that did not."""

    def take(self, name: str, request: Request) -> AheadDraft | None:
        """The draft that was prepared for this text, if there is one; it is given once."""
        window = self.held.pop((name, request.id), None)
        fits = window is not None and window.length == len(request.tokens) and window.root == request.tokens[-1]
        return window if fits else None

    def keep(self, name: str, ask: Ask, forest: Forest, kept: Sequence[int], result: Result) -> None:
        """After the verdict: `kept`, the accepted nodes of `forest`, and the target's own token choose what is left of
        it (rebase)."""
        if not result.tokens:
            return
        nodes = forest.below(ask.place, kept[-1] if kept else ROOT, result.tokens[-1])
        (self.reused if nodes else self.dropped)[name] += 1
        if nodes:
            length = len(ask.request.tokens) + len(result.tokens)
            self.held[name, ask.request.id] = AheadDraft(length, result.tokens[-1], cut_out(forest, nodes))

    def forget(self, request: int, names: Collection[str]) -> None:
        """Drop what was prepared for a request."""
        for name in names:
            self.held.pop((name, request), None)


def cut_out(forest: Forest, nodes: Sequence[int]) -> Forest:
    """These nodes alone, parents first; a node below none of them hangs below the root."""
    out, places = Forest(), dict[int, int]()
    used = sorted({forest.q_row[i] for i in nodes if forest.q_row[i] >= 0})
    rows = {row: number for number, row in enumerate(used)}
    for i in nodes:
        parent = places.get(forest.parent[i], ROOT)
        places[i] = out.add(0, forest.token[i], parent, law=forest.law[i], q_row=rows.get(forest.q_row[i], -1))
    if forest.q is not None and used:
        out.q = forest.q[used]
    return out


def plant(forest: Forest, place: int, window: AheadDraft) -> None:
    """Add a window's nodes to a drafter's forest, for this place of the plan."""
    mine, shift, places = window.forest, 0 if forest.q is None else len(forest.q), {ROOT: ROOT}
    for i, token in enumerate(mine.token):
        q_row = mine.q_row[i] + shift if mine.q_row[i] >= 0 else -1
        places[i] = forest.add(place, token, places[mine.parent[i]], law=mine.law[i], q_row=q_row)
    if mine.q is not None:
        forest.q = mine.q if forest.q is None else torch.cat([forest.q, mine.q])


def hang(joined: Forest, number: int, forest: Forest, before: int, children: dict[int, list[int]]) -> None:
    """Let the rule judge the first level of what was drafted behind the pass: nodes of `forest` from `before` on that
    hang below a node with a row, or below the root. They have no rows: such a node is judged from its parent's logits
    and ends the path (PEARL's pre-verification). Under `exact`, where the target's own token is drawn, nobody has to
    ask.

    joined: the forest that was verified, of which `forest` is part `number`; children: {node: its candidates}, grows.
    """
    drawn = [i for i in range(before, len(forest)) if forest.law[i] is not Law.SHARED_NOISE]
    if not drawn:
        return
    where = {node: at for at, (part, node) in joined.source.items() if part == number}
    roots = root_of(joined)
    shift = 0 if joined.q is None else len(joined.q)
    for i in drawn:
        above, place = forest.parent[i], forest.request[i]
        parent = roots[place] if above == ROOT else where.get(above) if above < before else None
        if parent is None or (above != ROOT and joined.row[parent] == NO_ROW):
            continue
        q_row = forest.q_row[i] + shift if forest.q_row[i] >= 0 else -1
        node = joined.add(place, forest.token[i], parent, law=forest.law[i], q_row=q_row)
        joined.row[node] = NO_ROW
        children.setdefault(parent, []).append(node)
    if forest.q is not None:
        joined.q = forest.q if joined.q is None else torch.cat([joined.q, forest.q])


def root_of(joined: Forest) -> Mapping[int, int]:
    """{place: the last given node}"""
    return {request: i for i, (request, depth) in enumerate(zip(joined.request, joined.depth)) if depth == 0}


def with_rows(joined: Forest, number: int) -> dict[int, list[int]]:
    """{place: nodes of part `number` that have a row, in its own indices}"""
    out: dict[int, list[int]] = {}
    for node, (part, own) in joined.source.items():
        if part == number and joined.row[node] != NO_ROW and joined.role[node] is CANDIDATE:
            out.setdefault(joined.request[node], []).append(own)
    return out
