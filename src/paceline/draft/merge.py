"""Several drafters in one tree, named as in `ngram+topk`. Legal where any tree is: under `exact`.

The cheapest is asked first; the next ones get the rows it leaves, but at least half. A later drafter is not asked at
all while what was proposed before it is expected to bring at least as many tokens as it brings itself with all rows.
Both numbers are measured over all requests: nodes kept, of the former by how many it drafted, of the latter by how many
it was asked for, so that small drafts of a busy hour say nothing of large ones.

The nodes of a drafter with a K/V group come first, so that their rows stay where it wrote them; what is beyond the
rows granted goes from the end (`join`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.core.errors import InputError
from paceline.core.forest import ROOT, Forest, Law, Role
from paceline.core.registry import Offers
from paceline.core.verdict import Verdict
from paceline.draft import DRAFTERS, Ask, Drafter, Host, View

MEMORY = 0.98
"""Weight of the past at each new observation."""
TRY = 16
"""A drafter that is passed over is asked every so many rounds all the same."""

LAWS = (Law.SHARED_NOISE, Law.POINT, Law.WITHOUT_REPLACEMENT, Law.SAMPLED)
"""All are legal under `exact`; shared noise agrees most often."""

Path = tuple[int, ...]


def card(name: str) -> Offers:
    """The card of a merged drafter. InputError when its parts cannot be merged."""
    parts = {part: DRAFTERS.card(part) for part in name.split("+")}
    grouped = [part for part, it in parts.items() if it.group]
    if len(parts) < name.count("+") + 1 or len(grouped) > 1 or "none" in parts:
        raise InputError(
            f"Drafter {name!r} cannot be merged: name each drafter once, at most one that uses the draft model "
            f"({', '.join(n for n, it in DRAFTERS.items() if it.group)}), and not 'none'."
        )
    return Offers(
        summary=" and ".join(parts) + " in one tree",
        laws=frozenset({Law.SHARED_NOISE}),
        shape="tree",
        nodes=max(it.nodes for it in parts.values()),
        needs=frozenset().union(*(it.needs for it in parts.values())),
        group=next((parts[part].group for part in grouped), None),
        thrifty=all(it.thrifty for it in parts.values()),
        parts=tuple(sorted(parts, key=lambda part: (len(parts[part].needs), list(parts).index(part)))),
    )


class Sizes:
    """Nodes kept a round, by the bit length of a number of nodes, with decay."""

    def __init__(self) -> None:
        self.kept, self.rounds = [0.0] * 8, [0.0] * 8

    def count(self, nodes: int, kept: int) -> None:
        size = nodes.bit_length()
        self.kept[size] = MEMORY * self.kept[size] + kept
        self.rounds[size] = MEMORY * self.rounds[size] + 1

    def of(self, nodes: int) -> tuple[float, float]:
        """Kept, and rounds."""
        size = nodes.bit_length()
        return self.kept[size], self.rounds[size]


@dataclass(slots=True)
class Record:
    """What one drafter brought: by how many nodes it drafted, and by how many it was asked for."""

    drafted: Sizes = field(default_factory=Sizes)
    asked: Sizes = field(default_factory=Sizes)
    passed: int = 0
    """Rounds since it was asked last."""

    def expected(self, drafted: int) -> float:
        """Nodes kept of so many."""
        kept, rounds = self.drafted.of(drafted)
        return kept / (rounds + 1.0) if drafted else 0.0

    def promised(self, asked: int) -> float:
        """Nodes kept when it is asked for so many, or for the most so far; infinite until it was asked for any."""
        while asked:
            kept, rounds = self.asked.of(asked)
            if rounds:
                return kept / rounds
            asked //= 2
        return float("inf")


@dataclass(slots=True)
class Memory:
    """Of one request: the slots of the parts, and what each was asked for and proposed in this round."""

    slots: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    paths: dict[str, set[Path]] = field(default_factory=dict)


class Merged:
    def __init__(self, host: Host, name: str) -> None:
        parts = card(name).parts
        self.parts: dict[str, Drafter] = {part: DRAFTERS.get(part)(host) for part in parts}
        self.laws = {part: next(law for law in LAWS if law in DRAFTERS.card(part).laws) for part in parts}
        self.records = {part: Record() for part in parts}
        self.first = sorted(parts, key=lambda part: DRAFTERS.card(part).group is None)

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        memories = {ask.place: view.slot(ask.request, Memory) for ask in asks}
        left = {ask.place: ask.item.nodes for ask in asks}
        expected = dict.fromkeys(left, 0.0)
        forests: dict[str, Forest] = {}
        for memory in memories.values():
            memory.asked, memory.paths = {}, {}
        for part, drafter in self.parts.items():
            mine = [self._ask(part, ask, left[ask.place], expected[ask.place]) for ask in asks]
            with_slots = self._view(part, mine, memories, view)
            forests[part] = forest = drafter.draft(mine, with_slots)
            self._keep(part, mine, memories, with_slots)
            paths = forest.paths(range(len(forest)))
            for i, place in enumerate(forest.request):
                if forest.role[i] is Role.CANDIDATE:
                    memories[place].paths.setdefault(part, set()).add(paths[i])
            for ask in mine:
                memories[ask.place].asked[part] = ask.item.nodes
                drafted = memories[ask.place].paths.get(part, ())
                left[ask.place] -= len(drafted)
                expected[ask.place] = max(expected[ask.place], self.records[part].expected(len(drafted)))
        return union([forests[part] for part in self.first])

    def _ask(self, part: str, ask: Ask, left: int, expected: float) -> Ask:
        """What a part is asked; no nodes if the ones before it are expected to do as well."""
        record, nodes = self.records[part], max(left, ask.item.nodes // 2)
        wanted = expected < record.promised(ask.item.nodes) or record.passed >= TRY
        if ask.item.nodes:
            record.passed = 0 if wanted else record.passed + 1
        return replace(ask, item=replace(ask.item, nodes=nodes if wanted else 0), law=self.laws[part])

    def learn(self, view: View, verdict: Verdict) -> None:
        memories = {ask.place: view.slot(ask.request, Memory) for ask in view.asks}
        for ask in view.asks:
            path = tuple(ask.txn.lease.tokens[ask.txn.base + ask.item.given :])
            memory = memories[ask.place]
            for part, asked in memory.asked.items():
                paths = memory.paths.get(part, set())
                depth = next((n for n in range(len(path), 0, -1) if path[:n] in paths), 0)
                record = self.records[part]
                if asked:
                    record.asked.count(asked, depth)
                if paths:
                    record.drafted.count(len(paths), depth)
        for part, drafter in self.parts.items():
            mine = [replace(ask, law=self.laws[part]) for ask in view.asks]
            with_slots = self._view(part, mine, memories, view)
            drafter.learn(with_slots, verdict)
            self._keep(part, mine, memories, with_slots)

    @staticmethod
    def _view(part: str, asks: Sequence[Ask], memories: dict[int, Memory], view: View) -> View:
        slots = {a.request.id: memories[a.place].slots[part] for a in asks if part in memories[a.place].slots}
        return View(slots, asks, view.advance, view.probes)

    @staticmethod
    def _keep(part: str, asks: Sequence[Ask], memories: dict[int, Memory], view: View) -> None:
        for ask in asks:
            memories[ask.place].slots.pop(part, None)
            if ask.request.id in view.slots:
                memories[ask.place].slots[part] = view.slots[ask.request.id]


def union(forests: Sequence[Forest]) -> Forest:
    """One prefix trie of several forests: equal paths become one node, at its first place. Probes stay apart."""
    out = Forest()
    known: dict[tuple[int, int, int], int] = {}
    for forest in forests:
        place = {ROOT: ROOT}
        for i, request in enumerate(forest.request):
            parent, token = place[forest.parent[i]], forest.token[i]
            same = known.get((request, parent, token)) if forest.role[i] is Role.CANDIDATE else None
            place[i] = out.add(request, token, parent, law=forest.law[i], role=forest.role[i]) if same is None else same
            if forest.role[i] is Role.CANDIDATE:
                known[request, parent, token] = place[i]
    return out
