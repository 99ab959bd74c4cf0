"""Waits of a cluster's tests. Each has an end, and says what did not come."""

import asyncio
import inspect
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

import pytest

CLUSTER_WAIT_S = 50.0
"""Longest wait for what takes moments, by a loaded machine's clock."""


async def until(true: Callable[[], Any], asking: Iterable["asyncio.Task[Any]"] = (), what: str = "") -> None:
    """Wait for what must come; fail where it does not in time, and at once where who was to bring it about has ended.
    A test that lets it pass would else wait for ever."""
    end, tasks = monotonic() + CLUSTER_WAIT_S, list(asking)
    while not true():
        over = bool(tasks) and all(task.done() for task in tasks)
        if over and true():
            return
        if over or monotonic() > end:
            ends = [repr(task.exception() or task.result())[:200] for task in tasks if task.done()]
            why = "all that was asked has ended" if over else f"{CLUSTER_WAIT_S:g} s are over"
            pytest.fail(f"{what or _source(true)} did not come: {why}. Ended: {ends}; tasks: {_tasks()}")
        await asyncio.sleep(0.002)


def _source(true: Callable[[], Any]) -> str:
    try:
        return " ".join(inspect.getsource(true).split())[:200]
    except OSError:
        return repr(true)


def _tasks() -> list[str]:
    return [
        f"{task.get_name()} at {frames[-1].f_code.co_qualname}:{frames[-1].f_lineno}"
        for task in asyncio.all_tasks()
        if (frames := task.get_stack())
    ]
