"""Many engines on one clock: nothing is lost when engines die and requests move."""

import random
from dataclasses import replace
from heapq import heappop

import pytest

from paceline.cluster.fleet.simulate import FleetJob, FleetMove, FleetPlan, FleetRun, simulate_fleet
from paceline.cluster.fleet.twin import FleetShape, FleetTwin
from paceline.cluster.live.freeness import MOVES_AT_ONCE, ScaleRule, room_for_more
from paceline.core.errors import InputError
from paceline.core.handover import Handover
from paceline.core.params import SamplingParams
from paceline.core.request import Request

SHAPE = FleetShape(blocks=60, message_s=0.004, start_s=0.5)


def jobs(count: int, seed: int, rate: float = 6.0, priority: bool = False) -> list[FleetJob]:
    """Bursts, and a few long ones."""
    rng, now, made = random.Random(seed), 0.0, []
    for n in range(count):
        now += 0.0 if n % 5 else rng.expovariate(rate / 5)
        long = rng.random() < 0.15
        prompt, output = (rng.randrange(200, 400), rng.randrange(100, 250)) if long else (rng.randrange(8, 80), 12)
        made.append(FleetJob(now, prompt, output, -1 if priority and n % 10 == 0 else 0))
    return made


def whole(fleet: FleetRun, count: int) -> None:
    """Every request has ended once with all of its tokens, and no engine holds anything."""
    done = fleet.outcome
    assert len(done.whole) == len(done.first) == count
    assert all(len(r.output) == r.max_tokens and r.lease is None for r in fleet.requests.values())
    for twin in fleet.twins.values():
        assert not twin.desk.busy
        twin.desk.cache.check_integrity()


@pytest.mark.parametrize("dispatch", ["round-robin", "least-loaded", "freeness"])
def test_all_are_answered(dispatch: str) -> None:
    fleet = FleetRun(jobs(40, 1), 3, SHAPE, FleetPlan(dispatch, migrates=False))  # type: ignore[arg-type]
    fleet.run()
    whole(fleet, 40)
    assert fleet.outcome.moved == 0 and not fleet.moving


def test_requests_move_and_engines_die() -> None:
    """At every twentieth of a second one of three, while requests move."""
    moved = 0
    for seed in range(3):
        deaths = {0.8 + 0.75 * i + 0.05 * seed: i for i in range(6)}
        fleet = FleetRun(jobs(50, seed, 8.0), 3, SHAPE, FleetPlan("round-robin", deaths=deaths))
        fleet.run()
        whole(fleet, 50)
        moved += fleet.outcome.moved
        assert fleet.outcome.lost == 6
    assert moved > 0


def test_equal_arguments_give_equal_outcomes() -> None:
    plan = FleetPlan(deaths={1.0: 1})
    assert simulate_fleet(jobs(30, 5), 3, SHAPE, plan) == simulate_fleet(jobs(30, 5), 3, SHAPE, plan)


def test_the_number_of_engines_changes() -> None:
    rule = ScaleRule(low=12, high=40, patience_s=0.5, most=5)
    quiet = [FleetJob(30.0 + n, 20, 12) for n in range(12)]
    fleet = FleetRun([*jobs(50, 2, 12.0), *quiet], 1, SHAPE, FleetPlan(scale=rule))
    fleet.run()
    whole(fleet, 62)
    assert fleet._started > 2 and len(fleet.twins) < fleet._started


def test_what_no_engine_can_hold_is_refused() -> None:
    with pytest.raises(InputError, match="at most 960 tokens"):
        simulate_fleet([FleetJob(0.0, 900, 100)], 2, SHAPE)


def drained(fleet: FleetRun) -> None:
    """Nothing is under way any more, and the ranking is that of the engines as they are."""
    while fleet._events:
        fleet.now, _, then = heappop(fleet._events)
        then()
    assert not fleet.moving
    for twin in fleet.twins.values():
        assert not twin.desk.reserved and not twin.after_step
        assert twin.desk.cache.room() == SHAPE.blocks and not twin.draining
        for pressing, ranking in fleet.rankings.items():
            assert ranking._keys[twin.name] == -room_for_more(twin.load(), pressing)


