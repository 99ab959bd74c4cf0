"""The HTTP API of a cluster: the server's own, and `/cluster` for who runs it."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from socket import socket
from typing import Any, cast

from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import Field

from paceline.cluster.live.adapters import AdapterVersion
from paceline.cluster.live.engines import Engines
from paceline.cluster.live.freeness import freeness
from paceline.cluster.live.front import ClusterLLM
from paceline.cluster.live.messages import EngineGoneError
from paceline.core.errors import InputError
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.door import DOOR
from paceline.engine.options import Options
from paceline.serve.app import create_app
from paceline.serve.body import JsonRoute
from paceline.serve.calls import HttpCall
from paceline.serve.errors import ApiError
from paceline.serve.operation import Operation
from paceline.serve.responses import ERRORS
from paceline.serve.routes import include
from paceline.serve.run import serving
from paceline.serve.server import Server
from paceline.serve.settings import MOST_ENGINES, Settings
from paceline.serve.sse import json_response
from paceline.serve.wire import Wire

router = APIRouter(route_class=JsonRoute)


class ScaleRequest(Wire):
    engines: int = Field(ge=1, le=MOST_ENGINES, description=f"the number of engines, 1 to {MOST_ENGINES}")


class DrainRequest(Wire):
    engine: str = Field(description="the name of an engine, as GET /cluster has it")


class ClusterServer(Server):
    """A model that several engines serve."""

    def __init__(self, llm: ClusterLLM, settings: Settings) -> None:
        super().__init__(cast(AsyncLLM, llm), settings)
        self.cluster = llm

    @property
    def max_requests(self) -> int:
        return self.cluster.max_requests

    def remedy(self, option: str) -> str:
        return super().remedy(option) if "lora" in option else "a cluster does not serve them"

    async def read_adapter(self, path: Path, draft: Path | None) -> AdapterVersion:
        return await self.cluster.engines.adapters.read(path, draft)

    async def enter_adapter(
        self, name: str, path: Path, weights: AdapterVersion, replace: bool, draft: Path | None
    ) -> None:
        await self.cluster.enter_adapter(name, path, weights, replace)

    async def remove_adapter(self, name: str) -> None:
        await self.cluster.remove_adapter(name)


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
    """Change the number of engines. Answers when they are there, or those that are too many are gone. It is done also
    where the client leaves. With --max-engines this is the fewest that the load leaves from now on."""
    check_operator(request)
    await started(engines_of(request).scale(body.engines))
    return json_response(described(engines_of(request)))


@router.post("/cluster/drain", responses=ERRORS)
async def drain(body: DrainRequest, request: Request) -> Response:
    """Take an engine out; what it decodes goes to the others. Answers when it is gone. It is done also where the client
    leaves."""
    check_operator(request)
    await engines_of(request).drain(body.engine)
    return json_response(described(engines_of(request)))


@router.post("/cluster/renew", responses=ERRORS)
async def renew(request: Request) -> Response:
    """A new engine in place of each, one after the other. Answers when all are new. It is done also where the client
    leaves."""
    check_operator(request)
    await started(engines_of(request).renew())
    return json_response(described(engines_of(request)))


def check_operator(request: Request) -> None:
    """ApiError 403 where somebody's key is not that of who runs the cluster: clients must not take each other's engines
    away."""
    operation: Operation = request.app.state.operation
    call = DOOR.get()
    if (operation.operators or operation.apart) and not (isinstance(call, HttpCall) and call.operator):
        remedy = "use it" if operation.operators else "start the server with one"
        raise ApiError(
            403, f"A cluster of several keys is changed with its --operator-key; {remedy}.", code="forbidden"
        )


async def started(work: Coroutine[None, None, None]) -> None:
    """Work that starts engines. ApiError 503 where one cannot be started."""
    try:
        await work
    except EngineGoneError as error:
        raise ApiError(503, f"An engine cannot be started ({error}).") from None


def described(engines: Engines) -> dict[str, Any]:
    """For `GET /cluster`."""
    loads = {load.name: load for load in engines.loads()}
    each = [
        {
            "name": name, "draining": now.draining, "silent": now.silent,
            "samples": loads[name].running + loads[name].waiting,
            "freeness": None if now.draining else round(freeness(loads[name]), 2),
            "running": now.snapshot.running, "waiting": now.snapshot.waiting,
            "kv": {"blocks": now.snapshot.blocks, "used": now.snapshot.used, "cached": now.snapshot.cached},
            "process": now.facts.process, "machine": now.facts.machine,
            "generated": now.snapshot.speculation.generated, "preemptions": now.snapshot.totals.preemptions,
        }
        for name, now in engines.states.items()
    ]  # fmt: skip
    return {
        "engines": each, "wanted": engines.wanted, "coming": engines.coming,
        "lost": engines.lost_count, "moved": engines.moved_count,
    }  # fmt: skip


class ClusterCollector(Collector):
    """Figures of each engine, with the label `engine`, and of the cluster."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        now = described(self._engines)
        for name, (text, value) in ENGINE_GAUGES.items():
            gauge = GaugeMetricFamily(f"paceline_engine_{name}", text, labels=["engine"])
            for each in now["engines"]:
                gauge.add_metric([each["name"]], value(each))
            yield gauge
        for name, (text, value) in ENGINE_COUNTERS.items():
            counter = CounterMetricFamily(f"paceline_engine_{name}", text, labels=["engine"])
            for each in now["engines"]:
                counter.add_metric([each["name"]], value(each))
            yield counter
        yield GaugeMetricFamily("paceline_cluster_engines_wanted", "Engines that there should be.", now["wanted"])
        yield GaugeMetricFamily("paceline_cluster_engines_coming", "Engines that are being started.", now["coming"])
        yield CounterMetricFamily("paceline_cluster_engines_lost", "Engines that died.", now["lost"])
        yield CounterMetricFamily("paceline_cluster_moved", "Samples that moved while they ran.", now["moved"])


