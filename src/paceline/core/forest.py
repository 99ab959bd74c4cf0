"""`Forest`: one small token tree per request, flattened. The only thing drafters make.

                      root = last given node (its token is committed, its logits judge depth 1)
    given  given  ──┬── candidate depth 1 ── candidate depth 2
                    └── candidate depth 1

Nodes are not rows: a node claims "this token follows its parent"; a node with `row == NO_ROW` has no line in
the forward pass, is judged from its parent's logits and, if accepted, ends the path.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from paceline.core.errors import InputError, IntegrityError

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.core.program import Entry

NO_ROW = -1
ROOT = -1
"""Parent of depth-1 candidates while a drafter builds them; resolved when the forest is joined."""
MAX_CANDIDATES = 64
"""Candidate rows of one request in one pass: the bits of a tree word."""


class Role(IntEnum):
    GIVEN = 0
    CANDIDATE = 1
    PROBE = 2
    """Has a row and logits for its drafter, is never accepted; so is all that hangs below it."""


GIVEN, CANDIDATE, PROBE = Role
"""Names to ask every node by: in Python 3.11 to read `Role.GIVEN` takes ten times as long."""


class Law(IntEnum):
    """How a candidate's token came about, per node."""

    POINT = 0
    """Any rule that does not depend on this round's noise: q is one-hot."""
    SAMPLED = 1
    """Drawn from the stored q with private noise; siblings are i.i.d."""
    WITHOUT_REPLACEMENT = 2
    SHARED_NOISE = 3
    """Drawn with the target's own noise rows: legal under `exact` only."""


@dataclass(slots=True)
class Forest:
    """Flat arrays over N nodes; parents precede children, siblings stand in draw order.

    request[i] is the request's place in the plan, parent[i] a node index (ROOT for a given node without a
    predecessor in this pass), depth 0 for given nodes, q_row[i] the row of `q` [Q, V] (probabilities) the node was
    drawn from or -1. row[i] is the node's rank among its request's rows or NO_ROW; in a drafter's forest, before
    `join`, any number that only nodes with one computation (equal paths) share.
    """

    request: list[int] = field(default_factory=list)
    token: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    role: list[Role] = field(default_factory=list)
    law: list[Law] = field(default_factory=list)
    q_row: list[int] = field(default_factory=list)
    source: dict[int, tuple[int, int]] = field(default_factory=dict, compare=False)
    """{node: (number of the forest that it came from, its node there)}, of a forest that was made from others."""
    q: "Tensor | None" = None
    entries: "dict[int, Entry]" = field(default_factory=dict, compare=False)
    """{request: rows of its given nodes and of its first candidates, a chain, that have run through lower layers of the
    target}: of a drafter's forest. A drafter that draws a forest from others may drop them: those rows are then
    computed whole."""

    def __len__(self) -> int:
        return len(self.token)

    def add(
        self,
        request: int,
        token: int,
        parent: int,
        *,
        law: Law,
        q_row: int = -1,
        role: Role = CANDIDATE,
        twin: int | None = None,
    ) -> int:
        """Append one node and return its index. It has a row of its own, or that of its `twin`: an earlier node with
        the same path (i.i.d. draws of one token stay distinct nodes)."""
        node, depth = len(self.token), 1
        if parent != ROOT:
            if role is CANDIDATE and self.role[parent] is PROBE:
                raise IntegrityError("A candidate below a probe can never be accepted; make it a probe.")
            depth += self.depth[parent]
        self.request.append(request)
        self.token.append(token)
        self.parent.append(parent)
        self.depth.append(depth)
        self.row.append(node if twin is None else self.row[twin])
        self.role.append(role)
        self.law.append(law)
        self.q_row.append(q_row)
        return node

    def add_chain(self, request: int, tokens: Sequence[int], law: Law, q_rows: Sequence[int] = ()) -> None:
        """Append a chain of candidates below the root."""
        parent = ROOT
        for i, token in enumerate(tokens):
            parent = self.add(request, token, parent, law=law, q_row=q_rows[i] if q_rows else -1)

    def add_given(self, request: int, tokens: Sequence[int]) -> None:
        """Append a run of committed tokens, each the child of the one before."""
        start, n = len(self.token), len(tokens)
        self.request.extend([request] * n)
        self.token.extend(tokens)
        self.parent.extend([ROOT, *range(start, start + n - 1)])
        self.depth.extend([0] * n)
        self.row.extend(range(n))
        self.role.extend([GIVEN] * n)
        self.law.extend([Law.POINT] * n)
        self.q_row.extend([-1] * n)

    def check(self, asked: Collection[int], vocab_size: int, lent: int = 0) -> None:
        """InputError unless these are candidates for the `asked` places: what a drafter made wrong must not reach a
        pass that others share. Probes may have one of `lent` more ids (`core.component.Lends`)."""
        for i, (request, token, parent) in enumerate(zip(self.request, self.token, self.parent)):
            most = vocab_size + lent if self.role[i] is PROBE else vocab_size
            if request not in asked or not isinstance(token, int) or not 0 <= token < most:
                raise InputError(
                    f"Node {i} is token {token!r} for place {request}; expected is a token in [0, {most}) for "
                    f"one of the places {sorted(asked)}."
                )
            if not ROOT <= parent < i or (parent != ROOT and self.request[parent] != request):
                raise InputError(
                    f"Node {i} hangs below {parent}; a parent is an earlier node of the request or {ROOT}."
                )
            if self.role[i] is GIVEN or self.q_row[i] >= (0 if self.q is None else self.q.shape[0]):
                raise InputError(f"Node {i} is given, or has a row of q that does not exist; drafters add candidates.")

    def by_request(self, count: int) -> list[list[int]]:
        """Node indices of each of `count` requests, in order."""
        nodes: list[list[int]] = [[] for _ in range(count)]
        for i, r in enumerate(self.request):
            nodes[r].append(i)
        return nodes

    def paths(self, nodes: Iterable[int]) -> dict[int, tuple[int, ...]]:
        """{node: candidate tokens from depth 1 down to it} for nodes listed parents first."""
        out: dict[int, tuple[int, ...]] = {}
        for i in nodes:
            above = out.get(self.parent[i], ())
            out[i] = () if self.role[i] is GIVEN else (*above, self.token[i])
        return out

    def below(self, request: int, node: int, token: int) -> list[int]:
        """The nodes of a request below its first candidate that carries `token` after `node`, in order; ROOT: after its
        root."""
        mine = (i for i, place in enumerate(self.request) if place == request and self.parent[i] == node)
        top = next((i for i in mine if self.token[i] == token), None)
        found = {top} if top is not None else set[int | None]()
        out = list[int]()
        for i in range(len(self) if top is not None else 0):
            if self.parent[i] in found:
                found.add(i)
                out.append(i)
        return out


