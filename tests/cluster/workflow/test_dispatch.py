"""The state machine: stages, budgets, instances that die, and what is refused."""

import pytest

from paceline.cluster.workflow.baselines import ArrivalOrder, Balanced, RoundRobin
from paceline.cluster.workflow.dispatch import Dispatcher, Start
from paceline.cluster.workflow.tasks import CallWork, Instance, Task, Workflow
from paceline.core.errors import InputError
from tests.cluster.workflow.scenes import pair, table


def dispatcher(slots: int = 1) -> Dispatcher:
    return Dispatcher(pair(slots), RoundRobin(), ArrivalOrder(), table())


def test_a_call_waits_for_all_its_predecessors() -> None:
    d, flow = dispatcher(), Workflow("w", 0.0)
    d.submit(flow, 0.0)
    a, b = Task("a", flow, CallWork("a")), Task("b", flow, CallWork("b"))
    c = Task("c", flow, CallWork("c"), (a, b))
    d.extend(flow, [a, b, c], 0.0)
    assert [s.task.id for s in d.decide(0.0)] == ["a", "b"]
    assert d.finish(a, 1, 1.0) and d.decide(1.0) == []
    assert d.finish(b, 1, 2.0) and [s.task.id for s in d.decide(2.0)] == ["c"]


def test_a_result_counts_once_and_only_from_the_last_attempt() -> None:
    d, flow = dispatcher(), Workflow("w", 0.0)
    d.submit(flow, 0.0)
    a = Task("a", flow, CallWork("a"))
    d.extend(flow, [a], 0.0)
    [first] = d.decide(0.0)
    d.turn(first.instance.name, False, 1.0)
    assert not d.finish(a, first.attempt, 1.5), "its instance was given up"
    [second] = d.decide(2.0)
    assert second.instance is not first.instance and second.attempt == 2
    assert not d.finish(a, first.attempt, 3.0) and d.finish(a, second.attempt, 4.0)
    assert not d.finish(a, second.attempt, 5.0), "twice"


def test_queued_calls_of_a_dead_instance_run_elsewhere_and_nothing_runs_without_instances() -> None:
    d, flow = dispatcher(), Workflow("w", 0.0)
    d.submit(flow, 0.0)
    d.extend(flow, [Task(f"a{n}", flow, CallWork("a")) for n in range(4)], 0.0)
    d.decide(0.0)
    d.turn("f", False, 0.5)
    d.turn("s", False, 0.5)
    assert d.decide(0.5) == [] and len(d.ready) == 4
    d.turn("f", True, 1.0)
    assert len(d.decide(1.0)) == 1 and len(d.instances["f"].queue) == 3


def test_budgets_of_stages_add_up_to_the_time_left_and_lists_are_not_shared() -> None:
    typical = (CallWork("a"), CallWork("b"), CallWork("c"))
    d = dispatcher()
    flows = [Workflow(f"w{n}", 0.0, 30.0, list(typical)) for n in range(2)]
    total = 0.0
    for stage, step in enumerate("abc"):
        for flow in flows:
            if not stage:
                d.submit(flow, 0.0)
            d.extend(flow, [Task(f"{flow.id}{step}", flow, CallWork(step))], 0.0)
        budgets = [d.tasks[f"{flow.id}{step}"].budget for flow in flows]
        assert budgets[0] == budgets[1]
        share = {"a": 1.5, "b": 3.0, "c": 6.0}
        later = sum(share[each] for each in "abc"[stage:])
        assert budgets[0] == pytest.approx(30.0 * share[step] / later)
        total += share[step] / 10.5 * 30.0
    assert total == pytest.approx(30.0)


def test_expectation_drops_what_is_skipped_and_keeps_what_an_extra_round_does_not_touch() -> None:
    flow = Workflow("w", 0.0, expected=[CallWork(s) for s in ("draft", "revise", "revise", "test", "choose")])
    flow.expect("draft")
    flow.expect("test")
    assert [w.step for w in flow.expected] == ["choose"], "left-over revisions will not come"
    flow.expect("revise")
    assert [w.step for w in flow.expected] == ["choose"]


