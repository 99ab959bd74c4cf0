"""The HTTP API of a cluster: the server's own, and `/cluster` for who runs it."""

import asyncio
from collections.abc import Callable
from socket import socket
from typing import Any, cast

from fastapi import APIRouter, FastAPI, Request, Response
from pydantic import Field

from paceline.cluster.live.engines import Engines
from paceline.cluster.live.freeness import MOST_ENGINES, freeness
from paceline.cluster.live.front import ClusterLLM
from paceline.cluster.live.messages import EngineGoneError
from paceline.core.errors import InputError
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.options import Options
from paceline.serve.app import create_app
from paceline.serve.body import JsonRoute
from paceline.serve.responses import ERRORS
from paceline.serve.run import serving
from paceline.serve.server import Server
from paceline.serve.settings import Settings
from paceline.serve.sse import json_response
from paceline.serve.wire import Wire

router = APIRouter(route_class=JsonRoute)


class ScaleRequest(Wire):
    engines: int = Field(ge=1, le=MOST_ENGINES, description="how many there should be")


class DrainRequest(Wire):
    engine: str = Field(description="its name, as GET /cluster has it")


class ClusterServer(Server):
    """A model that several engines serve."""

    def __init__(self, llm: ClusterLLM, settings: Settings) -> None:
        super().__init__(cast(AsyncLLM, llm), settings)
        self.cluster = llm

    @property
    def max_requests(self) -> int:
        return self.cluster.max_requests


def engines_of(request: Request) -> Engines:
    """The engines behind an application."""
    host: ClusterServer = request.app.state.host
    return host.cluster.engines


@router.get("/cluster")
async def state(request: Request) -> Response:
    """The engines, what each has, and what became of those before them."""
    return json_response(described(engines_of(request)))


@router.post("/cluster/scale", responses=ERRORS)
async def scale(body: ScaleRequest, request: Request) -> Response:
    """Change the number of engines. Answers when they are there, or those that are too many are gone."""
    await engines_of(request).scale(body.engines)
    return json_response(described(engines_of(request)))


@router.post("/cluster/drain", responses=ERRORS)
async def drain(body: DrainRequest, request: Request) -> Response:
    """Take an engine out; what it decodes goes to the others. Answers when it is gone."""
    await engines_of(request).drain(body.engine)
    return json_response(described(engines_of(request)))


@router.post("/cluster/renew", responses=ERRORS)
async def renew(request: Request) -> Response:
    """A new engine in place of each, one after the other. Answers when all are new."""
    await engines_of(request).renew()
    return json_response(described(engines_of(request)))


def described(engines: Engines) -> dict[str, Any]:
    """For `GET /cluster`."""
    loads = {load.name: load for load in engines.loads()}
    each = [
        {
            "name": name, "draining": now.draining, "samples": loads[name].running + loads[name].waiting,
            "freeness": None if now.draining else round(freeness(loads[name]), 2),
            "running": now.snapshot.running, "waiting": now.snapshot.waiting,
            "kv": {"blocks": now.snapshot.blocks, "used": now.snapshot.used, "cached": now.snapshot.cached},
            "generated": now.snapshot.speculation.generated, "preemptions": now.snapshot.totals.preemptions,
        }
        for name, now in engines.states.items()
    ]  # fmt: skip
    return {"engines": each, "wanted": engines.wanted, "lost": engines.lost_count, "moved": engines.moved_count}


def application(engines: Engines, options: Options, settings: Settings) -> FastAPI:
    """The HTTP API over engines that have started."""
    app = create_app(ClusterServer(ClusterLLM(engines, options), settings), settings)
    app.include_router(router)
    return app


def run(
    engines: Engines, count: int, options: Options, settings: Settings, sock: socket, announce: Callable[[str], None]
) -> int:
    """Start this number of engines and serve until stopped. Returns the exit code."""

    async def main() -> int:
        try:
            try:
                await engines.start(count)
            except EngineGoneError as error:
                raise InputError(f"The engines cannot be started: {error}") from None
            return await serving(application(engines, options, settings), settings, sock, announce)
        finally:
            await engines.close()

    return asyncio.run(main())
