"""SpecDec++'s acceptance head (Huang et al. 2024, arXiv 2405.19715, section 4.1): will a drafted token be kept?"""

from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.core.registry import Need
from paceline.draft.companion import COMPANIONS, Companion, need

NEED_ACCEPTANCE: Need = need("acceptance", "an acceptance head")


@COMPANIONS.register("acceptance", "will a drafted token be kept?")
class AcceptanceHead(Companion):
    """`blocks` residual SiLU layers and two logits, on the draft model's state behind its final norm.

    `risk`: the threshold h of the paper: a draft ends where the chance that one of its tokens is rejected is above it.
    `least`, `most`: bounds of a draft's length in tokens.
    """

    kind = "acceptance"

    def __init__(self, width: int, blocks: int = 3, risk: float = 0.7, least: int = 2, most: int = 20) -> None:
        super().__init__(width)
        if not 0 <= risk <= 1 or not 0 <= least <= most or blocks < 0:
            raise ValueError(f"risk {risk} must be in [0, 1], and least {least} at most most {most}")
        self.risk, self.least, self.most = risk, least, most
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.out = nn.Linear(width, 2)

    def config(self) -> dict[str, Any]:
        return {
            "width": self.width, "blocks": len(self.blocks), "risk": self.risk, "least": self.least, "most": self.most,
        }  # fmt: skip

    def misfit(self, target: Any, draft: Any) -> str | None:
        if draft.width != self.width:
            return f"reads hidden states of {self.width} numbers, but the draft model's have {draft.width}"
        return None

    @classmethod
    def sketch(cls, width: int, seed: int) -> Self:
        made, stream = cls(width, blocks=1), torch.Generator().manual_seed(seed)
        for _, weight in sorted(made.named_parameters()):
            weight.data.copy_(0.1 * torch.randn(weight.shape, generator=stream))
        return made.settle()

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, 2] of the states [N, H] of the rows that have read a token: (it is rejected, it is kept)."""
        x = hidden.float()
        for block in self.blocks:
            x = x + F.silu(block(x))
        made: Tensor = self.out(x)
        return made

    def forward(self, hidden: Tensor) -> Tensor:
        """[N]: chances that the tokens which these rows have read are kept, given that those before them are."""
        return self.logits(hidden).softmax(-1)[:, 1]
