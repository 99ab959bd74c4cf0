"""Where requests go, and who gives to whom."""

from math import inf

from paceline.cluster.live.freeness import EngineLoad, freeness, pairs, place


def load(name: str, used: int, running: int, **more: object) -> EngineLoad:
    return EngineLoad(name, 100, used, running, 0, **more)  # type: ignore[arg-type]


def test_the_freest_engine_gets_a_request() -> None:
    loads = [load("a", 50, 5), load("b", 20, 2), load("c", 10, 1, draining=True), load("d", 0, 0, alive=False)]
    assert [freeness(each) for each in loads] == [10, 40, -inf, -inf]
    assert place(loads) == "b"
    assert place(loads[2:]) is None and place([]) is None


def test_what_waits_first_counts_as_used() -> None:
    full = EngineLoad("a", 100, 90, 1, 1, wanted=30)
    assert freeness(full) == -10 and place([full, load("b", 95, 1)]) == "b"


def test_the_least_free_gives_to_the_freest() -> None:
    loads = [load("a", 99, 4), load("b", 98, 3), load("c", 10, 1), load("d", 0, 0)]
    assert pairs(loads) == [("a", "d"), ("b", "c")]
    assert pairs([load("a", 99, 4), load("b", 90, 1)]) == [], "a move there would not help"
    assert pairs([load("a", 0, 0), load("b", 0, 0)]) == []


def test_one_that_drains_gives_to_any() -> None:
    assert pairs([load("a", 10, 1, draining=True), load("b", 90, 1)]) == [("a", "b")]
    assert pairs([load("a", 0, 0, draining=True), load("b", 90, 1)]) == [], "it has nothing to give"
    assert pairs([load("a", 10, 1, draining=True)]) == []
