"""Exits of a draft model: the layers at which it may stop (S2D, Kavehzadeh et al. 2024, arXiv 2407.01955)."""

from typing import Any, Self

from paceline.draft.companion import COMPANIONS, Companion, need

NEED_EXITS = need("exits", "exits")


@COMPANIONS.register("exits", "layers at which the draft model may stop")
class Exits(Companion):
    """`layers`: behind how many layers each stage ends, ascending. `thresholds`: a token is drafted at the first stage
    whose largest probability is at least that stage's threshold; the last stage's is not asked."""

    kind = "exits"

    def __init__(self, layers: list[int], thresholds: list[float] | None = None, width: int = 0) -> None:
        super().__init__(width)
        thresholds = [0.5] * (len(layers) - 1) + [0.0] if thresholds is None else thresholds
        if not layers or sorted({*layers}) != layers or layers[0] < 1 or len(thresholds) != len(layers):
            raise ValueError(f"layers {layers} must ascend from 1 or more, with as many thresholds ({thresholds})")
        self.layers, self.thresholds = list(layers), [float(x) for x in thresholds]
        self.counts = [0] * len(layers)
        """Tokens drafted at each exit, so far."""

    def config(self) -> dict[str, Any]:
        return {"layers": self.layers, "thresholds": self.thresholds}

    def misfit(self, target: Any, draft: Any) -> str | None:
        depth = len(draft.spec.layers)
        if self.layers[-1] != depth:
            return f"ends behind layer {self.layers[-1]}, but the draft model has {depth} layers"
        return None

    @classmethod
    def sketch(cls, width: int, seed: int) -> Self:
        return cls([1, 2], [0.5, 0.0]).settle()
