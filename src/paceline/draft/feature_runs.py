"""Heads on features within runs, and natively in single steps; native/propose_feature.h is the proposer in C++."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.core.component import Embeds
from paceline.core.proposer import Draft, Turn
from paceline.core.rows import Out, Rows
from paceline.draft.native_layers import native_decoder, rounding
from paceline.draft.tree import TreeProposer
from paceline.model.blocks import Block
from paceline.model.linear import Packing
from paceline.model.native import norm_of
from paceline.model.norms import Norm
from paceline.model.packed import Packed
from paceline.model.spec import ModelSpec
from paceline.native.build import unit
from paceline.native.structs import CFeatureLayer, CFeatureTrees, CModel, CNorm, CPass, addresses, integers_in, reals_in

if TYPE_CHECKING:
    from paceline.draft.feature import FeatureDrafter

FIRST_ROW = (0, 1)
"""Slots that no row sees: the first row of a text has no feature before it."""


@dataclass(slots=True)
class FeatureProposer(TreeProposer):
    """Features come with the tokens of the run, K/V with the next draft."""

    drafter: "FeatureDrafter"
    stored: dict[int, int] = field(default_factory=dict)
    """{text: tokens of the run before which the rows' features are stored}"""

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        for turn in turns:
            ask, since = self.trees[turn.place].ask, self.stored.get(turn.place, 0)
            base = ask.txn.base
            slots = ask.txn.lease.slots(base + since, base + len(turn.said))
            self.drafter.head.keep(slots, {tap: states[since:] for tap, states in turn.hidden.items()})
            self.stored[turn.place] = len(turn.said)
        with torch.inference_mode():
            return TreeProposer.propose(self, turns)

    def kept(self, turns: Sequence[Turn], paths: Sequence[Sequence[int]]) -> None:
        """The rows of nodes were computed without the target's features, so they are computed again."""


@dataclass(frozen=True, slots=True)
class LayerParts:
    """A layer, as the native library takes it, and what lies around it. `fc`: of the taps, or of the layer's input;
    `head`: None for the target's."""

    block: Block
    fc: Packed
    head: Packed | None
    embedding_norm: Norm | None
    feature_norm: Norm | None
    norm: Norm | None


class NativeFeatureLayer:
    """The layer of a head as a decoder of one, and its passes, each one native call."""

    def __init__(
        self, spec: ModelSpec, parts: LayerParts, packing: Packing, *, fused: bool, normed: bool, words: Tensor | None
    ) -> None:
        """`words`: ids int64 of a draft vocabulary, of which `spec.vocab` is the size."""
        self.parts, self.words, self.fused, self.normed = parts, words, fused, normed
        norm = parts.norm or parts.block.ffn_norm
        assert norm is not None
        self.decoder = native_decoder(spec, [parts.block], norm, parts.head or parts.fc, packing)
        self.model: CModel = self.decoder.model
        self.model.norm = norm_of(parts.norm) if parts.norm else CNorm()
        self.fuse = CModel(int8=rounding(parts.fc), unit=unit(), head=parts.fc.c)
        self.c: CFeatureLayer | None = None

    def bind(self, target: Embeds, features: Tensor) -> bool:
        """Whether it runs on this target's embeddings, and output matrix if it has none. `features` [slots, hidden]:
        the pool."""
        model = getattr(target, "model", None)
        if not isinstance(model, CModel):
            return False
        if self.parts.head is None and rounding_of(model) != self.model.int8:
            return False
        self.target = model
        embedding, feature = (
            CNorm() if norm is None else norm_of(norm) for norm in (self.parts.embedding_norm, self.parts.feature_norm)
        )
        self.c = CFeatureLayer(
            ctypes.pointer(self.model), ctypes.pointer(model), ctypes.pointer(self.fuse), self.fused, self.normed,
            embedding, feature, features.data_ptr(), None if self.words is None else self.words.data_ptr(),
        )  # fmt: skip
        return True

    def forward(self, rows: Rows) -> Out:
        """As `FeatureHead.forward`; logits over the draft vocabulary."""
        assert self.c is not None and rows.hidden is not None
        self.follow()
        feature = rows.hidden.float().contiguous()
        states = torch.empty(rows.count, self.decoder.width)
        call, _, logits, _held = self.decoder.call(self.unseen(rows), {"pre_norm": states})
        self.decoder.library.paceline_features(self.c, call, feature.data_ptr())
        return Out(logits, leave=states)

    def drafting(self, rows: Rows, further: int) -> tuple[CFeatureLayer, CPass, Any]:
        """As `Chains.drafting`."""
        assert self.c is not None
        self.follow()
        _, behind, held = self.decoder.drafting(self.unseen(rows), further)
        self.fuse.threads = self.model.threads
        return self.c, behind, held

    def follow(self) -> None:
        """Take the target's output matrix, where it lies now."""
        if self.parts.head is None:
            self.model.head, self.model.vocab = self.target.head, self.target.vocab
            self.model.logit_cap, self.model.logit_scale = self.target.logit_cap, self.target.logit_scale

    @staticmethod
    def unseen(rows: Rows) -> Rows:
        """These rows, which enter by themselves, and none of which sees the first of its text."""
        segments = [segment._replace(hidden=(FIRST_ROW, *segment.hidden)) for segment in rows.segments]
        return replace(rows, hidden=None, segments=segments)


def rounding_of(model: CModel) -> int:
    """`rounding` of a model's output matrix."""
    return 2 if model.head.form else int(bool(model.head.scale))


def table_state(
    layer: CFeatureLayer, behind: CPass, taps: int, nodes: Sequence[int], least: Sequence[float],
    gain: Sequence[float], reach: Any, limits: tuple[int, int, float],
) -> tuple[CFeatureTrees, Any]:  # fmt: skip
    """The state of the native proposer, and what must outlive it."""
    held = integers_in(nodes), reals_in(least), reals_in(gain), reach, integers_in([0] * len(nodes))
    state = CFeatureTrees(ctypes.pointer(layer), ctypes.pointer(behind), None, taps, *addresses(*held), *limits)
    return state, held
