"""Do the same decisions follow from the same events?"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from paceline.core.errors import IntegrityError, PacelineError
from paceline.simulate.log import (
    Adopted,
    Arrival,
    BlocksDropped,
    BlocksReserved,
    BlocksSettled,
    Changed,
    Closed,
    Decision,
    Departure,
    Enrolled,
    Event,
    Joined,
    Setup,
    Step,
)
from paceline.simulate.twin import Twin


@dataclass(slots=True)
class Replay:
    """How far a replay came, and what differed first (None: nothing)."""

    twin: Twin
    steps: int = 0
    difference: str | None = None


def replay(events: Iterable[Event]) -> Replay:
    """Drive an engine's deciding half through a log, up to the first difference."""
    each = iter(events)
    setup = next(each)
    assert isinstance(setup, Setup), "a log begins with its setup"
    done = Replay(Twin(setup))
    for event in each:
        try:
            done.difference = _follow(done.twin, event)
        except (PacelineError, IntegrityError, KeyError, ValueError) as error:
            done.difference = f"its outcome is impossible here: {error!r}"
        done.steps += isinstance(event, Step)
        if done.difference is not None:
            at = f"Step {done.steps}" if isinstance(event, Step) else f"After step {done.steps}, {event.event}"
            done.difference = f"{at}: {done.difference}"
            break
    return done


def _follow(twin: Twin, event: Event) -> str | None:
    """Do what the event says; what differs from it, if anything."""
    match event:
        case Enrolled():
            twin.table.enrol(event.drafter, event.facts)
        case Arrival():
            twin.arrive(event)
        case Departure():
            twin.abort(twin.requests[event.id])
        case Changed():
            twin.change(event)
        case Closed():
            twin.close(twin.requests[event.id])
        case Joined():
            twin.join(event)
        case Adopted():
            twin.adopt(event)
        case BlocksDropped():
            twin.desk.drop(event.tokens, event.extra_key, event.layout)
        case BlocksReserved():
            twin.reserve(event)
        case BlocksSettled():
            twin.desk.settle(event.number, event.tokens)
        case Step():
            return _step(twin, event)
    return None


def _step(twin: Twin, step: Step) -> str | None:
    decision, plan = twin.decide(step.now, step.decision.held)
    if decision != step.decision:
        return _compare(decision, step.decision)
    txns = twin.desk.begin(plan)
    for drafter, requests in step.failed:
        twin.fail(drafter, requests)
    if step.outcome is not None:
        twin.end(plan, txns, step.outcome)
    else:
        for txn in txns:
            txn.abort()
    return None


def _compare(mine: Decision, logged: Decision) -> str:
    name = next(f.name for f in fields(Decision) if getattr(mine, f.name) != getattr(logged, f.name))
    a, b = getattr(mine, name), getattr(logged, name)
    if name == "items" and len(a) == len(b):
        a, b = next((x, y) for x, y in zip(a, b) if x != y)
    return f"{name} is {a}, but the log has {b}"