def join(
    given: Sequence[Sequence[int]], parts: Sequence[Forest], budget: Sequence[int], depth: Sequence[int] | None = None
) -> Forest:
    """One forest from the given tokens of each request and the drafters' candidates.

    Candidates beyond a request's `budget` of rows lose their row: drawn siblings stay, as nodes judged from their
    parent's logits; their descendants go (they could not be reached), and so do probes without a row (nothing judges
    them) and what is deeper than `depth`. Nothing here looks at a token.
    """
    forest = Forest()
    candidates = [p.by_request(len(given)) for p in parts]
    shift = 0
    tables: list[Tensor] = [p.q for p in parts if p.q is not None]
    shifts: list[int] = []
    for part in parts:
        shifts.append(shift)
        shift += 0 if part.q is None else part.q.shape[0]
    if tables:
        import torch

        forest.q = tables[0] if len(tables) == 1 else torch.cat(tables)
    for r, tokens in enumerate(given):
        forest.add_given(r, tokens)
        root, rows, limit = len(forest) - 1, len(tokens), len(tokens) + min(budget[r], MAX_CANDIDATES)
        for number, (part, lists, q_shift) in enumerate(zip(parts, candidates, shifts)):
            place: dict[int, int] = {ROOT: root}
            rank: dict[int, int] = {}
            for i in lists[r]:
                parent = place.get(part.parent[i])
                if parent is None or forest.row[parent] == NO_ROW or (depth and forest.depth[parent] >= depth[r]):
                    continue
                if part.row[i] not in rank:
                    rank[part.row[i]] = rows if rows < limit else NO_ROW
                    rows += rows < limit
                if part.role[i] is PROBE and rank[part.row[i]] == NO_ROW:
                    continue
                q_row = part.q_row[i] + q_shift if part.q_row[i] >= 0 else -1
                place[i] = j = forest.add(r, part.token[i], parent, law=part.law[i], q_row=q_row, role=part.role[i])
                forest.row[j] = rank[part.row[i]]
                forest.source[j] = number, part.source[i][1] if part.source else i
    return forest
