"""An engine that hangs closes nothing: it is asked whether it is there, and its calls go to others."""

import asyncio
from collections.abc import Callable

import pytest

from paceline.cluster.control import controller as controller_module
from paceline.cluster.control.controller import Controller
from paceline.cluster.control.engines import Reply, StreamPieces
from paceline.cluster.workflow.policies import DispatcherSetup
from paceline.cluster.workflow.tasks import CallWork

NAMES = ("hung", "well")
WORK = CallWork("a", 1.0, 1.0)


class Engine:
    """One in this process; `hung`: it answers nothing."""

    def __init__(self, name: str) -> None:
        self.name, self.hung, self.heard, self.asked = name, False, 0, 0

    async def ask(self, path: str, body: bytes | None, client: str = "") -> Reply:
        self.asked += 1
        while self.hung:
            await asyncio.sleep(0.01)
        self.heard += 1
        return Reply(200, self.name.encode())

    async def stream(self, path: str, body: bytes, begun: Callable[[Reply], None], client: str = "") -> Reply:
        self.asked += 1
        pieces = StreamPieces()
        begun(Reply(200, b"", pieces))
        pieces.put(b"data: 1\n\n")
        try:
            while self.hung:
                await asyncio.sleep(0.01)
        finally:
            pieces.end()
        return Reply(200, b"", pieces)

    async def alive(self) -> bool:
        return not self.hung


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> tuple[Controller, dict[str, Engine]]:
    monkeypatch.setattr(controller_module, "ENGINE_SILENCE_S", 0.02)
    setup = DispatcherSetup("heft", tuple((n, n, 8) for n in NAMES), dict.fromkeys(NAMES, (0.01, 0.0, 0.0)), 0.3, 99.0)
    engines = {name: Engine(name) for name in NAMES}
    return Controller(setup.dispatcher(), engines), engines


async def test_calls_leave_an_engine_that_hangs(made: tuple[Controller, dict[str, Engine]]) -> None:
    controller, engines = made
    engines["hung"].hung = True
    replies = await asyncio.wait_for(asyncio.gather(*(controller.call(str(i), WORK, "/x", b"") for i in range(8))), 30)
    assert {reply.body for reply in replies} == {b"well"} and engines["hung"].asked > 0
    assert not controller.dispatcher.instances["hung"].alive
    engines["hung"].hung = False
    async with asyncio.timeout(30):
        while not controller.dispatcher.instances["hung"].alive:
            await asyncio.sleep(0.01)
    await controller.close()


async def test_one_that_is_there_is_left_alone(made: tuple[Controller, dict[str, Engine]]) -> None:
    """However long a call takes; and one without another next to it has nobody to give its calls to."""
    controller, engines = made
    for engine in engines.values():
        engine.alive = always  # type: ignore[method-assign]
        engine.hung = True
    asking = asyncio.ensure_future(controller.call("a", WORK, "/x", b""))
    await asyncio.sleep(0.2)
    assert not asking.done() and all(each.alive for each in controller.dispatcher.instances.values())
    for engine in engines.values():
        del engine.alive
    controller.dispatcher.turn("well", False, controller.clock())
    controller.dispatcher.turn("hung", False, controller.clock())
    controller.dispatcher.turn("hung", True, controller.clock())
    controller._soon()
    await asyncio.sleep(0.2)
    assert not asking.done() and controller.dispatcher.instances["hung"].alive
    asking.cancel()
    await controller.close()


async def always() -> bool:
    return True
