"""Heads within runs: trees between the passes, each from the hidden state of the row before its root.
native/propose_head.h is the twin, for heads whose depths are `Stage`s."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.core.component import Embeds
from paceline.core.proposer import Draft, ProposerTable, Turn
from paceline.core.rows import RowsBuilder
from paceline.draft.head import Head
from paceline.draft.layers import PackedLinear
from paceline.draft.tree import TreeProposer
from paceline.model.packed import Packed
from paceline.native.build import unit
from paceline.native.structs import CHeads, CModel, CStage, addresses, integers_in

if TYPE_CHECKING:
    from paceline.draft.grow import HeadDrafter

MAX_CHILDREN = 10
"""Most children of one node, as in propose_head.h."""

Counts = Sequence[Sequence[int]]
"""By depth and rank."""


@dataclass(slots=True)
class HeadProposer(TreeProposer):
    drafter: "HeadDrafter"
    context: dict[int, Tensor]
    """{text: [H], what its next tree begins with}: at first the hidden state before the run, or what the head's layers
    made of it."""
    entered: dict[int, int] = field(default_factory=dict)
    """{text: rows of the run whose K/V the head has}"""

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        head, trees = self.drafter.head, [self.trees[turn.place] for turn in turns]
        roots = [turn.said[-1] if turn.said else tree.ask.request.tokens[-1] for turn, tree in zip(turns, trees)]
        self.enter([turn for turn in turns if len(turn.said) > self.entered.get(turn.place, 0)])
        contexts = [self.context[turn.place].to(head.compute) for turn in turns]
        with torch.inference_mode():
            self.drafter.begin([t.ask.place for t in trees], contexts, roots)
            return TreeProposer.propose(self, turns)

    def enter(self, turns: Sequence[Turn]) -> None:
        """Read the rows of the tokens that the run has committed since."""
        head, tap = self.drafter.head, self.drafter.head.taps[0]
        if not head.kv_layers:
            self.context.update((turn.place, turn.hidden[tap][-1].clone()) for turn in turns)
        if not head.kv_layers or not turns:
            return
        builder, hidden, ends = RowsBuilder(), list[Tensor](), list[int]()
        for turn in turns:
            ask, since = self.trees[turn.place].ask, self.entered.get(turn.place, 0)
            start, count = ask.txn.base + since, len(turn.said) - since
            slots = ask.txn.lease.slots(start, start + count)
            builder.add([0] * count, slots, ask.txn.table, start, want=[], shift=ask.shift(start))
            hidden.append(turn.hidden[tap][since:])
            ends.append(sum(map(len, hidden)) - 1)
            self.entered[turn.place] = len(turn.said)
        said = [token for turn, part in zip(turns, hidden) for token in turn.said[len(turn.said) - len(part) :]]
        made = head.contexts(builder.build(), torch.cat(hidden).to(head.compute), self.drafter.embed(said))
        self.context.update((turn.place, made[end]) for turn, end in zip(turns, ends))

    def kept(self, turns: Sequence[Turn], paths: Sequence[Sequence[int]]) -> None:
        for turn, path in zip(turns, paths):
            self.drafter.observe(self.trees[turn.place], list(path))


class CompiledHead:
    """A head in the native library's form, if all of its matrices and its target are packed for it."""

    def __init__(self, head: Head, target: Embeds) -> None:
        self.head, self.target = head, getattr(target, "model", None)
        self.models, self.blocks = list[CModel](), list[Any]()
        """What the stages point to."""
        self.sees, self.words = False, head.words
        stages = [self.stage(depth) for depth in range(head.config.depth)]
        made = [stage for stage in stages if stage is not None]
        self.stages = (CStage * len(made))(*made) if len(made) == len(stages) else None

    def stage(self, depth: int) -> CStage | None:
        stage, outputs = self.head.stage(depth), getattr(self.head, "output", None)
        if stage is None or not isinstance(self.target, CModel):
            return None
        self.sees = stage.sees
        inputs = [self.place(matrix) for matrix in stage.inputs or ()]
        blocks = [self.place(matrix) for matrix in stage.blocks]
        output = self.place(outputs[min(depth, len(outputs) - 1)]) if outputs else ctypes.addressof(self.target)
        if None in (*inputs, *blocks, output):
            return None
        self.blocks.append((ctypes.c_void_p * len(blocks))(*blocks))
        return CStage(*(inputs or (None, None)), len(blocks), ctypes.addressof(self.blocks[-1]), output)

    def place(self, matrix: Any) -> int | None:
        """Address of a model whose `head` is this matrix."""
        packed = matrix.linear if isinstance(matrix, PackedLinear) else None
        if not isinstance(packed, Packed):
            return None
        rows = 2 if packed.c.form else int(packed.scale is not None)
        self.models.append(CModel(int8=rows, unit=unit(), head=packed.c))
        return ctypes.addressof(self.models[-1])

    def table(
        self,
        proposer: HeadProposer,
        nodes: Sequence[int],
        tree: Sequence[tuple[int, ...]],
        observe: Callable[[Counts, Counts], None],
    ) -> ProposerTable | None:
        """The twin of a proposer. `tree`: paths of ranks, the most probable first; a text has the first of them, at
        most `nodes`; `observe`: called after the run with how often ranks were tried, and hit."""
        if self.stages is None:
            return None
        for model in self.models:
            model.threads = torch.get_num_threads()
        at, depth = {path: place for place, path in enumerate(tree)}, self.head.config.depth
        tries, hits = (integers_in([0] * (depth * MAX_CHILDREN)) for _ in range(2))
        counts = (
            integers_in(nodes),
            integers_in([item.depth for item in proposer.items]),
            integers_in([at.get(path[:-1], -1) for path in tree]),
            integers_in([path[-1] for path in tree]),
            *(tries, hits),
        )
        text, asks = self.head.native_text, [tree.ask for tree in proposer.trees]
        if self.head.kv_layers and text is None:
            return None
        first = torch.stack([proposer.context[place] for place in range(len(asks))]).float().contiguous()
        width = max(len(ask.txn.table) for ask in asks)
        tables = integers_in([block for ask in asks for block in (*ask.txn.table, *[0] * width)[:width]])
        shifts = integers_in([ask.shift(ask.txn.base) for ask in asks])
        entered = integers_in([0] * len(asks))
        if text is not None:
            text.decoder.reach(max(ask.txn.base + ask.txn.rows for ask in asks) + 1)
        words = (0, None) if self.words is None else (len(self.words), self.words.data_ptr())
        state = CHeads(
            ctypes.pointer(self.target), None, self.head.width, depth, self.sees, ctypes.addressof(self.stages), *words,
            first.data_ptr(), *addresses(*counts), None, None if text is None else text.model(), width,
            *addresses(tables, shifts, entered),
        )  # fmt: skip

        def done() -> None:
            places = [slice(d * MAX_CHILDREN, (d + 1) * MAX_CHILDREN) for d in range(depth)]
            proposer.entered = dict(enumerate(entered))
            observe([tries[place] for place in places], [hits[place] for place in places])

        held = (*counts, first, tables, shifts, entered)
        return ProposerTable("paceline_heads", state, held, done, taps=(self.head.taps[0],))
