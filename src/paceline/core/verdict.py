"""`Verdict`: what verifiers make. No cache words in it."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class Verdict:
    """Per request of the plan: `path` the accepted candidate nodes from depth 1 down (forest indices);
    `next_token` the token drawn after them, None while the prompt is unfinished; `scores` the row of the processed
    log-probabilities that each emitted token (accepted ones, then next_token) was judged by."""

    path: list[list[int]]
    next_token: list[int | None]
    score_rows: list[list[int]] = field(default_factory=list)
    scores: "Tensor | None" = None
