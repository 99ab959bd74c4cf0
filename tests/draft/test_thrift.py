"""Every drafter that says it is stops_early drafts less where a node has to bring more, and the text stays."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from paceline.core.params import SamplingParams
from paceline.core.plan import MinChance, Work
from paceline.core.request import Request
from paceline.draft import DRAFTERS
from paceline.plan import LengthPolicy, StepDecision
from tests.lossless.cases import Setting, Wish, run

OWN_RULE = {"del", "specdec"}
"""They end a draft by a chance of their own, whatever its price."""
THRIFTY = sorted(name for name, card in DRAFTERS.items() if card.stops_early and name not in OWN_RULE)


@dataclass
class Priced(LengthPolicy):
    """Another policy's shares, at this price."""

    other: LengthPolicy
    min_chance: MinChance

    def decide(self, requests: Sequence[Request], room: int, base: Work) -> StepDecision:
        shares = self.other.decide(requests, room, base).shares
        return StepDecision({who: share._replace(min_chance=self.min_chance) for who, share in shares.items()})


def drafted(name: str, worth: MinChance) -> tuple[int, list[list[int]]]:
    """Nodes drafted for some texts, and the texts."""
    engine = Setting(draft_noise=0.5).engine()
    engine.table.policy = Priced(engine.table.policy, worth)
    params = SamplingParams(temperature=0.0, seed=3, drafter=name, max_tokens=30, ignore_eos=True).resolve({})
    prompts = [[1, 2, 3, 1, 2, 3, 1, 2], [4, 0, 5, 4, 0], [2, 2, 3, 3, 2, 2]]
    groups = run(engine, [Wish(prompt, params) for prompt in prompts])
    assert not engine.drafters.errors
    return engine.desk.totals.drafters[name].drafted, [request.output for group in groups for request in group]


@pytest.mark.parametrize("name", [*THRIFTY, "ngram+topk"])
def test_a_higher_price_drafts_less_and_says_the_same(name: str) -> None:
    (cheap, text), (dear, same) = drafted(name, MinChance(0.01)), drafted(name, MinChance(0.6))
    assert text == same and 0 <= dear < cheap


@pytest.mark.parametrize("name", ["model"])
def test_a_pass_has_its_price_too(name: str) -> None:
    assert drafted(name, MinChance(0.01, 0.6))[0] < drafted(name, MinChance(0.01))[0]
