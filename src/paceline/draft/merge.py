"""Several drafters in one tree, named as in `ngram+topk`. Legal where any tree is: under `exact`.

The cheapest is asked first, and always; the next ones get the rows it leaves, but at least half. A later drafter is not
asked at all while what was proposed before it is expected to bring as many tokens as it brings itself with all rows,
less those that its rows must bring to pay. Both numbers are measured over all requests: nodes kept, of the former by
how many it drafted, of the latter by how many it was asked for, so that small drafts of a busy hour say nothing of
large ones. A part that has brought nothing for long promises nothing. A part that is passed over is tried now and then,
and again at once while it does better than was expected of the others. As the first part is always asked, rounds can
tell what it would have brought alone (`View.found`).

The nodes of a drafter with a K/V group come first, so that their rows stay where it wrote them; what is beyond the rows
granted goes from the end (`join`).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from paceline.core.errors import InputError
from paceline.core.forest import CANDIDATE, ROOT, Forest, Law
from paceline.core.plan import Note
from paceline.core.proposer import Proposer
from paceline.core.registry import Offers, Runs
from paceline.core.result import Result
from paceline.draft import DRAFTERS, Ask, Drafter, Host, Running, View
from paceline.draft.apart import Apart
from paceline.draft.merge_runs import MergedProposer
from paceline.draft.records import TRY, DrafterRecord, tells

LAWS = (Law.SHARED_NOISE, Law.POINT, Law.WITHOUT_REPLACEMENT, Law.SAMPLED)
"""All are legal under `exact`; shared noise agrees most often."""


def runs(parts: Iterable[Runs]) -> Runs:
    """Whether a merged drafter can draft in steps of several passes: true if all of its parts can."""
    kinds = set(parts)
    return False if False in kinds else "greedy" if "greedy" in kinds else True


def card(name: str) -> Offers:
    """The card of a merged drafter. InputError when its parts cannot be merged."""
    parts = {part: DRAFTERS.card(part) for part in name.split("+")}
    grouped = [part for part, it in parts.items() if it.group]
    overlapping = [part for part, it in parts.items() if it.ahead]
    if overlapping:
        raise InputError(
            f"Drafter {name!r} cannot be merged: {overlapping[0]!r} drafts while the target's pass runs; name it alone."
        )
    if len(parts) < name.count("+") + 1 or len(grouped) > 1 or "none" in parts:
        raise InputError(
            f"Drafter {name!r} cannot be merged: name each drafter once, at most one that uses the draft model "
            f"({', '.join(n for n, it in DRAFTERS.items() if it.group)}), and not 'none'."
        )
    order = sorted(parts, key=lambda part: (len(parts[part].needs), list(parts).index(part)))
    return Offers(
        summary=" and ".join(parts) + " in one tree",
        laws=frozenset({Law.SHARED_NOISE}),
        shape="tree",
        nodes=max(it.nodes for it in parts.values()),
        needs=frozenset().union(*(it.needs for it in parts.values())),
        group=next((parts[part].group for part in grouped), None),
        stops_early=all(it.stops_early for it in parts.values()),
        learns=any(it.learns for it in parts.values()),
        runs=runs(it.runs for it in parts.values()),
        parts=tuple(order),
        always_asked=order[0] if parts[order[0]].shape == "chain" else None,
    )


@dataclass(slots=True)
class MergeMemory:
    """State of one request: the slots of the parts; and for this round what each part was asked for, what was expected
    of the parts before it, and what it proposed."""

    slots: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    beside: dict[str, float] = field(default_factory=dict)
    nodes: dict[str, dict[int, int]] = field(default_factory=dict)
    """{part: {node of the tree: the part's own node}}, of candidates; nodes with one path are one node of the tree."""
    ranks: list[int] = field(default_factory=list)
    """Index of each node of the first part's chain among the nodes of the request."""
    beaten: dict[str, int] = field(default_factory=dict)
    """Latest round in which a part was asked and brought no more than the parts before it were expected to."""
    run: MergedProposer | None = None
    """The proposer that drafts in this step, if the step is a run; it then keeps the fields above itself."""


class Merged:
    def __init__(self, host: Host, name: str) -> None:
        parts, self.always_asked = card(name).parts, card(name).always_asked
        self.parts: dict[str, Drafter] = {part: DRAFTERS.get(part)(host) for part in parts}
        self.laws = {part: next(law for law in LAWS if law in DRAFTERS.card(part).laws) for part in parts}
        self.records = Apart(lambda: {part: DrafterRecord() for part in parts})
        self.models = {part for part in parts if DRAFTERS.card(part).group is not None}
        """Parts that run a draft model."""
        self.joined = sorted(parts, key=lambda part: part not in self.models)
        """In the order in which their nodes are laid out."""

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        memories = {ask.place: view.slot(ask.request, MergeMemory) for ask in asks}
        left = {ask.place: ask.item.nodes for ask in asks}
        expected = dict.fromkeys(left, 0.0)
        forests: dict[str, Forest] = {}
        for memory in memories.values():
            memory.asked, memory.beside, memory.nodes, memory.ranks, memory.run = {}, {}, {}, [], None
        for part, drafter in self.parts.items():
            mine = [self._ask(part, ask, left[ask.place], expected[ask.place], memories[ask.place]) for ask in asks]
            with_slots = self._view(part, mine, memories, view)
            forests[part] = forest = drafter.draft(mine, with_slots)
            self._keep(part, mine, memories, with_slots)
            counts = candidates(forest)
            for ask in mine:
                memories[ask.place].asked[part] = ask.item.nodes
                memories[ask.place].beside[part] = expected[ask.place]
                drafted = counts.get(ask.place, 0)
                left[ask.place] -= drafted
                expected[ask.place] = max(expected[ask.place], self.records.of(ask.request)[part].expected(drafted))
        out, places = union([forests[part] for part in self.joined])
        for part, where in zip(self.joined, places):
            for i, node in where.items():
                if i != ROOT and out.role[node] is CANDIDATE:
                    memories[out.request[node]].nodes.setdefault(part, {}).setdefault(node, i)
        if self.always_asked is not None and any(tells(ask.request.round) for ask in asks):
            chains = places[self.joined.index(self.always_asked)]
            self._rank(forests[self.always_asked], chains, out, memories)
        return out

    def propose(self, asks: Sequence[Ask], view: View) -> MergedProposer | None:
        """The parts' own proposers, as one."""
        memories = {ask.place: view.slot(ask.request, MergeMemory) for ask in asks}
        parts: dict[str, Proposer] = {}
        for part, drafter in self.parts.items():
            mine = [ask._replace(law=self.laws[part]) for ask in asks]
            with_slots = self._view(part, mine, memories, view)
            proposer = cast(Running, drafter).propose(mine, with_slots)
            self._keep(part, mine, memories, with_slots)
            if proposer is None:
                return None
            parts[part] = proposer
        beaten = [memories[ask.place].beaten for ask in asks]
        records = self.records.of(*(ask.request for ask in asks))
        run = MergedProposer(asks, parts, self.joined, self.models, records, beaten, self.always_asked)
        for memory in memories.values():
            memory.asked, memory.nodes, memory.run = {}, {}, run
        return run

    @staticmethod
    def _rank(chains: Forest, places: dict[int, int], out: Forest, memories: dict[int, MergeMemory]) -> None:
        """Where the nodes of these chains stand in the union."""
        counts, ranks = dict.fromkeys(memories, 0), list[int]()
        for place, role in zip(out.request, out.role):
            ranks.append(counts[place])
            counts[place] += role is CANDIDATE
        for i, place in enumerate(chains.request):
            memories[place].ranks.append(ranks[places[i]])

    def _ask(self, part: str, ask: Ask, left: int, expected: float, memory: MergeMemory) -> Ask:
        """What a part is asked; no nodes if the ones before it are expected to do as well."""
        nodes, row = max(left, ask.item.nodes // 2), ask.item.min_chance.row if ask.item.min_chance else 0.0
        brings = self.records.of(ask.request)[part].promised(ask.item.nodes, row)
        waited = ask.request.round - memory.beaten.get(part, -TRY)
        wanted = expected < brings or waited >= TRY or part == next(iter(self.parts))
        return ask._replace(item=ask.item._replace(nodes=nodes if wanted else 0), law=self.laws[part])

    def learn(self, view: View) -> None:
        memories = {ask.place: view.slot(ask.request, MergeMemory) for ask in view.asks}
        results: dict[str, dict[int, Result]] = {part: {} for part in self.parts}
        for ask in view.asks:
            memory, path = memories[ask.place], view.accepted(ask)
            for part in self.parts:
                own = memory.nodes.get(part, {})
                kept = [own[node] for node in path if node in own]
                results[part][ask.place] = replace(view.results[ask.place], accepted={part: kept})
                if not (asked := memory.asked.get(part, 0)):
                    continue
                self.records.of(ask.request)[part].count(asked, len(own), len(kept), part in self.models)
                if len(kept) <= memory.beside[part]:
                    memory.beaten[part] = ask.request.round
                if part == self.always_asked and tells(ask.request.round):
                    self._tell(part, view, ask, memory, len(kept))
        for run in {id(run): run for memory in memories.values() if (run := memory.run) is not None}.values():
            view.found += run.found
        for part, drafter in self.parts.items():
            mine = [ask._replace(law=self.laws[part]) for ask in view.asks]
            with_slots = self._view(part, mine, memories, view)
            with_slots.results = [results[part].get(place, it) for place, it in enumerate(view.results)]
            drafter.learn(with_slots)
            self._keep(part, mine, memories, with_slots)

    @staticmethod
    def _tell(part: str, view: View, ask: Ask, memory: MergeMemory, depth: int) -> None:
        """What this part's chain has brought, `depth` nodes. Nodes that lost their rows were not asked for."""
        had = sum(rank < view.rows[ask.place] for rank in memory.ranks)
        deep = ask.item.depth if had == len(memory.ranks) else had
        if deep:
            kept = [int(d < depth) for d in range(had)]
            view.found.append(Note(ask.request.id, part, memory.asked[part], deep, [1] * had, kept, part=True))

    @staticmethod
    def _view(part: str, asks: Sequence[Ask], memories: dict[int, MergeMemory], view: View) -> View:
        slots = {a.request.id: memories[a.place].slots[part] for a in asks if part in memories[a.place].slots}
        return replace(view, slots=slots, asks=asks, name=part, found=[])

    @staticmethod
    def _keep(part: str, asks: Sequence[Ask], memories: dict[int, MergeMemory], view: View) -> None:
        for ask in asks:
            memories[ask.place].slots.pop(part, None)
            if ask.request.id in view.slots:
                memories[ask.place].slots[part] = view.slots[ask.request.id]


def union(forests: Sequence[Forest]) -> tuple[Forest, list[dict[int, int]]]:
    """One prefix trie of several forests: equal paths become one node, at its first place. Probes stay apart. And where
    each node of each forest is in it."""
    out, places = Forest(), list[dict[int, int]]()
    known: dict[tuple[int, int, int], int] = {}
    for forest in forests:
        place = {ROOT: ROOT}
        for i, request in enumerate(forest.request):
            parent, token = place[forest.parent[i]], forest.token[i]
            same = known.get((request, parent, token)) if forest.role[i] is CANDIDATE else None
            place[i] = out.add(request, token, parent, law=forest.law[i], role=forest.role[i]) if same is None else same
            if forest.role[i] is CANDIDATE:
                known[request, parent, token] = place[i]
        places.append(place)
    return out, places


def candidates(forest: Forest) -> Counter[int]:
    """{request: candidates with paths of their own}"""
    rows = {(forest.request[i], forest.row[i]) for i, role in enumerate(forest.role) if role is CANDIDATE}
    return Counter(request for request, _ in rows)
