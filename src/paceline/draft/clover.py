"""`clover`: a recurrence over drafted tokens on a state that a block of its own makes once a round (Clover, Xiao et al.
2024, arXiv 2405.00263; Clover-2, arXiv 2408.00264).

    Mix(h, e): per head j a gate a_j = cos(q_j, k_j), q = Wq norm(h), k = Wk e;  h + [a_j v_j], v = Wv e
    once a row:   u_t = Mix1(g_t, e(x_{t+1})),  c = norm(Block(u_1 ... u_t))
    depth 0:      o = norm(M1 c)
    below:        s' = Mix2(s, e(token)),  o = norm(M2 [s'; e(token)])

g is the state before the target's final norm; s is c at the root, and s' goes to a node's children.

`version: 2` is this, with two layers in the block; all depths below the first share their weights, so it drafts deeper
than it was trained. `version: 1` is Clover as far as its paper says: one layer, no Mix1, and at every depth a residual
layer of its own in place of M1 and M2. e is the target's embedding: the authors take the rows of its head, which is the
same where the two are tied, and a second copy of them where not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.draft import DRAFTERS
from paceline.draft.grow import HeadDrafter, offers
from paceline.draft.head import HEADS, Head, HeadCard, HeadConfig
from paceline.draft.layers import DraftLayer, RMSNorm
from paceline.draft.medusa import ResBlock


@dataclass(frozen=True, kw_only=True)
class CloverConfig(HeadConfig):
    version: int = 2
    layers: int = 2
    """Layers of the block."""
    recurrent: bool = True
    """Without, every depth reads the root's state: to compare."""


class Mix(nn.Module):
    """A token's value added to a state, by one gate a head."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        width = config.width
        self.gates = gcd(width, max(1, config.heads))
        self.norm = RMSNorm(width, config.eps)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        nn.init.eye_(self.q.weight)
        nn.init.eye_(self.k.weight)
        nn.init.normal_(self.v.weight, std=0.01)
        for part in (self.q, self.k, self.v):
            nn.init.zeros_(part.bias)

    def forward(self, h: Tensor, e: Tensor) -> Tensor:
        gate = self.gate(h, e)
        value: Tensor = self.v(e)
        return h + (gate[..., None] * value.view(len(h), self.gates, -1)).flatten(1)

    def gate(self, h: Tensor, e: Tensor) -> Tensor:
        """[N, gates], each in [-1, 1]."""
        q, k = (part.float().view(len(h), self.gates, -1) for part in (self.q(self.norm(h)), self.k(e)))
        return F.cosine_similarity(q, k, -1)


@HEADS.register("clover", HeadCard("a recurrence over drafted tokens on a state enriched once a round"))
class Clover(Head):
    method = "clover"
    config_type = CloverConfig
    config: CloverConfig
    taps: tuple[str, ...] = ("pre_norm",)

    def __init__(self, config: CloverConfig) -> None:
        super().__init__(config)
        width, second = config.width, config.version == 2
        self.block = nn.ModuleList(DraftLayer(config) for _ in range(config.layers))
        for layer in self.block:
            assert isinstance(layer, DraftLayer)
            nn.init.zeros_(layer.o_proj.weight)
            nn.init.zeros_(layer.down_proj.weight)
        self.norm, self.again = RMSNorm(width, config.eps), Mix(config)
        self.norms = nn.ModuleList(RMSNorm(width, config.eps) for _ in range(2))
        if second:
            self.first = Mix(config)
            self.root, self.below = nn.Linear(width, width), nn.Linear(2 * width, width)
            nn.init.eye_(self.root.weight)
            nn.init.eye_(self.below.weight)
            nn.init.zeros_(self.root.bias)
            nn.init.zeros_(self.below.bias)
        else:
            self.own = nn.ModuleList(ResBlock(width) for _ in range(config.depth))

    @property
    def kv_layers(self) -> int:
        return self.config.layers

    def text_layers(self) -> tuple[Sequence[DraftLayer], RMSNorm] | None:
        layers: Any = self.block
        return ([*layers], self.norm) if self.config.version == 1 else None

    def enrich(self, hidden: Tensor, following: Tensor, attend: Any) -> Tensor:
        x = self.first(hidden, following) if self.config.version == 2 else hidden
        for index, layer in enumerate(self.block):
            x = layer(x, index, attend)
        made: Tensor = self.norm(x)
        return made

    def begin(self, context: Tensor, root: Tensor) -> Tensor:
        if self.config.version == 2:  # the root is in it already
            return torch.cat((context, torch.zeros_like(root)), -1)
        return torch.cat((self.again(context, root), root), -1)

    def extend(self, state: Tensor, token: Tensor, depth: int) -> Tensor:
        above = state[:, : self.config.width]
        return torch.cat((self.again(above, token) if self.config.recurrent else above, token), -1)

    def draft(self, state: Tensor, depth: int) -> Tensor:
        above = state[:, : self.config.width]
        if self.config.version == 2:
            out = self.below(state) if depth else self.root(above)
        else:
            out = self.own[min(depth, self.config.depth - 1)](above)
        made: Tensor = self.norms[min(depth, 1)](out)
        return made


@DRAFTERS.register("clover", offers("clover", "a tree from a recurrence over the drafted tokens", keeps=True))
class CloverDrafter(HeadDrafter):
    name = "clover"
