"""What decisions know of an engine's requests."""

from paceline.engine.drafter_table import DrafterTable
from paceline.plan import DrafterFacts
from paceline.plan.choose import Goodput
from paceline.plan.cost import StepTimes
from tests.sample.cases import request


def test_requests_count_from_their_admission_to_their_end() -> None:
    """Those whose prompts are being read, too: a draft model reads for what will decode soon."""
    table = DrafterTable("goodput", StepTimes())
    table.enrol("none", DrafterFacts(nodes=0, chain=True))
    assert isinstance(table.policy, Goodput) and table.policy.live() == 0
    requests = [request(number) for number in range(3)]
    for each in (*requests, requests[0]):  # one was pre-empted, and is admitted again
        table.groups(each)
    assert table.policy.live() == 3
    for each in (requests[1], requests[1], requests[2]):
        table.drop(each)
    assert table.policy.live() == 1
