"""What keeps a server in order: readiness, drain, metrics, logs, traces. `install` puts it around an application."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Scope

from paceline.serve.admission import ApiKeys, Bodies, Gate, Hosts, LoopTurns, Origins
from paceline.serve.calls import HttpCall
from paceline.serve.errors import ApiError
from paceline.serve.guard import LAST_WORD_S, Guard
from paceline.serve.logs import log_call
from paceline.serve.metrics import CONTENT_TYPE, AboveCollector, Metrics, ModelCollector
from paceline.serve.retrieval import knowledge_of
from paceline.serve.routes import RoutesByPath, include
from paceline.serve.server import ServedHost
from paceline.serve.settings import Settings
from paceline.serve.sse import json_response
from paceline.serve.stats import History, levels, stats
from paceline.serve.tracing import Tracer, exporter
from paceline.serve.vllm_names import VllmNames

log = logging.getLogger("paceline")
router = APIRouter()
BODIES = 64
"""Largest bodies that may be held at once."""
RETRY_AFTER_S = 5
"""Retry-After of a server that is not ready or no longer is."""


class Operation:
    """The state of one server. For the event loop alone; the engine is seen through its snapshot."""

    def __init__(self, host: ServedHost, settings: Settings) -> None:
        self.host, self.settings = host, settings
        self.tracer: Tracer | None = None
        self.keys = ApiKeys(settings.keys())
        self.routers = ApiKeys(settings.router_keys)
        self.operators = ApiKeys(settings.operator_keys)
        self.metrics = Metrics(lambda: host.snapshot)
        self.metrics.registry.register(
            VllmNames(self.metrics, lambda: host.snapshot, host.model, lambda: adapters_in_use(host))
        )
        self.metrics.registry.register(ModelCollector(host.figures))
        self.metrics.registry.register(AboveCollector(lambda: levels(host)))
        if (knowledge := knowledge_of(settings)) is not None:
            self.metrics.registry.register(knowledge)
        self.gate = Gate(
            host.max_requests,
            settings.queue_limit,
            settings.max_prompt_tokens,
            settings.max_output_tokens,
            self.metrics.seen,
            max_nodes=settings.max_nodes,
            parted=settings.parted,
        )
        self.apart = len(settings.keys()) > 1 and not settings.shared_cache
        """Do keys share no prefixes and nothing that drafters have learned?"""
        self.hosts = Hosts(settings.host, bool(self.keys), settings.allowed_hosts)
        self.origins = Origins(settings.cors_origins)
        self.bodies = Bodies(BODIES * settings.max_body_bytes)
        self.turns = LoopTurns()
        self.born = monotonic()
        self.history = History()
        self.warm = self.draining = False
        self.failed: BaseException | None = None
        """Why the warm-up failed."""
        self._calls: set[HttpCall] = set()
        self.parts: dict[str, Callable[[], Any]] = {}
        """More of `/stats`, by name."""
        self.unready: Callable[[], str] = str
        """Why no request can be served now, where that passes by itself; empty: they can."""
        self.tidy: Callable[[], None] | None = None
        """Gives memory back to the system, soon."""

    # -- one call ------------------------------------------------------------------------------------------------

    def begin(self, method: str, path: str, id: str, scope: Scope) -> HttpCall:
        """A call that has just arrived."""
        call = HttpCall(id, method, path, self.gate, self._closed)
        if self.tracer is not None:
            headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
            call.span = self.tracer.begin(call, headers)
        self._calls.add(call)
        return call

    def _closed(self, call: HttpCall) -> None:
        self._calls.discard(call)
        if call.held is not None and self.tidy is not None:
            self.tidy()
        self.metrics.answered(call)
        if self.tracer is not None:
            self.tracer.end(call)
        log_call(call, self._texts(call) if self.settings.log_prompts else None)

    def _texts(self, call: HttpCall) -> list[dict[str, str]]:
        decode = call.decode or str
        return [{"prompt": decode(trip.request.prompt), "answer": trip.request.text} for trip in call.trips]

    def stats(self) -> dict[str, Any]:
        self.host.stuck()  # it is looked at every few seconds, as the history of these readings is
        more = {name: read() for name, read in self.parts.items()}
        return {**stats(self.host, self.settings, monotonic() - self.born), **more}

    # -- the whole -----------------------------------------------------------------------------------------------

    @property
    def unanswered(self) -> list[HttpCall]:
        """Calls whose answer is not complete."""
        return [call for call in self._calls if call.answered is None]

    def check_open(self) -> None:
        """ApiError 503 when no new work is taken."""
        if self.draining:
            raise unavailable("The server is shutting down; send the request to another, or later.", "draining")
        if not self.host.alive:
            raise unavailable("The engine thread died; the server restarts or must be restarted.", "engine_dead")
        check_steps(self.host, self.settings)

    def check_ready(self) -> None:
        """ApiError 503 when a load balancer should send nothing."""
        self.check_open()
        if not self.warm:
            raise unavailable("The server is warming up.", "warming_up")
        if why := self.unready():
            raise unavailable(why, "no_engine")

    async def warm_up(self) -> None:
        """A short generation with the default drafter, so that everything is compiled and loaded."""
        try:
            await self.host.warm_up()
            self.warm = True
        except Exception as error:
            log.exception("The warm-up failed; the server never becomes ready.")
            self.failed = error

    async def drain(self) -> None:
        """Take no new work, wait for what runs, then end what is left and tell its clients."""
        self.draining = True
        await self._wait(self.settings.drain_timeout)
        for call in self.unanswered:
            call.stop(unavailable("The server shut down before the answer was complete.", "draining"))
        await self._wait(LAST_WORD_S)
        log.info("%s.", self.host.snapshot.totals.saved_words.capitalize())

    async def _wait(self, seconds: float) -> None:
        end = monotonic() + seconds
        while self.unanswered and monotonic() < end:
            await asyncio.sleep(0.02)

    async def settle(self) -> None:
        """Wait, after the engine's death, until every client has its answer."""
        await self._wait(LAST_WORD_S)


