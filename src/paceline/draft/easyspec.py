"""`easyspec`: `model` with layers of the draft model that run side by side (EasySpec, arXiv 2502.02493).

The attention of N neighbouring layers reads one input, that of the first of them, and so can be computed at once; the
first and the last layer stand alone. Such a pass is *fuzzy*, and its distribution is the draft's q, so any rule stays
exact. Its K/V is dropped at the end of the round: the next one begins with an exact pass over what was accepted
(*calibration*), which also gives the first token's distribution.
"""

from collections.abc import Sequence

from torch import Tensor

from paceline.core.component import DRAFT
from paceline.core.forest import Law
from paceline.core.program import Program, inputs
from paceline.core.registry import Need, Offers
from paceline.draft import DRAFTERS, NEED_DRAFT, Host, View
from paceline.draft.model import Growing, ModelDrafter

EASYSPEC_SIZE = 4
"""N, that of the paper."""


def grouped(layers: int, size: int) -> Program:
    """Neighbours of all layers but the first and the last in groups of this size; the last group may be smaller."""
    inner = range(1, layers - 1)
    groups = [tuple(inner[i : i + size]) for i in range(0, len(inner), size)]
    return Program(groups=tuple(group for group in groups if len(group) > 1))


@DRAFTERS.register(
    "easyspec",
    Offers(
        summary="a draft model whose layers run in groups that read one input",
        laws=frozenset({Law.SHARED_NOISE, Law.SAMPLED}),
        shape="chain",
        nodes=8,
        needs=frozenset({NEED_DRAFT, Need(f"{DRAFT}:program", "a draft model that can run its layers in groups")}),
        group=DRAFT,
        stops_early=True,
    ),
)
class EasySpec(ModelDrafter):
    """Not tried by `auto`: on one device a fuzzy pass costs as much as an exact one."""

    size = EASYSPEC_SIZE

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.chain = None  # whole drafts in one native call are exact ones
        self.fuzzy = grouped(inputs(self.model.places), self.size)

    def _extend(self, active: Sequence[Growing], tables: list[Tensor], program: Program | None = None) -> None:
        """Text in an exact pass, drafted tokens in a fuzzy one."""
        lagging = [g for g in active if g.lagging]
        drafting = [g for g in active if not g.lagging]
        if lagging:
            super()._extend(lagging, tables)
        if drafting:
            super()._extend(drafting, tables, self.fuzzy)

    def learn(self, view: View) -> None:
        """Keep exact rows alone: those of the text, not of the draft."""
        for ask in view.asks:
            g = view.slots.pop(ask.request.id, None)
            if g is not None:
                self.hear(ask, view)
                view.advance(ask, DRAFT, min(g.reach, g.known, ask.txn.lease.length))
