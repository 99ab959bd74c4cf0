"""The judge's head (Judge Decoding, Bachmann et al. 2025, arXiv 2501.19309): is a drafted token good enough to stand,
though the target would have drawn another?"""

from typing import Any, Self

import torch
from torch import Tensor, nn

from paceline.draft.companion import COMPANIONS, Companion, need

NEED_JUDGE = need("judge", "a judge")
CORRECTNESS_RULES = ("head", "top_k", "ratio")


@COMPANIONS.register("judge", "is a drafted token as good as the target's own?")
class Correctness(Companion):
    """One linear layer on the target's state (behind its final norm) of the row that has read the drafted token.

    `threshold`: a token stands where its chance to be good is above it; 1: none does, 0: all do. `rule`: "head", or the
    baseline without training: "top_k", by which the target's most probable `top_k` tokens stand, or "ratio", by which
    tokens stand whose probability is at least `ratio` of the greatest one.
    """

    kind = "judge"
    taps = ("post_norm",)

    def __init__(
        self, width: int, threshold: float = 0.5, rule: str = "head", top_k: int = 3, ratio: float = 0.3
    ) -> None:
        super().__init__(width)
        if not 0 <= threshold <= 1 or not 0 <= ratio <= 1 or rule not in CORRECTNESS_RULES or top_k < 1:
            raise ValueError(
                f"threshold {threshold} and ratio {ratio} must be in [0, 1], top_k {top_k} at least 1, rule {rule!r} "
                f"one of {', '.join(CORRECTNESS_RULES)}"
            )
        self.threshold, self.rule, self.top_k, self.ratio = threshold, rule, top_k, ratio
        self.out = nn.Linear(width, 1)

    def config(self) -> dict[str, Any]:
        names = ("width", "threshold", "rule", "top_k", "ratio")
        return {name: getattr(self, name) for name in names}

    def misfit(self, target: Any, draft: Any) -> str | None:
        if target.width != self.width:
            return f"reads hidden states of {self.width} numbers, but the model's have {target.width}"
        return None

    @classmethod
    def sketch(cls, width: int, seed: int) -> Self:
        made, stream = cls(width), torch.Generator().manual_seed(seed)
        for _, weight in sorted(made.named_parameters()):
            weight.data.copy_(0.1 * torch.randn(weight.shape, generator=stream))
        return made.settle()

    def forward(self, hidden: Tensor) -> Tensor:
        """[N]: chances in (0, 1), float64, that the tokens which these rows [N, H] have read are good."""
        chances: Tensor = self.out(hidden.float())[:, 0].double().clamp(-500.0, 30.0).sigmoid()
        return chances
