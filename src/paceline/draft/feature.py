"""Common parts of heads with attention of their own: a pool of K/V and of the target's features, and the trees drafted
from it.

Row t of such a head reads the token x_t and the target's feature of row t - 1, and says what follows x_t. So it depends
on the text up to x_t alone, as the target's rows do, and a prefix can be shared with it. Row 0 has no feature before
it; no row sees its key. A drafted node reads what the head itself put out at the node's parent.

The feature lies in the pool next to the row's K/V: after a prefix hit it is the only copy for the last shared row.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from paceline.attend.fused import Fused
from paceline.attend.reference import Reference
from paceline.core.component import TARGET, Ability, Embeds
from paceline.core.errors import CheckpointError
from paceline.core.forest import Forest
from paceline.core.proposer import ProposerTable
from paceline.core.rows import Out, Rows, RowsBuilder
from paceline.draft import Ask, Host, View
from paceline.draft.dyspec import TREE_PASSES, DySpec, prices
from paceline.draft.feature_runs import FeatureProposer, NativeFeatureLayer, table_state
from paceline.draft.layers import KvPool, bytes_of
from paceline.draft.model import SHARP, lacking
from paceline.draft.tree import Tree, TreeProposer
from paceline.model import pages
from paceline.model.decoder import unpacked
from paceline.model.native import NativeDecoder
from paceline.model.rotary import Rotary
from paceline.model.spec import ModelSpec
from paceline.native.structs import integers_in


class Headless(Fused):
    """Attention that leaves out row 0 of every text."""

    def prepare(self, rows: Rows) -> None:
        self.lone = None
        Reference.prepare(self, rows)

    def mask(self, seen: Tensor, position: Tensor, key: Tensor, window: int | None) -> Tensor:
        return super().mask(seen & (key[:, None, :] > 0), position, key, window)


class FeatureHead:
    """A component: K/V of `spec.layers` and a feature of `spec.hidden` numbers for each row. A method gives `fuse` and
    `forward`."""

    abilities = frozenset[Ability]()
    places = frozenset[str]()
    device = torch.device("cpu")

    def __init__(
        self, spec: ModelSpec, taps: Sequence[str], width: int, vocab: int, numbers: int, dtype: torch.dtype
    ) -> None:
        """`width`, `vocab`: the target's; `numbers`: weights that a pass reads; `dtype`: of weights and pool."""
        self.spec, self.taps, self.width, self.vocab_size = spec, tuple(taps), width, vocab
        self.max_len, self.dtype = spec.max_len, dtype
        self.weight_bytes = numbers * dtype.itemsize
        self.rotary = Rotary(spec.layers[0].attention.rope, self.device, torch.float32, spec.max_len + 64)
        self.native: NativeFeatureLayer | None = None
        """Its layer, where the native library has it. A method sets it."""
        self.pool: KvPool | NativeDecoder
        self.kv_bytes_per_token = (spec.kv_width + spec.hidden) * self.dtype.itemsize
        self.target: Embeds | None = None

    def allocate(self, blocks: int, block_size: int) -> None:
        spec = self.spec
        self.features = pages.tensor((blocks * block_size, spec.hidden), self.dtype, self.device)
        if self.native is not None:
            self.native.decoder.allocate(blocks, block_size)
            self.pool = self.native.decoder
            return
        self.pool = KvPool(len(spec.layers), spec.kv_heads, spec.head_dim, self.dtype)
        windows = [layer.attention.window for layer in spec.layers]
        self.attend = Headless(self.pool.allocate(blocks, block_size), windows, spec.heads, spec.attention_scale, None)

    def move(self, source: list[int], target: list[int]) -> None:
        if source:
            self.pool.move(source, target)
            old, new = torch.tensor([source, target])
            self.features[new] = self.features[old]

    def read(self, slots: list[int]) -> bytes:
        return self.pool.read(slots) + bytes_of(self.features[torch.tensor(slots, dtype=torch.int64)])

    def write(self, slots: list[int], packed: bytes) -> None:
        size = max(0, len(packed) - len(slots) * self.spec.hidden * self.dtype.itemsize)
        self.pool.write(slots, packed[:size])
        features = unpacked(packed[size:], (len(slots), self.spec.hidden), self.dtype)
        self.features[torch.tensor(slots, dtype=torch.int64)] = features

    def bind(self, target: Embeds) -> None:
        """Share the embedding and head of this model."""
        self.target = target
        if self.native is not None and not self.native.bind(target, self.features):
            raise CheckpointError("The head is packed for the native decoder, but its target is not; load both alike.")

    def keep(self, slots: Sequence[int], hidden: Mapping[str, Tensor]) -> None:
        """Store the features of these rows, from the target's hidden states {tap: [N, width]}."""
        if slots:
            self.features[torch.tensor(slots)] = self.fuse([hidden[tap] for tap in self.taps]).to(self.dtype)

    def before(self, slots: Sequence[int]) -> Tensor:
        """Features [N, hidden] in these slots; -1: none, all zeros."""
        at = torch.tensor(slots, dtype=torch.int64)
        return self.features[at.clamp(min=0)].float().masked_fill_((at < 0)[:, None], 0.0)

    def fuse(self, hidden: Sequence[Tensor]) -> Tensor:
        """Features [N, hidden] of hidden states, one tensor [N, width] a tap."""
        raise NotImplementedError

    def drafted(self, token: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What the rows of drafted nodes read, of their tokens [N] and what their parents put out [N, hidden]."""
        return token, hidden

    def forward(self, rows: Rows) -> Out:
        """As a model's; `rows.hidden` [T, hidden]: what each row reads in addition to its token; `leave`: what it puts
        out."""
        raise NotImplementedError


class FeatureDrafter(DySpec):
    """Trees on a `FeatureHead`. Chances are learned as `dyspec` learns them."""

    squares = True

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.head = cast(FeatureHead, host.components[self.group])
        self.head.bind(host.embeds(TARGET))

    def propose(self, asks: Sequence[Ask], view: View) -> FeatureProposer | None:
        if not all(self.catch_up(ask, view) for ask in asks):
            return None
        return cast(FeatureProposer | None, super().propose(asks, view))

    def proposer(self, trees: list[Tree]) -> FeatureProposer:
        return FeatureProposer(self, trees, [tree.ask.item for tree in trees])

    def table(self, proposer: TreeProposer) -> ProposerTable | None:
        native, trees = self.head.native, proposer.trees
        if native is None or min(tree.known for tree in trees) < 2:  # a text of one token has no feature yet
            return None
        layer, behind, held = native.drafting(lacking(trees), max(tree.ask.txn.rows for tree in trees))
        least, gain = zip(*map(prices, proposer.items))
        reach, limits = integers_in([tree.reach for tree in trees]), (self.width, TREE_PASSES, SHARP)
        state, own = table_state(layer, behind, len(self.head.taps), proposer.nodes, least, gain, reach, limits)

        def done() -> None:
            for tree, rows in zip(trees, reach):
                tree.reach = rows

        return ProposerTable("paceline_features", state, (held, own), done, taps=self.head.taps)

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        """For the requests whose features are all here. While a prompt is computed there is nothing to hang a tree on:
        the features of its last rows come with this very pass."""
        able = []
        for ask in asks:
            view.slots.pop(ask.request.id, None)
            if self.catch_up(ask, view):
                one = ask.item._replace(given=1, nodes=ask.item.nodes if ask.item.given == 1 else 0)
                able.append(ask._replace(item=one))
        return super().draft(able, view)

    def catch_up(self, ask: Ask, view: View) -> bool:
        """Store the features of the committed rows that the group lacks. True when none is missing any more."""
        lease, held = ask.txn.lease, view.held[ask.place]
        start, base = lease.frontier[self.group], ask.txn.base
        if base - start > min((len(states) for states in held.values()), default=0):
            return False
        if base > start:
            self.head.keep(lease.slots(start, base), {tap: held[tap][start - base :] for tap in self.head.taps})
        return True

    def forward(self, builder: RowsBuilder, trees: Sequence[Tree]) -> Tensor:
        rows = builder.build(self.head.device)
        rows.hidden = torch.cat([self.entering(tree) for tree in trees])
        for tree, segment in zip(trees, rows.segments):
            if tree.laid is None:
                at = slice(segment.start, segment.start + segment.rows)
                rows.token[at], rows.hidden[at] = self.head.drafted(rows.token[at], rows.hidden[at])
        out = self.head.forward(rows)
        assert out.leave is not None
        for tree, segment in zip(trees, rows.segments):
            mine = out.leave[segment.start : segment.start + segment.rows]
            if tree.laid is None:
                tree.states.update(zip(map(tree.path, tree.first), mine))
            elif not tree.lagging:
                tree.states[()] = mine[-1]
        return out.logits

    def entering(self, tree: Tree) -> Tensor:
        """Inputs of the drafted rows in addition to their tokens."""
        if tree.laid is None:
            return torch.stack([tree.states[tree.path(tree.parent[place])] for place in tree.first])
        start, stop = tree.laid
        slots = tree.slots(max(0, start - 1), stop - 1)
        return self.head.before([-1] * (start == 0) + slots)

    def learn(self, view: View) -> None:
        """Keep the K/V of the text's rows, with their features; drop that of nodes, which was computed without
        features."""
        for ask in view.asks:
            tree = view.slots.pop(ask.request.id, None)
            if isinstance(tree, tuple):
                proposer, place = tree
                tree = proposer.trees[place]
            if not isinstance(tree, Tree):
                continue
            lease, base = ask.txn.lease, ask.txn.base
            reach = min(tree.reach, lease.length)
            if reach > base:
                states: Mapping[str, Tensor] = view.hidden.get(ask.place, {})
                reach = reach if all(tap in states for tap in self.head.taps) else base
                self.head.keep(lease.slots(base, reach), {tap: states[tap][: reach - base] for tap in states})
            view.advance(ask, self.group, reach)
            if tree.places:
                self.observe(tree, [tree.places[node] for node in view.accepted(ask)])
