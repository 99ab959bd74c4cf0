"""`Warp`: how one request draws from its logits, resolved. `LogitRules`: what changes them before."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.core.params import SamplingParams

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LogitRules:
    """What changes a text's logits before temperature, by its tokens alone, as it stands behind some of them. The parts
    apply in this order; each is off as it is by default."""

    allowed: "Tensor | None" = None
    """The ids that can be drawn, int64."""
    words: "tuple[Tensor, Tensor] | None" = None
    """Words that must not be completed: the size of each, and the ids of one behind the other, int64."""
    tail: tuple[int, ...] = ()
    """End of the output, as much as the longest word needs."""
    left: int = 0
    """Tokens to come before any of `ends` can be drawn."""
    ends: tuple[int, ...] = ()
    bias: "tuple[Tensor, Tensor] | None" = None
    """Ids, int64, and what is added to their logits, float64."""
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    prompt: "Tensor | None" = None
    """Distinct ids of the prompt, int64, ascending: for the repetition penalty alone."""
    fresh: tuple[int, ...] = ()
    """Distinct ids of the output that the prompt does not have."""
    counts: Mapping[int, int] = field(default_factory=dict)
    """How often each id of the output occurs in it."""
    made: list[Any] = field(default_factory=list, init=False, repr=False)
    """The same as the native library reads it, once it was asked for."""


@dataclass(frozen=True, slots=True)
class Warp:
    """One request's temperature (0: greedy) and filters, with None resolved; top_k 0, top_p 1, min_p 0 are off."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    rules: LogitRules | None = None
    """What changes the logits before."""

    @classmethod
    def of(cls, params: SamplingParams) -> "Warp":
        return cls(
            1.0 if params.temperature is None else params.temperature,
            params.top_k or 0,
            1.0 if params.top_p is None else params.top_p,
            params.min_p or 0.0,
        )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def filters(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0
