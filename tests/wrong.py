"""A verifier that is wrong, for tests of what finds it."""

from pytest import MonkeyPatch

from paceline.verify import Case
from paceline.verify.exact import Exact


def another_token_after_a_run(patch: MonkeyPatch) -> None:
    """Mutant: after accepted tokens the next one is another than was drawn."""
    descend = Exact._descend

    def mutant(self: Exact, case: Case, place: int, drawn: dict[int, int]) -> None:
        descend(self, case, place, drawn)
        token = case.verdict.next_token[place]
        if case.verdict.path[place] and token is not None:
            case.verdict.next_token[place] = token % 100 + 10

    patch.setattr(Exact, "_descend", mutant)
