"""`/slots`: conversations by number, saved and restored as llama-server does, in the K/V directory (`--kv-disk`).

    GET  /slots                          what each slot is at
    POST /slots/{id}?action=save         {"filename": NAME}
    POST /slots/{id}?action=restore      {"filename": NAME}
    POST /slots/{id}?action=erase

A slot is a place of the engine (engine/slots.py). With several API keys, each sees and names its own.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Semaphore, Thread
from time import monotonic, perf_counter
from typing import Any, Literal, TypeVar, cast

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import Field

from paceline.core.errors import DiskError
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.door import DOOR
from paceline.engine.slots import Slots
from paceline.serve.body import JsonRoute
from paceline.serve.calls import HttpCall
from paceline.serve.errors import ApiError
from paceline.serve.responses import ERRORS
from paceline.serve.server import Here
from paceline.serve.sse import json_response
from paceline.serve.wire import Label, Wire


class OptionalBody(JsonRoute):
    """A route whose body may be missing."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        given, missing = super().get_route_handler(), APIRoute.get_route_handler(self)

        async def handle(request: Request) -> Response:
            empty = request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers
            return await (missing if empty else given)(request)

        return handle


router = APIRouter(route_class=OptionalBody)
T = TypeVar("T")
STORAGE = 507
"""HTTP status of a server whose disk does not keep something."""
DISK_S = 30.0
"""Longest wait for a disk."""
DISK_TURN_S = 0.01
"""Between two looks whether a thread is free."""
MOST_DISK_THREADS = 8
"""Threads that wait for disks at a time."""


class SlotRequest(Wire):
    filename: Label | None = Field(None, description="a plain file name, for save and restore")
    model: Label | None = Field(None, description="the name of the served model")


NO_SLOT_WISH = SlotRequest(filename=None, model=None)


@router.get("/slots")
async def slots(host: Here) -> Response:
    """What each slot is at."""
    llm, found, key, _ = await of(host, None)
    return json_response(await llm.call(lambda: found.view(key)))


@router.post("/slots/{number}", responses=ERRORS)
async def act(
    number: int, host: Here, action: Literal["save", "restore", "erase"], body: SlotRequest = NO_SLOT_WISH
) -> Response:
    """Save a slot's K/V in a file, restore it from one, or erase it."""
    llm, found, key, extra = await of(host, body.model)
    begun = perf_counter()
    if action == "erase":
        count = await llm.call(lambda: found.erase(number, key))
        return json_response({"id_slot": number, "n_erased": count})
    if body.filename is None:
        raise ApiError(400, f"filename is missing; give the name of the file to {action}.", param="filename")
    name = body.filename
    found.path(name, "")
    answer: dict[str, Any] = {"id_slot": number, "filename": name}
    if action == "save":
        gathered = await llm.call(lambda: found.gather(number, key))
        size = await patiently(lambda: found.save(gathered, name, extra), STORAGE)
        answer |= {"n_saved": len(gathered.file.tokens), "n_written": size}
        timings = "save_ms"
    else:
        file, blocks, size = await patiently(lambda: found.load(name, extra))
        count = await llm.call(lambda: found.put(number, file, blocks, key))
        answer |= {"n_restored": count, "n_read": size}
        timings = "restore_ms"
    return json_response({**answer, "timings": {timings: 1e3 * (perf_counter() - begun)}})


async def of(host: Here, model: str | None) -> tuple[AsyncLLM, Slots, str, str]:
    """(engine, its slots, the caller's API key, under what its K/V is named)"""
    server = await host.of(model)
    found = server.llm.llm.engine.operations.slots
    if found is None:
        remedy = server.remedy("--kv-disk DIR:SIZE")
        raise ApiError(501, f"There are no slots here; {remedy}.", code="not_supported")
    call = DOOR.get()
    key = call.key if isinstance(call, HttpCall) else ""
    return server.llm, found, key, tenant_of(call)


def tenant_of(call: object) -> str:
    """Under what the K/V of a caller's requests is named: what `admit` gives them."""
    return str(getattr(call, "tenant", ""))


def busy() -> ApiError:
    return ApiError(503, "The K/V directory does not answer; try again later.", code="disk_busy")


_waiting = Semaphore(MOST_DISK_THREADS)


async def patiently(work: Callable[[], T], refused: int = 500) -> T:
    """What `work` returns, from a thread of its own, which keeps nobody from ending. ApiError 503 where the disk takes
    too long, and `refused` where it does not do it."""
    until = monotonic() + DISK_S
    while not _waiting.acquire(blocking=False):
        if monotonic() > until:
            raise busy()
        await asyncio.sleep(DISK_TURN_S)
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(found: T | None, error: BaseException | None) -> None:
        if done.done():  # nobody waits for it any more
            return
        if error is None:
            done.set_result(cast(T, found))
        else:
            done.set_exception(error)

    def run() -> None:
        found: T | None = None
        error: BaseException | None = None
        try:
            found = work()
        except BaseException as raised:  # it belongs to the caller
            error = raised
        finally:
            _waiting.release()
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, found, error)

    Thread(target=run, name="paceline-slots", daemon=True).start()
    try:
        return await asyncio.wait_for(done, until - monotonic())
    except TimeoutError:
        raise busy() from None
    except DiskError as error:
        raise ApiError(refused, str(error), code="disk_refused") from None