ENGINE_GAUGES: dict[str, tuple[str, Callable[[dict[str, Any]], float]]] = {
    "draining": ("1 while the engine is being taken out.", lambda it: float(it["draining"])),
    "requests_running": ("Samples that the engine decodes.", lambda it: it["running"]),
    "requests_waiting": ("Samples that wait there.", lambda it: it["waiting"]),
    "kv_cache_usage_perc": (
        "Share of its K/V blocks that samples hold; 1 is all.",
        lambda it: it["kv"]["used"] / max(1, it["kv"]["blocks"]),
    ),
    "freeness": ("Free blocks for each sample; below 0 it lacks some.", lambda it: it["freeness"] or 0.0),
}  # fmt: skip
ENGINE_COUNTERS: dict[str, tuple[str, Callable[[dict[str, Any]], float]]] = {
    "generation_tokens": ("Tokens that the engine generated.", lambda it: it["generated"]),
    "preemptions": ("Samples that lost their K/V there for a while.", lambda it: it["preemptions"]),
}


def application(engines: Engines, options: Options, settings: Settings) -> FastAPI:
    """The HTTP API over engines that have started."""
    server = ClusterServer(ClusterLLM(engines, options), settings)
    app = create_app(server, settings)
    include(app, router)
    operation: Operation = app.state.operation
    operation.metrics.registry.register(ClusterCollector(engines))
    operation.parts["cluster"] = lambda: described(engines)
    operation.unready = lambda: "" if engines.serving else "No engine serves now; another one is started."
    engines.resized = lambda: operation.gate.resize(server.max_requests)
    engines.ending = lambda: operation.draining
    return app


def run(
    engines: Engines, count: int, options: Options, settings: Settings, sock: socket, announce: Callable[[str], None],
    watch: Callable[[], Coroutine[Any, Any, None]],
) -> int:  # fmt: skip
    """Start this number of engines and serve until stopped. Returns the exit code. `watch`: goes on meanwhile."""

    async def main() -> int:
        watching = asyncio.create_task(watch())
        try:
            try:
                await engines.start(count)
            except EngineGoneError as error:
                raise InputError(f"The engines cannot be started: {error}") from None
            return await serving(application(engines, options, settings), settings, sock, announce)
        finally:
            watching.cancel()
            await engines.close()

    return asyncio.run(main())
