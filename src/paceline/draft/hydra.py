"""`hydra`: Medusa's heads that also see the tokens drafted above them (Hydra and Hydra++, Ankner et al. 2024,
arXiv 2402.05109).

    z_d = [s; e(root); e(c_1); ...; e(c_d)]      e the target's embeddings, d = 0 ... depth - 1
    y = A_d z_d + SiLU(B_d z_d);  y = y + SiLU(W y), `layers` - 1 times;  logits = U y

`hydra`: s is the target's state behind its final norm, of the row before the root, and there is one layer. `hydra++`
(`prefix: true`, `layers: 4`): s is what a decoder layer of the head's own makes of these states over the whole text.
A starts as [1 0 ... 0] and B at zero, so that an untrained head is the target's own head on s. The layers of a head do
not share weights; the authors' code repeats one module, and so do its released weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.draft import DRAFTERS
from paceline.draft.grow import HeadDrafter, offers
from paceline.draft.head import HEADS, Head, HeadCard, HeadConfig
from paceline.draft.layers import DraftLayer, HeadStage, RMSNorm
from paceline.draft.medusa import ResBlock


@dataclass(frozen=True, kw_only=True)
class HydraConfig(HeadConfig):
    layers: int = 1
    """Layers of each depth's network."""
    prefix: bool = False
    """Hydra++: a decoder layer of its own over the text."""
    grounded: bool = True
    """Does a depth see the tokens above it? Without, the heads are Medusa's, to compare."""


class Grounded(nn.Module):
    """One depth's network: [N, inputs] -> [N, width]."""

    def __init__(self, inputs: int, width: int, layers: int) -> None:
        super().__init__()
        self.straight, self.bent = nn.Linear(inputs, width), nn.Linear(inputs, width)
        with torch.no_grad():
            self.straight.weight.zero_()[:, :width].fill_diagonal_(1.0)
            for weight in (self.straight.bias, self.bent.weight, self.bent.bias):
                weight.zero_()
        self.blocks = nn.ModuleList(ResBlock(width) for _ in range(layers - 1))

    def forward(self, z: Tensor) -> Tensor:
        y: Tensor = self.straight(z) + F.silu(self.bent(z))
        for block in self.blocks:
            y = block(y)
        return y


@HEADS.register("hydra", HeadCard("guesses that see what was drafted above them"))
class Hydra(Head):
    method = "hydra"
    config_type = HydraConfig
    config: HydraConfig

    def __init__(self, config: HydraConfig) -> None:
        super().__init__(config)
        width = config.width
        self.depths = nn.ModuleList(Grounded((d + 2) * width, width, config.layers) for d in range(config.depth))
        if config.prefix:
            self.prefix, self.norm = DraftLayer(config), RMSNorm(width, config.eps)
            nn.init.zeros_(self.prefix.o_proj.weight)
            nn.init.zeros_(self.prefix.down_proj.weight)

    @property
    def kv_layers(self) -> int:
        return int(self.config.prefix)

    def enrich(self, hidden: Tensor, following: Tensor, attend: Any) -> Tensor:
        made: Tensor = self.norm(self.prefix(hidden, 0, attend)) if self.config.prefix else hidden
        return made

    def begin(self, context: Tensor, root: Tensor) -> Tensor:
        return torch.cat((context, root), -1)

    def extend(self, state: Tensor, token: Tensor, depth: int) -> Tensor:
        return torch.cat((state, token), -1)

    def draft(self, state: Tensor, depth: int) -> Tensor:
        if not self.config.grounded:
            width = self.config.width
            state = torch.cat((state[:, :width], torch.zeros_like(state[:, width:])), -1)
        made: Tensor = self.depths[depth](state)
        return made

    def text_layers(self) -> tuple[Sequence[DraftLayer], RMSNorm] | None:
        return ([self.prefix], self.norm) if self.config.prefix else None

    def stage(self, depth: int) -> HeadStage | None:
        if not self.config.grounded:
            return None
        it: Any = self.depths[depth]
        return HeadStage([block.linear for block in it.blocks], (it.straight, it.bent), sees=True)

    @classmethod
    def small(cls) -> dict[str, Any]:
        return {**super().small(), "prefix": True, "layers": 2, "draft_vocab": 5}


@DRAFTERS.register("hydra", offers("hydra", "a tree from heads that see the tokens drafted above them", keeps=True))
class HydraDrafter(HeadDrafter):
    name = "hydra"
