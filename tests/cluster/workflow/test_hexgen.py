"""HexGen's two rules: their extremes, what they do not depend on, and that nobody starves."""

import numpy as np
import pytest

from paceline.cluster.workflow.hexgen import HexGen, Urgency
from paceline.cluster.workflow.predict import SecondsTable
from paceline.cluster.workflow.simulate import Fault, SimulatedCall, SimulatedJob
from paceline.cluster.workflow.tasks import CallWork, Instance
from paceline.cluster.workflow.text2sql import base, questions
from tests.cluster.workflow.scenes import TABLE, exact, pair, play, setup, table, task


def loaded(fast: int, slow: int) -> list[Instance]:
    instances = list(pair().values())
    for instance, count in zip(instances, (fast, slow)):
        instance.queue += [task("b", name=f"{instance.name}{n}") for n in range(count)]
    return instances


def test_extremes_of_alpha() -> None:
    instances = loaded(3, 0)
    [(_, speed)] = HexGen(table(), 1.0).assign([task("a")], instances, 0.0)
    [(_, balance)] = HexGen(table(), 0.0).assign([task("a")], instances, 0.0)
    assert (speed.name, balance.name) == ("f", "s")


def test_the_quickest_instance_gets_it_while_it_is_idle() -> None:
    assert HexGen(table(), 0.0).assign([task("a")], loaded(0, 0), 0.0)[0][1].name == "f"


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.5, 0.9])
def test_scaling_all_times_changes_nothing(alpha: float) -> None:
    scaled = SecondsTable({kind: {step: 7.0 * s for step, s in row.items()} for kind, row in TABLE.items()})
    rng = np.random.default_rng(1)
    for _ in range(20):
        loads = int(rng.integers(0, 5)), int(rng.integers(0, 5))
        steps = [str(each) for each in rng.choice(list("abc"), 4)]
        ready = [task(step, name=f"{n}") for n, step in enumerate(steps)]
        a, b = (HexGen(p, alpha).assign(ready, loaded(*loads), 0.0) for p in (table(), scaled))
        assert [(t.id, i.name) for t, i in a] == [(t.id, i.name) for t, i in b]


def test_urgency_is_earliest_deadline_first_where_calls_are_alike() -> None:
    queue, rng = Urgency(table(), paper=True), np.random.default_rng(2)
    tasks = [task("a", ready=float(r), budget=float(b), name=f"{r}") for r, b in rng.uniform(0, 50, (20, 2))]
    by_urgency = sorted(tasks, key=lambda t: queue.key(t, pair()["f"], 60.0))
    assert by_urgency == sorted(tasks, key=lambda t: (t.ready or 0.0) + t.budget)


def test_the_hopeless_go_behind_the_feasible_and_the_patient_before_all() -> None:
    queue, at = Urgency(table(), patience=100.0), pair()["f"]
    late = task("a", budget=-50.0, deadline=1.0, rank=4.0, name="late")
    soon = task("a", budget=20.0, deadline=60.0, rank=4.0, name="soon")
    old = task("a", ready=-200.0, budget=1e6, deadline=1e6, name="old")
    assert sorted((late, soon, old), key=lambda t: queue.key(t, at, 10.0)) == [old, soon, late]
    paper = Urgency(table(), paper=True)
    assert min((late, soon, old), key=lambda t: paper.key(t, at, 10.0)) is late, "as printed, it starves the feasible"


def test_nobody_starves_under_a_finite_load() -> None:
    """One relaxed call among a stream of urgent ones that saturates the cluster waits no longer than the patience, and
    what was there before."""
    urgent = [SimulatedJob(0.9 * n, ((SimulatedCall(CallWork("a"), 0, 0),),), 2.0) for n in range(300)]
    relaxed = SimulatedJob(10.0, ((SimulatedCall(CallWork("a"), 0, 0),),), 1e9)
    waits = {}
    for patience in (20.0, float("inf")):
        made = setup("hexgen").dispatcher()
        made.instances, made.predictor = {"f": pair()["f"]}, SecondsTable({"fast": {"a": 1.0}})
        made.planner, made.queue = HexGen(made.predictor), Urgency(made.predictor, patience)
        waits[patience] = exact(made, [*urgent, relaxed]).finished["w300"]
    assert waits[20.0] < 45.0 < waits[float("inf")]


def test_every_question_is_answered_when_instances_die_and_return() -> None:
    jobs = questions(40, 0.05, np.random.default_rng(3), 8.0 * base())
    faults = [Fault(100.0, "A100-0"), Fault(150.0, "L40S-1"), Fault(400.0, "A100-0", True), Fault(500.0, "A6000-2")]
    done = play(setup("hexgen").dispatcher(), jobs, faults)
    assert len(done.finished) == 40


def test_more_of_the_questions_are_in_time_than_by_round_robin() -> None:
    jobs = questions(60, 0.05, np.random.default_rng(4), 5.0 * base())
    attained = {name: play(setup(name, slots=8).dispatcher(), jobs).attainment() for name in ("hexgen", "rr+fcfs")}
    assert attained["hexgen"] > attained["rr+fcfs"]
