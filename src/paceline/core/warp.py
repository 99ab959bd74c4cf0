"""`Warp`: temperature and filters of one request, resolved."""

from dataclasses import dataclass

from paceline.core.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Warp:
    """One request's temperature (0: greedy) and filters, with None resolved; top_k 0, top_p 1, min_p 0 are off."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

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
