"""A merged drafter between the passes of a run: which parts to ask, and one tree of what they draft, as `merge` does in
single steps. native/propose_merged.h does the same in C++."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.core.forest import ROOT
from paceline.core.plan import Note
from paceline.core.proposer import Draft, Proposer, ProposerTable, Turn
from paceline.draft import Ask
from paceline.draft.records import BROKEN, RECORD_DECAY, TELL, TRY, DrafterRecord, tells
from paceline.native.structs import CMerged, addresses, integers_in, reals_in

if TYPE_CHECKING:
    import ctypes


@dataclass(slots=True)
class Asked:
    """What a part was asked in a round of one text, and what it drafted."""

    turn: Turn
    beside: float
    """Nodes expected of the parts before it."""
    draft: Draft = ((), ())
    nodes: list[int] = field(default_factory=list)
    """Node of the merged tree for each node of the part."""


@dataclass(slots=True)
class MergedProposer:
    asks: Sequence[Ask]
    """One for each text."""
    parts: dict[str, Proposer]
    """In the order in which they are asked."""
    joined: Sequence[str]
    """In the order in which their nodes are laid out."""
    models: Collection[str]
    records: dict[str, DrafterRecord]
    beaten: list[dict[str, int]]
    """`merge.Memory.beaten` of each text."""
    always_asked: str | None
    found: list[Note] = field(default_factory=list)
    """Reports of rounds on the first part."""
    made: dict[int, int] = field(default_factory=dict)
    """{text: rounds so far}"""
    latest: dict[int, dict[str, Asked]] = field(default_factory=dict)

    @property
    def texts(self) -> list[int]:
        return [ask.place for ask in self.asks]

    @property
    def nodes(self) -> list[int]:
        return [ask.item.nodes for ask in self.asks]

    def row(self, place: int) -> float:
        """What a row of this text has to bring."""
        price = self.asks[place].item.min_chance
        return price.row if price else 0.0

    def round(self, place: int) -> int:
        return self.asks[place].request.round + self.made.get(place, 0)

    def most(self, turn: Turn) -> int:
        return min(self.asks[turn.place].item.nodes, turn.room, turn.most)

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        left = {turn.place: self.most(turn) for turn in turns}
        expected = dict.fromkeys(left, 0.0)
        self.latest = {place: {} for place in left}
        for part, proposer in self.parts.items():
            record, asked = self.records[part], list[Asked]()
            for turn in turns:
                place, most = turn.place, self.most(turn)
                waited = self.round(place) - self.beaten[place].get(part, -TRY)
                brings = record.promised(most, self.row(place))
                if expected[place] < brings or waited >= TRY or part == next(iter(self.parts)):
                    asked.append(Asked(turn._replace(most=max(left[place], most // 2)), expected[place]))
            if not asked:
                continue
            for it, draft in zip(asked, proposer.propose([it.turn for it in asked])):
                place, it.draft = it.turn.place, draft
                self.latest[place][part] = it
                left[place] -= len(draft[0])
                expected[place] = max(expected[place], record.expected(len(draft[0])))
        return [self._union(turn) for turn in turns]

    def _union(self, turn: Turn) -> Draft:
        """One tree: equal paths become one node, at its first place; those beyond the rows are not in it."""
        tokens, parents, known = list[int](), list[int](), dict[tuple[int, int], int]()
        for part in self.joined:
            if (it := self.latest[turn.place].get(part)) is None:
                continue
            for token, above in zip(*it.draft):
                parent = ROOT if above == ROOT else it.nodes[above]
                if (parent, token) not in known:
                    known[parent, token] = len(tokens)
                    tokens.append(token)
                    parents.append(parent)
                it.nodes.append(known[parent, token])
        most = self.most(turn)
        return tokens[:most], parents[:most]

    def kept(self, turns: Sequence[Turn], paths: Sequence[Sequence[int]]) -> None:
        for part, proposer in self.parts.items():
            mine, own = list[Turn](), list[list[int]]()
            for turn, path in zip(turns, paths):
                if (it := self.latest[turn.place].get(part)) is None:
                    continue
                mine.append(it.turn)
                own.append([it.nodes.index(node) for node in path if node in it.nodes])
                self._count(part, turn, it, len(own[-1]))
            if mine:
                proposer.kept(mine, own)
        for turn in turns:
            self.made[turn.place] = self.made.get(turn.place, 0) + 1

    def _count(self, part: str, turn: Turn, it: Asked, kept: int) -> None:
        """Record the round of a part of which `kept` nodes were kept."""
        place, drafted = turn.place, len(it.nodes)
        self.records[part].count(it.turn.most, drafted, kept, part in self.models)
        if kept <= it.beside:
            self.beaten[place][part] = self.round(place)
        if part == self.always_asked and tells(self.round(place)):
            had = sum(node < self.most(turn) for node in it.nodes)
            self._tell(place, it.turn.most, turn.room if had == drafted else had, had, kept)

    def _tell(self, place: int, asked: int, deep: int, had: int, kept: int) -> None:
        if deep and self.always_asked is not None:
            told = [int(d < kept) for d in range(had)]
            self.found.append(Note(self.asks[place].request.id, self.always_asked, asked, deep, [1] * had, told, True))

    def native(self) -> ProposerTable | None:
        tables = [table for proposer in self.parts.values() if (table := proposer.native()) is not None]
        if len(tables) < len(self.parts):
            return None
        names, texts = list(self.parts), len(self.asks)
        room = 1 + max(ask.txn.rows for ask in self.asks)
        records, missed = self._packed()
        beaten = integers_in([mine.get(part, -TRY) for mine in self.beaten for part in names])
        told, tellings = integers_in([0] * (4 * texts * room)), integers_in([0] * texts)
        held = (
            integers_in([names.index(part) for part in self.joined]),
            integers_in([part in self.models for part in names]),
            integers_in(self.nodes),
            reals_in([self.row(place) for place in range(texts)]),
            integers_in([ask.request.round for ask in self.asks]),
            *(records, missed, beaten, told, tellings),
        )
        always = -1 if self.always_asked is None else names.index(self.always_asked)
        state = CMerged(len(names), 0, *addresses(*held), texts, room, always, TRY, BROKEN, TELL, RECORD_DECAY, 0)

        def done() -> None:
            for table in tables:
                if table.done is not None:
                    table.done()
            self._unpack([*records], [*missed], [*beaten])
            for place in range(texts):
                for n in range(place * room, place * room + tellings[place]):
                    self._tell(place, *told[4 * n : 4 * n + 4])

        return ProposerTable("paceline_merged", state, held, done, tables)

    def _packed(self) -> "tuple[ctypes.Array[Any], ctypes.Array[Any]]":
        sizes = [each for part in self.parts for each in self.records[part].sizes]
        numbers = [x for each in sizes for row in (each.kept, each.rounds) for x in row]
        return reals_in(numbers), integers_in([self.records[part].missed for part in self.parts])

    def _unpack(self, records: list[float], missed: list[int], beaten: list[int]) -> None:
        at, names = 0, list(self.parts)
        for part, count in zip(names, missed):
            self.records[part].missed = count
            for each in self.records[part].sizes:
                each.kept, each.rounds = records[at : at + 8], records[at + 8 : at + 16]
                at += 16
        for place, mine in enumerate(self.beaten):
            rounds = beaten[place * len(names) : (place + 1) * len(names)]
            mine.update({part: round for part, round in zip(names, rounds) if round > -TRY})
