"""`medusa`: heads that guess several tokens from one hidden state (Medusa, Cai et al. 2024, arXiv 2401.10774).

    logits_d = U_d (h + SiLU(W_d h))        d = 0 ... depth - 1, h the state behind the target's final norm, of the row
                                            before the root; W_d is zero at first, and U_d the target's head, or its own

With `layers`, h + SiLU(W h) is applied more than once, each time with a W of its own.

The guess at depth d is the same below all parents: heads do not see what was drafted. A node's distribution is its
depth's, so the rules that look at q may judge it.
"""

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from paceline.draft import DRAFTERS
from paceline.draft.grow import HeadDrafter, offers
from paceline.draft.head import HEADS, Head, HeadCard, HeadConfig
from paceline.draft.layers import HeadStage


class ResBlock(nn.Module):
    """x + SiLU(W x), W zero at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


@dataclass(frozen=True, kw_only=True)
class MedusaConfig(HeadConfig):
    layers: int = 1
    """Layers of each depth."""


@HEADS.register("medusa", HeadCard("a guess for each of the next tokens, from one hidden state"))
class Medusa(Head):
    method = "medusa"
    config_type = MedusaConfig
    config: MedusaConfig

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__(config)

        def block() -> nn.Module:
            parts = [ResBlock(config.width) for _ in range(config.layers)]
            return parts[0] if config.layers == 1 else nn.Sequential(*parts)

        self.blocks = nn.ModuleList(block() for _ in range(config.depth))

    def begin(self, context: Tensor, root: Tensor) -> Tensor:
        return context

    def extend(self, state: Tensor, token: Tensor, depth: int) -> Tensor:
        return state

    def draft(self, state: Tensor, depth: int) -> Tensor:
        made: Tensor = self.blocks[depth](state)
        return made

    def stage(self, depth: int) -> HeadStage:
        block: Any = self.blocks[depth]
        return HeadStage([block.linear] if self.config.layers == 1 else [one.linear for one in block])


@DRAFTERS.register("medusa", offers("medusa", "a tree from heads that guess each depth apart"))
class MedusaDrafter(HeadDrafter):
    name = "medusa"