@pytest.mark.parametrize("who", ["source", "destination"])
@pytest.mark.parametrize("what", ["die", "drain", "nothing"])
@pytest.mark.parametrize("output", [60, 11])
def test_an_engine_dies_or_drains_at_each_moment_of_a_move(who: str, what: str, output: int) -> None:
    """A hand-over begins at 0.3 s, and takes about 0.1 s; every 6 ms one of its engines goes. A request of 11 tokens
    ends meanwhile."""
    moved = 0
    for step in range(30):
        fleet = FleetRun([FleetJob(0.0, 300, output)], 2, SHAPE, FleetPlan(migrates=False))

        def begin(fleet: FleetRun = fleet) -> None:
            source = fleet.at[0]
            [to] = [twin for twin in fleet.twins.values() if twin is not source]
            FleetMove(fleet, fleet.requests[0], source, to).go(Handover())

        def go(fleet: FleetRun = fleet) -> None:
            at = fleet.at.get(0)
            [first, second] = sorted(fleet.twins)
            gone = first if (at is not None and at.name == first) == (who == "source") else second
            if what == "die":
                fleet._die(sorted(fleet.twins).index(gone))
            elif what == "drain":
                fleet._drain(fleet.twins[gone])

        fleet.after(0.3, begin)
        fleet.after(0.301 + 0.006 * step, go)
        fleet.run()
        whole(fleet, 1)
        drained(fleet)
        moved += fleet.outcome.moved
        assert len(fleet.twins) == (1 if what == "drain" else 2)
    assert (moved > 0) == (output == 60)


def test_several_leave_at_the_end_of_one_step() -> None:
    """None of them is in the next step, which begins once all have left."""
    for at in range(12):
        fleet = FleetRun([FleetJob(0.0, 40, 60)] * 4, 2, SHAPE, FleetPlan(migrates=False))

        def begin(fleet: FleetRun = fleet) -> None:
            for request in fleet.requests.values():
                source = fleet.at[request.id]
                [to] = [twin for twin in fleet.twins.values() if twin is not source]
                FleetMove(fleet, request, source, to).go(Handover())

        fleet.after(0.3 + 0.003 * at, begin)
        fleet.run()
        whole(fleet, 4)
        assert fleet.outcome.moved == 4


def test_a_drain_moves_several_at_once() -> None:
    """As a live cluster does: not more than it may, and to several engines."""
    fleet = FleetRun([FleetJob(0.0, 20, 60)] * 36, 3, replace(SHAPE, blocks=400), FleetPlan())
    most, went = 0, set[str]()

    def look() -> None:
        nonlocal most
        most = max(most, sum(move.source.name == "engine-1" for move in fleet.moving.values()))
        went.update(twin.name for number, twin in fleet.at.items() if number in left)
        fleet.after(0.001, look)

    left = set[int]()

    def go() -> None:
        twin = fleet.twins["engine-1"]
        left.update(each.id for each in twin.desk.running)
        fleet._drain(twin)
        look()

    fleet.after(0.5, go)
    fleet.run()
    whole(fleet, 36)
    assert most == MOVES_AT_ONCE < len(left) and "engine-1" not in fleet.twins
    assert went == {"engine-1", "engine-2", "engine-3"} and fleet.outcome.moved == len(left)


def test_one_dies_where_none_is_left() -> None:
    fleet = FleetRun(jobs(10, 3), 1, SHAPE, FleetPlan(deaths={0.3: 0, 0.4: 0, 0.5: 3}))
    fleet.run()
    whole(fleet, 10)
    assert fleet.outcome.lost == 1


def test_a_held_lease_counts_once() -> None:
    twin = FleetTwin("engine-1", SHAPE)
    request = Request(0, [1] * 100, SamplingParams(), 0, max_tokens=20)
    twin.desk.reserve(1, 10)
    assert twin.take_in(request, 1, 96)
    load = twin.load()
    assert load.waiting == 1 and load.used + load.queued == 7


@pytest.mark.parametrize(("engines", "most"), [(2, 3), (4, 3)])
def test_rounds_take_moves_that_are_under_way_as_done(engines: int, most: int) -> None:
    """Ten requests of about 20 blocks are on one engine of 210; others come, and a move lasts many rounds."""
    shape = replace(SHAPE, blocks=210, message_s=0.25, row_budget=4096)
    fleet = FleetRun([FleetJob(0.0, 300, 60 + n) for n in range(10)], 1, shape, FleetPlan())
    for n in range(engines - 1):
        fleet.after(0.7 + 0.001 * n, fleet._add)
    places = dict[int, list[str]]()

    def look() -> None:
        for number, twin in fleet.at.items():
            if (been := places.setdefault(number, [])) == [] or been[-1] != twin.name:
                been.append(twin.name)
        fleet.after(0.01, look)

    look()
    fleet.run()
    whole(fleet, 10)
    assert 1 <= fleet.outcome.moved <= most and all(len(been) <= 2 for been in places.values())
