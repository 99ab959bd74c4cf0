"""A batch runs to its end before the next begins."""

from tests.schedule.population import Arrival, Population


def test_who_arrives_waits_for_the_batch_and_the_next_one_decodes_together() -> None:
    crowd = [Arrival(0, 4, 5), Arrival(2, 40, 3), Arrival(3, 30, 4)]
    done = Population(crowd, "decode_first", budget=32, nodes=0).run()
    steps = [[id for id, _, _ in items] for items, _ in done.log]
    assert steps == [[0]] * 5 + [[1], [1, 2], [2]] + [[1, 2]] * 2 + [[2]]


def test_prompts_of_a_batch_come_before_its_decodes() -> None:
    done = Population([Arrival(0, 4, 5), Arrival(0, 60, 2)], "decode_first", budget=32, nodes=0).run()
    assert [[id for id, _, _ in items] for items, _ in done.log][:3] == [[0, 1], [1], [0, 1]]
