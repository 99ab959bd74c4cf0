"""Heads within runs: trees between the passes, each from the hidden state of the row before its root.
native/propose_head.h is the twin, for heads whose depths are `Stage`s."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.core.component import Embeds
from paceline.core.proposer import Draft, ProposerTable, Turn
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
    first: Sequence[Tensor]
    """[H] of each text: the hidden state before the run."""

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        head, trees = self.drafter.head, [self.trees[turn.place] for turn in turns]
        contexts = [turn.hidden[head.taps[0]][-1] if turn.said else self.first[turn.place] for turn in turns]
        roots = [turn.said[-1] if turn.said else tree.ask.request.tokens[-1] for turn, tree in zip(turns, trees)]
        with torch.inference_mode():
            self.drafter.begin([t.ask.place for t in trees], [it.to(head.compute) for it in contexts], roots)
            return TreeProposer.propose(self, turns)

    def kept(self, turns: Sequence[Turn], paths: Sequence[Sequence[int]]) -> None:
        for turn, path in zip(turns, paths):
            self.drafter.observe(self.trees[turn.place], list(path))


class CompiledHead:
    """A head as the native library takes it, where all of its matrices and its target lie natively."""

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
        held = (
            integers_in(nodes),
            integers_in([item.depth for item in proposer.items]),
            integers_in([at.get(path[:-1], -1) for path in tree]),
            integers_in([path[-1] for path in tree]),
            *(tries, hits),
        )
        first = torch.stack(list(proposer.first)).float().contiguous()
        words = (0, None) if self.words is None else (len(self.words), self.words.data_ptr())
        state = CHeads(
            ctypes.pointer(self.target), None, self.head.width, depth, self.sees, ctypes.addressof(self.stages), *words,
            first.data_ptr(), *addresses(*held),
        )  # fmt: skip

        def done() -> None:
            places = [slice(d * MAX_CHILDREN, (d + 1) * MAX_CHILDREN) for d in range(depth)]
            observe([tries[place] for place in places], [hits[place] for place in places])

        return ProposerTable("paceline_heads", state, (first, held), done, taps=(self.head.taps[0],))
