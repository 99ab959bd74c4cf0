"""Trees from a draft model. One builder grows the tree of every request, a pass of the draft model a level; a method
adds its `expand` rule.

A pass computes all nodes so far again: a tree is small, a pass costs about the same for 1 to 16 rows, and so a pass
needs nothing but its own rows and the committed prefix.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paceline.core.component import DRAFT
from paceline.core.forest import ROOT, Forest, Law
from paceline.core.plan import Item
from paceline.core.proposer import Draft, ProposerTable, Turn
from paceline.core.registry import Offers, Runs
from paceline.core.rows import RowsBuilder
from paceline.draft import NEED_DRAFT, Ask, Host, View
from paceline.draft.model import SHARP
from paceline.sample.chunks import chunks
from paceline.sample.noise import keys_tensor
from paceline.sample.race import perturbed

TREE_NODES = 15


def offers(
    summary: str, *laws: Law, stops_early: bool = False, runs: Runs = False, auto: tuple[str, ...] = ()
) -> Offers:
    """The card of a tree method that grows on a draft model."""
    needs = frozenset({NEED_DRAFT})
    return Offers(
        summary, frozenset(laws), "tree", TREE_NODES, needs, DRAFT, stops_early=stops_early, runs=runs, auto=auto
    )


@dataclass(slots=True)
class Draws:
    """The distribution after one place, in draw order: tokens without replacement, the log q of each, and what ranked
    them: log q + Gumbel noise, falling (Kool et al. 2019), or log q itself under distribution `POINT`."""

    token: list[int]
    log_q: list[float]
    score: list[float]
    square: float = 0.0
    """Sum of q^2, the q that its first draw has on average: of a drawn place, for a rule that `squares`."""


@dataclass(slots=True)
class Tree:
    """State of one request's tree while it grows. A place is a node's number in order of drawing, or ROOT."""

    ask: Ask
    reach: int
    """Rows of the text whose K/V the draft's group has."""
    law: Law
    token: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    twin: list[int | None] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    """Row of each place among the tree's rows; places with equal paths share one."""
    word: list[int] = field(default_factory=list)
    """Bit mask per row: the row itself and its ancestors."""
    first: list[int] = field(default_factory=list)
    """The first place of each row."""
    law_row: dict[int, int] = field(default_factory=dict)
    """place -> row of the table with the distribution its children are drawn from (q rules only)."""
    fresh: list[int] = field(default_factory=list)
    """Places whose distribution is wanted next."""
    computed: int = 0
    """Rows whose K/V the draft's group has."""
    places: dict[int, int] = field(default_factory=dict)
    """{node of the forest: place}"""
    said: Sequence[int] = ()
    """In a run: the tokens that it has brought the text so far."""
    memo: Any = None
    """The rule's own."""
    laid: tuple[int, int] | None = None
    """Rows of the text in the latest pass; None: it had the nodes."""
    states: dict[Any, Any] = field(default_factory=dict)
    """{path: what a head hands on to the children of the node there}, () for the root."""

    @property
    def known(self) -> int:
        return self.ask.known + len(self.said)

    def text(self, start: int, stop: int) -> list[int]:
        """Tokens start .. stop of the text."""
        return [*self.ask.request.tokens[: self.ask.known], *self.said][start:stop]

    def slots(self, start: int, stop: int) -> list[int]:
        """Slots of the rows start .. stop, those of the nodes behind those of the text."""
        return self.ask.txn.lease.slots(start, stop)

    @property
    def lagging(self) -> bool:
        return self.reach < self.known

    @property
    def judged_by_q(self) -> bool:
        """A rule will ask for the distributions that nodes were drawn from."""
        return self.law in (Law.WITHOUT_REPLACEMENT, Law.SAMPLED)

    @property
    def left(self) -> int:
        """Nodes that may still be drawn."""
        return self.ask.item.nodes - len(self.token)

    def below(self, place: int) -> int:
        """Depth of the children of `place`."""
        return 1 if place == ROOT else self.depth[place] + 1

    def add(self, parent: int, token: int, twin: int | None = None) -> int:
        """Append a child of `parent`, after its siblings drawn earlier, and return its place."""
        place = len(self.token)
        self.token.append(token)
        self.parent.append(parent)
        self.depth.append(self.below(parent))
        self.twin.append(twin)
        if twin is None:
            row = len(self.word)
            self.word.append((0 if parent == ROOT else self.word[self.rank[parent]]) | 1 << row)
            self.first.append(place)
            self.rank.append(row)
        else:
            self.rank.append(self.rank[twin])
        return place

    def replant(self, paths: Sequence[tuple[int, ...]]) -> None:
        """Make the tree these paths, parents first; computed rows count as far as they stay where they were."""
        same = next((i for i, path in enumerate(paths[: len(self.token)]) if self.path(i) != path), len(paths))
        self.computed = min(self.computed, same)
        for array in (self.token, self.parent, self.depth, self.twin, self.rank, self.word, self.first):
            array.clear()
        places: dict[tuple[int, ...], int] = {(): ROOT}
        for path in paths:
            places[path] = self.add(places[path[:-1]], path[-1])

    def row(self, place: int) -> int:
        """Row of a place, ROOT for the root: equal for places with equal paths."""
        return ROOT if place == ROOT else self.rank[place]

    def path(self, place: int) -> tuple[int, ...]:
        """Tokens from depth 1 down to `place`."""
        out: list[int] = []
        while place != ROOT:
            out.append(self.token[place])
            place = self.parent[place]
        return tuple(reversed(out))

    def examined(self, path: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
        """(place above, rank, was it accepted) of the children that were examined when `path` was accepted: at each
        place that was reached those up to the accepted one."""
        for above, child in zip([ROOT, *path], [*path, None]):
            siblings = [i for i, parent in enumerate(self.parent) if parent == above]
            for rank, sibling in enumerate(siblings):
                yield above, rank, sibling == child
                if sibling == child:
                    break


Laws = Mapping[int, Draws]


class TreeDrafter:
    """The builder. A method gives `expand`, perhaps `plant`, `draws` and `observe`; a head `forward`, too."""

    group = DRAFT
    """The component that computes the distributions, and its K/V group."""
    width = 16
    """Most children of one node."""
    squares = False
    """Does the rule read `Draws.square`?"""

    def __init__(self, host: Host) -> None:
        self.model, self.sampler, self.chunk = host.model(self.group), host.sampler, host.chunk

    def plant(self, tree: Tree) -> None:
        """Prepare a request's tree before anything is drawn: its shape may depend on what is known now."""

    def expand(self, tree: Tree, laws: Laws) -> list[int]:
        """Add children to the places of `laws` (those asked for last), at most `tree.left`; return the places whose
        distributions are wanted next. Under a q rule nothing may depend on a token but through its distribution (D2);
        only a deterministic choice may be revised (`replant`)."""
        raise NotImplementedError

    def observe(self, tree: Tree, path: list[int]) -> None:
        """After the step: the places that were accepted."""

    def propose(self, asks: Sequence[Ask], view: View) -> "TreeProposer | None":
        """Deterministic trees can be drafted in a run: nothing is owed to what was drawn before."""
        lacks = sum(ask.known - ask.txn.lease.frontier[self.group] for ask in asks)
        if {law_of(ask) for ask in asks} != {Law.POINT} or lacks > self.chunk:
            return None
        trees = [Tree(ask, ask.txn.lease.frontier[self.group], Law.POINT) for ask in asks]
        proposer = self.proposer(trees)
        for place, ask in enumerate(asks):
            view.slots[ask.request.id] = (proposer, place)
        return proposer

    def proposer(self, trees: list[Tree]) -> "TreeProposer":
        """What grows these trees between the passes of a run."""
        return TreeProposer(self, trees, [tree.ask.item for tree in trees])

    def table(self, proposer: "TreeProposer") -> ProposerTable | None:
        """What drafts natively in the place of a proposer of this drafter; None: nothing does."""
        return None

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        trees = []
        for ask in asks:
            view.slots.pop(ask.request.id, None)
            if self.asked(ask):
                tree = Tree(ask, self.reach(ask), law_of(ask))
                trees.append(tree)
                if ask.item.nodes:
                    tree.fresh = [ROOT]
                    self.plant(tree)
        return self.forest(trees, self.grow(trees), view)

    def forest(self, trees: Sequence[Tree], tables: Sequence[Tensor], view: View) -> Forest:
        """The candidates of these trees and the distributions that they were drawn from; each tree is remembered in its
        slot."""
        forest = Forest(q=torch.cat(list(tables)) if tables else None)
        for tree in trees:
            start = len(forest)
            for i, token in enumerate(tree.token):
                above, twin = tree.parent[i], tree.twin[i]
                node = forest.add(
                    tree.ask.place,
                    token,
                    ROOT if above == ROOT else start + above,
                    law=tree.law,
                    q_row=tree.law_row.get(above, -1),
                    twin=None if twin is None else start + twin,
                )
                tree.places[node] = i
            view.slots[tree.ask.request.id] = tree
        return forest

    def grow(self, trees: Sequence[Tree]) -> list[Tensor]:
        """Draw the trees; the distributions they were drawn from, where a rule will ask for them."""
        tables: list[Tensor] = []
        while active := [tree for tree in trees if tree.lagging or tree.fresh]:
            share = max(1, self.chunk // (sum(tree.lagging for tree in active) or 1))
            for mine in self.passes(active):
                builder = RowsBuilder()
                places = [(tree, place) for tree in mine for place in self._lay(builder, tree, share)]
                logits = self.forward(builder, mine)
                if places:
                    self._level(places, logits, tables)
        return tables

    def asked(self, ask: Ask) -> bool:
        """Is there anything to compute for this request?"""
        return ask.item.nodes > 0 or ask.behind(self.group)

    def reach(self, ask: Ask) -> int:
        """Rows of the text whose K/V is there."""
        return ask.txn.lease.frontier[self.group]

    def passes(self, trees: Sequence[Tree]) -> Sequence[Sequence[Tree]]:
        """Groups of trees; the rows of one group share a pass."""
        return [trees]

    def forward(self, builder: RowsBuilder, trees: Sequence[Tree]) -> Tensor:
        """Logits of the wanted rows, in a pass over what `_lay` laid of each of these trees."""
        return self.model.forward(builder.build(self.model.device)).logits

    def _lay(self, builder: RowsBuilder, tree: Tree, share: int) -> list[int]:
        """Rows of one tree: what is missing of the text, at most `share`, else all its nodes. Returns the places that
        get a distribution."""
        ask, tree.laid = tree.ask, None
        if tree.lagging:
            start, tree.reach = tree.reach, min(tree.known, tree.reach + share)
            tree.laid = start, tree.reach
            ready = bool(tree.fresh) and not tree.lagging
            text, slots = tree.text(start, tree.reach), tree.slots(start, tree.reach)
            builder.add(
                text,
                slots,
                ask.txn.table,
                start,
                want=None if ready else [],
                shift=ask.shift(start),
                adapter=ask.request.adapter_slot,
            )
            return [ROOT] if ready else []
        rows = tree.first
        slots = tree.slots(tree.known, tree.known + len(rows))
        depths, fresh = [tree.depth[i] for i in rows], sorted(tree.fresh, key=tree.rank.__getitem__)
        want = [tree.rank[place] for place in fresh]
        builder.add(
            [tree.token[i] for i in rows], slots, ask.txn.table, tree.known, depths=depths, words=tree.word, want=want,
            shift=ask.shift(tree.known), adapter=ask.request.adapter_slot,
        )  # fmt: skip
        tree.computed = len(rows)
        return fresh

    def _level(self, places: list[tuple[Tree, int]], logits: Tensor, tables: list[Tensor]) -> None:
        refs = [(tree.ask.request, (*tree.said, *tree.path(place))) for tree, place in places]
        scores = self.sampler.scores(refs, logits)
        if any(tree.judged_by_q for tree, _ in places):
            base = sum(len(table) for table in tables)
            tables.append(self.sampler.probs(refs, scores))
            for i, (tree, place) in enumerate(places):
                if tree.judged_by_q:
                    tree.law_row[place] = base + i
        laws: dict[int, dict[int, Draws]] = {}
        for part in chunks(scores):
            for (tree, place), draws in zip(places[part], self.draws(places[part], scores[part])):
                laws.setdefault(id(tree), {})[place] = draws
        for tree in {id(tree): tree for tree, _ in places}.values():
            new = self.expand(tree, laws[id(tree)])
            tree.fresh = [place for place in new if tree.depth[place] < tree.ask.item.depth]

    def draws(self, places: list[tuple[Tree, int]], scores: Tensor) -> list[Draws]:
        """Draws of each place from its row of scores [L, V]."""
        heat = [SHARP if tree.ask.request.params.greedy else 1.0 for tree, _ in places]
        log_q = (scores.to(torch.float64) / torch.tensor(heat, device=scores.device)[:, None]).log_softmax(-1)
        noisy, drawn = log_q, [i for i, (tree, _) in enumerate(places) if tree.law is not Law.POINT]
        if drawn:
            keys = [tree.ask.key(tree.below(place), place + 1) for tree, place in (places[i] for i in drawn)]
            noise = keys_tensor(keys, scores.device)
            noisy = log_q.index_copy(0, torch.tensor(drawn, device=scores.device), perturbed(log_q[drawn], noise))
        score, token = noisy.topk(min(self.width, scores.shape[-1]), dim=-1)
        square = (2 * log_q).exp().sum(-1).tolist() if self.squares and drawn else [0.0] * len(places)
        rows = zip(token.tolist(), log_q.gather(-1, token).tolist(), score.tolist(), square)
        return [Draws(*cut(token, log_q, score), square) for token, log_q, score, square in rows]

    def learn(self, view: View) -> None:
        """Keep the K/V of accepted nodes that were computed, and let the method see what was accepted."""
        for ask in view.asks:
            tree = view.slots.pop(ask.request.id, None)
            if isinstance(tree, tuple):  # a run's proposer has followed what was accepted
                proposer, place = tree
                view.advance(ask, self.group, min(proposer.trees[place].reach, ask.txn.lease.length))
                continue
            if tree is None:
                continue
            path = [tree.places[node] for node in view.accepted(ask)]
            kept = next((n for n, i in enumerate(path) if tree.rank[i] >= tree.computed), len(path))
            view.advance(ask, self.group, min(tree.reach + kept, ask.txn.lease.length))
            if tree.ask.item.nodes:  # one of several drafters may have been asked for none
                self.observe(tree, path)


@dataclass(slots=True)
class TreeProposer:
    """A method's deterministic trees between the passes of a run, as the method grows them. The twin of
    native/propose_tree.h, which `DySpec` has in its place."""

    drafter: TreeDrafter
    trees: list[Tree]
    """The latest of each text."""
    items: list[Item]

    @property
    def texts(self) -> list[int]:
        return [tree.ask.place for tree in self.trees]

    @property
    def nodes(self) -> list[int]:
        return [item.nodes for item in self.items]

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        grown = []
        for turn in turns:
            place, room = turn.place, turn.room
            last, item = self.trees[place], self.items[place]
            item = item._replace(nodes=min(item.nodes, room, turn.most), depth=min(item.depth, room))
            tree = Tree(last.ask._replace(item=item), last.reach, last.law, said=turn.said)
            if item.chain > 0:
                tree.fresh = [ROOT]
                self.drafter.plant(tree)
                grown.append(tree)
            self.trees[place] = tree
        self.drafter.grow(grown)
        mine = [self.trees[turn.place] for turn in turns]
        return [(tree.token, tree.parent) for tree in mine]

    def kept(self, turns: Sequence[Turn], paths: Sequence[Sequence[int]]) -> None:
        source, target = list[int](), list[int]()
        for turn, path in zip(turns, paths):
            tree = self.trees[turn.place]
            computed = next((n for n, node in enumerate(path) if node >= tree.computed), len(path))
            slots = tree.slots(tree.known, tree.known + len(tree.token))
            source += [slots[node] for node in path[:computed]]
            target += slots[:computed]
            tree.reach += computed
        self.move(source, target)

    def move(self, source: list[int], target: list[int]) -> None:
        """Make the draft model's rows of accepted nodes contiguous."""
        self.drafter.model.move(source, target)

    def native(self) -> ProposerTable | None:
        return self.drafter.table(self)


def law_of(ask: Ask) -> Law:
    """How a tree's nodes are chosen: those of a greedy request are the most probable, unless a rule asks for draws."""
    return Law.POINT if ask.request.params.greedy and ask.law is not Law.SAMPLED else ask.law


def cut(token: list[int], log_q: list[float], score: list[float]) -> tuple[list[int], list[float], list[float]]:
    """Without the tokens that cannot be drawn (they are last, at -inf)."""
    n = next((n for n, x in enumerate(score) if not x > float("-inf")), len(score))
    return token[:n], log_q[:n], score[:n]