def test_room_is_kept_and_the_first_is_not_overtaken() -> None:
    instance = Instance("f", "fast", 4, room=100.0)
    d, flow = Dispatcher({"f": instance}, Balanced(table()), ArrivalOrder(), table()), Workflow("w", 0.0)
    d.submit(flow, 0.0)
    d.extend(
        flow, [Task(n, flow, CallWork("a", size, 0.0)) for n, size in (("1", 60.0), ("2", 60.0), ("3", 10.0))], 0.0
    )
    assert [s.task.id for s in d.decide(0.0)] == ["1"]
    d.finish(d.tasks["1"], 1, 1.0)
    assert [s.task.id for s in d.decide(1.0)] == ["2", "3"]


def test_transfers_delay_a_start_elsewhere_alone() -> None:
    d, flow = dispatcher(), Workflow("w", 0.0)
    d.submit(flow, 0.0)
    a = Task("a", flow, CallWork("a"))
    b = Task("b", flow, CallWork("a"), (a,), (5.0,))
    d.extend(flow, [a, b], 0.0)
    d.decide(0.0)
    d.finish(a, 1, 1.0)
    assert d.decide(1.0) == [] and b.place == "s" and d.wake(1.0) == 6.0
    assert [s.task.id for s in d.decide(6.0)] == ["b"]


def test_what_is_refused() -> None:
    d, flow = dispatcher(), Workflow("w", 0.0)
    with pytest.raises(InputError, match="not submitted"):
        d.extend(flow, [], 0.0)
    d.submit(flow, 0.0)
    with pytest.raises(InputError, match="exists already"):
        d.submit(Workflow("w", 0.0), 0.0)
    a = Task("a", flow, CallWork("a"))
    for tasks, says in (
        ([a, a], "exists already"),
        ([Task("b", flow, CallWork("a"), (a,))], "before one of its predecessors"),
        ([Task("b", flow, CallWork("a"), pinned="x")], "not an instance"),
        ([a, Task("b", flow, CallWork("a"), (a,), (1.0, 2.0))], "volumes"),
    ):
        with pytest.raises(InputError, match=says):
            d.extend(flow, tasks, 0.0)
    assert not flow.tasks


def test_an_ended_workflow_takes_its_open_calls_along() -> None:
    d, flow = dispatcher(), Workflow("w", 0.0)
    d.submit(flow, 0.0)
    a = Task("a", flow, CallWork("a"))
    d.extend(flow, [a], 0.0)
    d.decide(0.0)
    d.close(flow, 1.0)
    assert not d.finish(a, 1, 2.0) and not d.instances["f"].running and not d.tasks


def crowded(*later: str) -> tuple[Dispatcher, list[Start]]:
    """Client a has four calls on one instance of two slots; then one call of each of `later` comes."""
    d = Dispatcher({"f": Instance("f", "fast", 2)}, RoundRobin(), ArrivalOrder(), table())
    made = [Task(f"{client}{n}", Workflow(f"w{n}", 0.0), CallWork("a"), client=client)
            for n, client in enumerate(["a"] * 4 + list(later))]  # fmt: skip
    for task in made[:4]:
        d.submit(task.workflow, 0.0)
        d.extend(task.workflow, [task], 0.0)
    starts = d.decide(0.0)
    for task in made[4:]:
        d.submit(task.workflow, 1.0)
        d.extend(task.workflow, [task], 1.0)
    return d, [*starts, *d.decide(1.0)]


def test_who_has_no_slot_need_not_wait_for_those_of_one_who_has_many() -> None:
    d, starts = crowded("b", "b")
    assert [start.task.id for start in starts] == ["a0", "a1", "b4"], "b has its share, which is one slot of two"
    assert d.finish(starts[0].task, 1, 2.0) and not d.decide(2.0), "as many run as there are slots"
    assert d.finish(starts[1].task, 1, 3.0) and [start.task.id for start in d.decide(3.0)] == ["a2"]


def test_no_more_run_than_twice_the_slots_and_one_client_changes_nothing() -> None:
    _, starts = crowded("b", "c", "d", "e")
    assert [start.task.id for start in starts] == ["a0", "a1", "b4", "c5"]
    _, starts = crowded("a")
    assert [start.task.id for start in starts] == ["a0", "a1"]