def check_steps(host: ServedHost, settings: Settings) -> None:
    """ApiError 503 when the engine has work and has not made a step for too long."""
    limit = settings.stall_timeout
    if limit and (seconds := host.stuck()) > limit:
        raise unavailable(f"The engine has work but has not made a step for {seconds:.0f} s.", "engine_stalled")


def unavailable(message: str, code: str) -> ApiError:
    return ApiError(503, message, code=code, headers={"Retry-After": str(RETRY_AFTER_S)})


def install(app: FastAPI, host: ServedHost, settings: Settings) -> Operation:
    """Put the guard, the probes and the warm-up around `app`. InputError for keys that cannot be read."""
    operation = app.state.operation = Operation(host, settings)
    operation.tidy = host.pools.tidy
    host.pools.busy = lambda: bool(host.snapshot.running or host.snapshot.waiting)
    if settings.otel_endpoint is not None:
        operation.tracer = Tracer(exporter(settings.otel_endpoint), host.model)
    include(app, router)
    app.router.middleware_stack = RoutesByPath(app.router)
    app.add_middleware(Guard, operation=operation)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.cors_origins), allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"], expose_headers=["X-Request-Id", "Retry-After"],
        )  # fmt: skip
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with inner(app) as state:
            tasks = [asyncio.create_task(operation.warm_up())]
            tasks.append(asyncio.create_task(operation.history.keep(operation.stats)))
            yield state
            for task in tasks:
                task.cancel()
            if operation.tracer is not None:
                await asyncio.to_thread(operation.tracer.close)

    app.router.lifespan_context = lifespan
    return operation


def of(request: Request) -> Operation:
    operation: Operation = request.app.state.operation
    return operation


@router.head("/ready", include_in_schema=False)
@router.get("/ready")
async def ready(request: Request) -> Response:
    """Green after the warm-up; red while draining, and after the engine's death."""
    of(request).check_ready()
    return json_response({"status": "ready"})


@router.head("/metrics", include_in_schema=False)
@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus text format."""
    return Response(of(request).metrics.render(), media_type=CONTENT_TYPE)


@router.head("/stats", include_in_schema=False)
@router.get("/stats")
async def statistics(request: Request) -> Response:
    """Cumulative counters for a dashboard."""
    return json_response(of(request).stats())


@router.head("/stats/history", include_in_schema=False)
@router.get("/stats/history")
async def history(request: Request) -> Response:
    """The last hour of them."""
    return json_response({"readings": list(of(request).history.readings)})


def adapters_in_use(host: ServedHost) -> tuple[int, list[str], list[str]]:
    """Most adapters in memory, the names of those that requests are computed with, and of those that are waited for."""
    llm = host.first()
    adapters = None if llm is None else llm.llm.engine.session.adapters
    return (0, [], []) if adapters is None else (adapters.most, adapters.running, adapters.awaited)
