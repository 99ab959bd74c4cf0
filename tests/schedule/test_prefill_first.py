"""Whole prompts before any decode."""

from tests.schedule.population import Arrival, Population


def test_decodes_stall_behind_a_prompt() -> None:
    done = Population([Arrival(0, 4, 20), Arrival(3, 100, 3)], "prefill_first", budget=32, nodes=0).run()
    steps = [[id for id, _, _ in items] for items, _ in done.log]
    assert steps[:8] == [[0], [0], [0], [1], [1], [1], [1], [0, 1]]
