"""`specdec`: the drafter's own head says where a draft ends (SpecDec++, arXiv 2405.19715); the policy gives it room."""

from dataclasses import dataclass

from paceline.core.forest import MAX_CANDIDATES
from paceline.core.plan import MinChance, Work
from paceline.core.request import Request
from paceline.plan import POLICIES, Basis, Chooses, LengthPolicy
from paceline.plan.fixed import FixedLength


@dataclass(slots=True)
class HeadLength(FixedLength):
    """The most nodes that a drafter's card or the request names, however many requests run, and no price of a node."""

    def nodes(self, request: Request, running: int) -> int:
        wish = request.params.max_nodes
        return min(self.defaults.get(request.drafter, 0) if wish is None else wish, MAX_CANDIDATES)

    def worth(self, base: Work, drafter: str) -> MinChance | None:
        return None


@POLICIES.register("specdec", Chooses("as far as the drafter's own head says; it does not choose", arms=False))
def policy(basis: Basis) -> LengthPolicy:
    return HeadLength(basis.defaults, basis.limits, limit=basis.limit)
