"""Tasks that wait for one another: each starts when the values it needs are there, and ends by its deadline.

    async with Dag(deadline_s=60, tape=tape) as dag:
        prices = dag.node("prices", load, path)                     # async functions run here
        model = dag.work("fit", fit, prices, within_s=20)           # plain functions run in a pool of processes
        text = dag.node("text", describe, prices, default="")       # a value if it fails or is late; the report says so
        print(await model, await text, dag.report())

An argument that is a node stands for its value, so the graph is the data's own, and may grow while it runs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar

from .tape import Tape

T = TypeVar("T")
Status = Literal["waiting", "running", "done", "failed", "late", "skipped"]
APP_NONE: Any = object()


class NodeError(Exception):
    """A node that has no value; `status` is "failed", "late" or "skipped" (something it needs has no value)."""

    def __init__(self, name: str, status: Status, reason: str) -> None:
        super().__init__(f"{name} is {status}: {reason}")
        self.status = status


@dataclass(slots=True, eq=False)
class Node(Generic[T]):
    """A task. `await node` gives its value or raises NodeError; times are seconds from the graph's start."""

    name: str
    after: tuple[str, ...]
    status: Status = "waiting"
    started: float | None = None
    ended: float | None = None
    reason: str = ""
    defaulted: bool = False
    _task: "asyncio.Task[T] | None" = None

    def __await__(self) -> Generator[Any, None, T]:
        assert self._task is not None
        return asyncio.shield(self._task).__await__()

    def as_dict(self) -> dict[str, Any]:
        row = {"name": self.name, "status": self.status, "after": list(self.after), "reason": self.reason}
        times = {"started": self.started, "ended": self.ended}
        return {**row, "defaulted": self.defaulted, **{k: v and round(v, 4) for k, v in times.items()}}


@dataclass(slots=True)
class Dag:
    """A running graph. `deadline_s` holds for all of it; `width` async nodes run at once at most, `workers` processes.

    A node that waits for nodes that it adds itself keeps its place meanwhile.
    """

    deadline_s: float | None = None
    tape: Tape | None = None
    width: int = 64
    workers: int = 2
    on_end: Callable[[Node[Any]], None] | None = None
    nodes: list[Node[Any]] = field(default_factory=list)
    _began: float = 0.0
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    _pool: ProcessPoolExecutor | None = None

    async def __aenter__(self) -> "Dag":
        self._began, self._slots = time.monotonic(), asyncio.Semaphore(self.width)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None
    ) -> None:
        if kind is not None:
            for node in self.nodes:
                assert node._task is not None
                node._task.cancel()
        await self.settle()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def node(
        self,
        name: str,
        run: Callable[..., Awaitable[T]],
        *args: Any,
        within_s: float | None = None,
        default: T = APP_NONE,
        after: Iterable[Node[Any]] = (),
    ) -> Node[T]:
        """Start an async task. `within_s` runs from when what it needs is there; `after` are nodes that it waits for
        without their values; `default` stands in where it fails, is late or is skipped."""
        needs = [a for a in args if isinstance(a, Node)] + list(after)
        node: Node[T] = Node(name, tuple(n.name for n in needs))
        self.nodes.append(node)
        node._task = asyncio.create_task(self._drive(node, run, args, needs, within_s, default), name=name)
        node._task.add_done_callback(lambda task: None if task.cancelled() else task.exception())
        return node

    def work(self, name: str, run: Callable[..., T], *args: Any, **more: Any) -> Node[T]:
        """Like `node`, for a plain function of picklable arguments, in a process of its own."""

        async def elsewhere(*values: Any) -> T:
            if self._pool is None:
                self._pool = ProcessPoolExecutor(self.workers)
            return await asyncio.get_running_loop().run_in_executor(self._pool, run, *values)

        return self.node(name, elsewhere, *args, **more)

    async def settle(self) -> None:
        """Wait until every node has ended, those that were added meanwhile, too."""
        while waiting := [n._task for n in self.nodes if n._task is not None and not n._task.done()]:
            await asyncio.wait(waiting)

    def report(self) -> list[dict[str, Any]]:
        """One row per node, in the order in which they were added."""
        return [node.as_dict() for node in self.nodes]

    def now(self) -> float:
        return time.monotonic() - self._began

    async def _drive(
        self,
        node: Node[T],
        run: Callable[..., Awaitable[T]],
        args: tuple[Any, ...],
        needs: list[Node[Any]],
        within_s: float | None,
        default: T,
    ) -> T:
        try:
            value = await self._run(node, run, args, needs, within_s)
            node.status = "done"
            return value
        except NodeError as error:
            node.status, node.reason = error.status, str(error)
            if default is APP_NONE:
                raise
            node.defaulted = True
            return default
        finally:
            node.ended = self.now()
            if self.tape is not None:
                self.tape.write("node", **node.as_dict())
            if self.on_end is not None:
                self.on_end(node)

    async def _run(
        self,
        node: Node[T],
        run: Callable[..., Awaitable[T]],
        args: tuple[Any, ...],
        needs: list[Node[Any]],
        within_s: float | None,
    ) -> T:
        left = None if self.deadline_s is None else self.deadline_s - self.now()
        try:
            async with asyncio.timeout(left):
                await self._needed(node, needs)
                async with self._slots:
                    node.status, node.started = "running", self.now()
                    async with asyncio.timeout(within_s):
                        return await run(*[await a if isinstance(a, Node) else a for a in args])
        except TimeoutError as error:
            raise NodeError(node.name, "late", f"not done after {self.now():.2f} s") from error
        except (NodeError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise NodeError(node.name, "failed", f"{type(error).__name__}: {error}") from error

    async def _needed(self, node: Node[Any], needs: list[Node[Any]]) -> None:
        for need in needs:
            try:
                await need
            except NodeError as error:
                raise NodeError(node.name, "skipped", f"needs {need.name}, which is {error.status}") from error


async def gather(run: Callable[[Any], Awaitable[T]], items: Iterable[Any], width: int = 8) -> list[T]:
    """`run` of every item, `width` at a time, results in the items' order. The first exception ends all."""
    slots = asyncio.Semaphore(width)

    async def one(item: Any) -> T:
        async with slots:
            return await run(item)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(item)) for item in items]
    return [task.result() for task in tasks]
