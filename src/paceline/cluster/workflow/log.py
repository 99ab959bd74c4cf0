"""The outcome log of a dispatcher: one JSON object a line for what came in and what was decided. Floats read back
equal, so a replay asks for equality. Tokens are counted; no text is kept."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.cluster.workflow.dispatch import Dispatcher, Start
from paceline.cluster.workflow.policies import DispatcherSetup
from paceline.cluster.workflow.simulate import SimulatedCall, SimulatedJob
from paceline.cluster.workflow.tasks import CallWork, Instance, Task, Workflow
from paceline.core.errors import InputError
from paceline.core.files import lines_of, open_log, write_whole

Event = dict[str, Any]


class WorkflowRecorder:
    """A watcher that gives each event to `sink`, the setup first."""

    def __init__(self, setup: DispatcherSetup | None, sink: Callable[[Event], None]) -> None:
        self._sink = sink
        if setup is not None:
            sink({"event": "setup", **setup.dump()})

    def submitted(self, workflow: Workflow, now: float) -> None:
        w = workflow
        expected = [list(work) for work in w.expected]
        self._sink({"event": "submit", "now": now, "id": w.id, "deadline": w.deadline, "expected": expected})

    def extended(self, workflow: Workflow, tasks: Sequence[Task], now: float) -> None:
        calls = [_call(task) for task in tasks]
        expected = [list(work) for work in workflow.expected]
        self._sink({"event": "extend", "now": now, "id": workflow.id, "tasks": calls, "expected": expected})

    def closed(self, workflow: Workflow, now: float) -> None:
        self._sink({"event": "close", "now": now, "id": workflow.id})

    def finished(self, task: Task, now: float) -> None:
        where = {"id": task.id, "workflow": task.workflow.id, "attempt": task.attempt}
        more = {} if task.teaches else {"teaches": False}
        self._sink({"event": "finish", "now": now, **where, "used": task.used, **more})

    def dropped(self, task: Task, now: float) -> None:
        self._sink({"event": "drop", "now": now, "id": task.id, "workflow": task.workflow.id})

    def turned(self, instance: Instance, now: float) -> None:
        self._sink({"event": "turn", "now": now, "instance": instance.name, "alive": instance.alive})

    def decided(self, placed: Sequence[tuple[Task, Instance]], starts: Sequence[Start], now: float) -> None:
        where = [[task.id, instance.name] for task, instance in placed]
        self._sink({"event": "decide", "now": now, "placed": where, "starts": _dump(starts)})

    def tuned(self, alpha: float, now: float) -> None:
        self._sink({"event": "tune", "now": now, "alpha": alpha})


def _call(t: Task) -> Event:
    after = [parent.id for parent in t.after]
    whose = {"client": t.client} if t.client else {}
    return {"id": t.id, "work": list(t.work), "after": after, "volume": list(t.volume), "pinned": t.pinned, **whose}


def _dump(starts: Sequence[Start]) -> list[list[Any]]:
    return [[start.task.id, start.instance.name, start.attempt] for start in starts]


def write(path: Path) -> Callable[[Event], None]:
    """A sink that appends lines to a new file, each at once."""
    file = open_log(path)
    return lambda event: write_whole(file, f"{json.dumps(event)}\n".encode())


def read(path: Path) -> Iterator[Event]:
    """Events of a log. InputError for a file or line that is none."""
    for number, line in enumerate(lines_of(path, "log"), 1):
        try:
            event = json.loads(line)
            event["event"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise unreadable(path, number) from error
        yield event


def unreadable(path: Path | None, number: int) -> InputError:
    where = "Line" if path is None else f"{path}, line"
    return InputError(f"{where} {number} is not an event of a workflow log; record it again.")


def replay(events: Sequence[Mapping[str, Any]], **parts: Any) -> str | None:
    """Do the same decisions follow from the same events? None if they do, else the first difference in words. `parts`
    as for `DispatcherSetup.dispatcher`."""
    if not events or events[0]["event"] != "setup":
        raise InputError("A workflow log begins with its setup; this one does not.")
    number = 1
    try:
        made = DispatcherSetup.load(events[0]).dispatcher(**parts)
        for number, event in enumerate(events[1:], 2):
            if (difference := _apply(made, event)) is not None:
                return f"Line {number}: {difference}"
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError) as error:
        raise unreadable(None, number) from error  # of another shape than what a recorder writes
    return None


def _apply(to: Dispatcher, event: Mapping[str, Any]) -> str | None:
    now, kind = event["now"], event["event"]
    if kind == "submit":
        expected = [CallWork(*each) for each in event["expected"]]
        to.submit(Workflow(event["id"], now, event["deadline"], expected), now)
    elif kind == "extend":
        workflow = to.workflows[event["id"]]
        to.extend(workflow, _tasks(event, workflow, to), now, [CallWork(*each) for each in event["expected"]])
    elif kind == "close":
        to.close(to.workflows[event["id"]], now)
    elif kind == "finish":
        used = None if event["used"] is None else (event["used"][0], event["used"][1])
        to.finish(to.tasks[event["id"]], event["attempt"], now, used, event.get("teaches", True))
    elif kind == "drop":
        to.drop(to.tasks[event["id"]], now)
    elif kind == "turn":
        to.turn(event["instance"], event["alive"], now)
    elif kind == "tune":
        to.planner.alpha = event["alpha"]  # type: ignore[attr-defined]
    else:
        return _decide(to, event)
    return None


def _decide(to: Dispatcher, event: Mapping[str, Any]) -> str | None:
    made: list[Event] = []
    watcher = WorkflowRecorder(None, made.append)
    to.watchers.append(watcher)
    to.decide(event["now"])
    to.watchers.remove(watcher)
    for what in ("placed", "starts"):
        own = made[0][what] if made else []
        if own != event[what]:
            return f"the log's {what} are {event[what]}, the replay's {own}."
    return None


def _tasks(event: Mapping[str, Any], workflow: Workflow, to: Dispatcher) -> list[Task]:
    made: dict[str, Task] = {}
    for call in event["tasks"]:
        after = tuple(made.get(id) or to.tasks[id] for id in call["after"])
        made[call["id"]] = Task(
            call["id"], workflow, CallWork(*call["work"]), after, tuple(call["volume"]), call["pinned"],
            call.get("client", ""),
        )  # fmt: skip
    return list(made.values())


def jobs(events: Sequence[Mapping[str, Any]]) -> list[SimulatedJob]:
    """The workflows of a log that ended, as they came to be: what a simulation under another policy takes. Calls that
    came while others of their workflow ran are one stage with them."""
    used = {event["id"]: event["used"] for event in events if event["event"] == "finish"}
    arrived, stages, open_ = dict[str, Any](), dict[str, list[list[Any]]](), dict[str, set[str]]()
    out = list[SimulatedJob]()
    for event in events:
        kind, id = event["event"], event.get("id", "")
        if kind == "submit":
            arrived[id], stages[id], open_[id] = event, [], set()
        elif kind == "extend":
            calls = [call for call in event["tasks"] if used.get(call["id"])]
            if not open_[id]:
                stages[id].append([])
            stages[id][-1] += calls
            open_[id] |= {call["id"] for call in calls}
        elif kind in ("finish", "drop"):
            open_[event["workflow"]].discard(id)
        elif kind == "close" and any(stages[id]):
            start = arrived[id]
            expected = tuple(CallWork(*each) for each in start["expected"])
            made = tuple(_stage(calls, used) for calls in stages[id] if calls)
            out.append(SimulatedJob(start["now"], made, start["deadline"] - start["now"], expected))
    return out


def _stage(calls: Sequence[Mapping[str, Any]], used: Mapping[str, Any]) -> tuple[SimulatedCall, ...]:
    place = {call["id"]: number for number, call in enumerate(calls)}
    out = []
    for call in calls:
        after = tuple(place[id] for id in call["after"] if id in place)
        volume = tuple(v for id, v in zip(call["after"], call["volume"]) if id in place)
        tokens_in, tokens_out = used[call["id"]]
        out.append(SimulatedCall(CallWork(*call["work"]), tokens_in, tokens_out, after, volume, call["pinned"]))
    return tuple(out)
