"""`topk`: the most probable continuations by the draft's own probability, whatever the noise (the dynamic tree of
EAGLE-2, Li et al. 2024, arXiv 2406.16858, section 4, with the best nodes of any depth in place of a beam per level)."""

from paceline.core.forest import Law
from paceline.draft import DRAFTERS
from paceline.draft.dyspec import DySpec
from paceline.draft.tree import offers


@DRAFTERS.register("topk", offers("the draft's most probable paths", Law.POINT, stops_early=True, auto=("ngram+topk",)))
class TopK(DySpec):
    """DySpec's deterministic tree, at any temperature."""
