"""`specdec`: the draft model's chain ends where a head expects a rejection (SpecDec++, Huang et al. 2024, arXiv
2405.19715, algorithm 1).

The head reads the draft model's state of the row that has read token j, and says how likely token j is kept. Drafting
ends when 1 - a_1 a_2 ... a_j exceeds the head's `risk`; token j + 1, drawn in the same pass, is submitted too. What the
target would say is not asked, so every rule stays exact.
"""

from collections.abc import Sequence
from typing import cast

from torch import Tensor

from paceline.core.component import DRAFT
from paceline.core.forest import Law
from paceline.core.registry import Offers
from paceline.draft import DRAFTERS, NEED_DRAFT, Ask, Host
from paceline.draft.acceptance import NEED_ACCEPTANCE, AcceptanceHead
from paceline.draft.model import Growing, ModelDrafter


@DRAFTERS.register(
    "specdec",
    Offers(
        summary="a small model drafts until a head expects a rejection",
        laws=frozenset({Law.SHARED_NOISE, Law.SAMPLED}),
        shape="chain",
        nodes=20,
        needs=frozenset({NEED_DRAFT, NEED_ACCEPTANCE}),
        group=DRAFT,
        stops_early=True,
    ),
)
class SpecDecDrafter(ModelDrafter):
    taps = ("post_norm",)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.head, self.chain = cast(AcceptanceHead, host.components["acceptance"]), None

    def begin(self, ask: Ask, reach: int) -> Growing:
        head = self.head
        return Growing(ask, reach, least=head.least, most=min(head.most, ask.item.chain), worth=1 - head.risk)

    def chances(
        self, drawing: Sequence[Growing], scores: Tensor, drawn: Sequence[int], hidden: Tensor | None
    ) -> list[float]:
        """Chance of acceptance of the token that each row has read; 1 for the row before a draft, which has read a
        token of the text."""
        assert hidden is not None
        return [chance if g.tokens else 1.0 for g, chance in zip(drawing, self.head(hidden).tolist())]
